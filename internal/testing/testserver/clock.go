package testserver

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

//go:embed testdata/clockshift.c
var clockshiftSource []byte

var clockshift = &library{name: "clockshift", source: clockshiftSource}

// NoClock says why this machine cannot move the clocks of servers. It is empty if the machine can.
func NoClock() string {
	_, why := clockshift.ready()
	return why
}

// Clock is the wall clock of one server. It is right until it is moved.
type Clock struct{ file string }

// NewClock returns a clock that can be moved, with its file in dir, and what the environment of the server has to have.
// The server must be able to read files in dir.
func NewClock(dir string) (c *Clock, env []string) {
	path, _ := clockshift.ready()
	c = &Clock{filepath.Join(dir, "clock")}
	return c, []string{"LD_PRELOAD=" + path, "CLOCKSHIFT=" + c.file}
}

// Set sets how far the clock is ahead, and how much faster it runs, in ppm. The server gets the new time when it next
// reads its clock.
func (c *Clock) Set(ahead time.Duration, fast int) error {
	return os.WriteFile(c.file, fmt.Appendln(nil, ahead.Microseconds(), fast), 0o644) //nolint:gosec // for other users
}

// ClockShows reports whether the clock of a Redis is ahead by about that much. A server that does not answer does not
// show it.
func ClockShows(do func(args ...any) (any, error), ahead time.Duration) bool {
	reply, _ := do("TIME")
	now, ok := reply.([]any)
	if !ok || len(now) != 2 {
		return false
	}
	var seconds int64
	_, _ = fmt.Sscan(fmt.Sprint(now[0]), &seconds)
	return time.Since(time.Unix(seconds, 0).Add(-ahead)).Abs() < 1100*time.Millisecond
}

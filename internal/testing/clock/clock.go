// Package clock moves the wall clock of a real server, for tests. It preloads a library into the server, which needs a
// C compiler.
package clock

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/golocker/locker/internal/testing/preload"
)

//go:embed testdata/clockshift.c
var source []byte

var shim = preload.New("clockshift", source)

// Missing says why this machine cannot move the clocks of servers. It is empty if the machine can.
func Missing() string {
	_, why := shim.Path()
	return why
}

// Remove deletes the compiled library. TestMain calls it at the end.
func Remove() { shim.Remove() }

// Clock is the wall clock of one server. It is right until it is moved.
type Clock struct{ file string }

// New returns a clock that can be moved, with its file in dir, and what the environment of the server has to have. The
// server must be able to read files in dir.
func New(dir string) (c *Clock, env []string) {
	path, _ := shim.Path()
	c = &Clock{filepath.Join(dir, "clock")}
	return c, []string{"LD_PRELOAD=" + path, "CLOCKSHIFT=" + c.file}
}

// Set sets how far the clock is ahead, and how much faster it runs, in ppm. The server gets the new time when it next
// reads its clock.
func (c *Clock) Set(ahead time.Duration, fast int) error {
	return os.WriteFile(c.file, fmt.Appendln(nil, ahead.Microseconds(), fast), 0o644) //nolint:gosec // for other users
}

// Shows reports whether the clock of a Redis is ahead by about that much. A server that does not answer does not show
// it.
func Shows(do func(args ...any) (any, error), ahead time.Duration) bool {
	reply, _ := do("TIME")
	now, ok := reply.([]any)
	if !ok || len(now) != 2 {
		return false
	}
	var seconds int64
	_, _ = fmt.Sscan(fmt.Sprint(now[0]), &seconds)
	return time.Since(time.Unix(seconds, 0).Add(-ahead)).Abs() < 1100*time.Millisecond
}

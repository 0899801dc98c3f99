package redlock_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/contention"
	"github.com/golocker/locker/internal/redistest"
)

// acquireCalls counts how often acquire.lua was executed: its tombstone's absence is the only thing that a clean-up shares
// with it, so calls are told by their argument count in the slow log, which is not to be had; commandstats has only the
// sum of all scripts.
func scriptCalls(t *testing.T, s *redistest.Server) (n int) {
	t.Helper()
	for line := range strings.Lines(s.Cmd(t, "INFO", "commandstats").(string)) {
		name, stats, _ := strings.Cut(line, ":calls=")
		if name == "cmdstat_evalsha" {
			calls, _, _ := strings.Cut(stats, ",")
			n, _ = strconv.Atoi(calls)
		}
	}
	return n
}

func TestTurns(t *testing.T) {
	d, _ := measuring(2 * time.Second)
	const clients, hold = 8, time.Millisecond
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		lockers := make([]locker.Locker, clients)
		for i := range lockers {
			lockers[i] = c.client(t, driver)
		}
		contention.Run(t, lockers, "k", hold, 500*time.Millisecond)
		var before [5]int
		for i, s := range c {
			before[i] = scriptCalls(t, s)
		}
		r := contention.Run(t, lockers, "k", hold, d)
		for i, s := range c {
			t.Logf("node %d: %.2f scripts per acquisition", i, float64(scriptCalls(t, s)-before[i])/float64(r.Total()))
		}
		t.Log(r, r.Holds)
	})
}

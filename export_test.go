package locker

import (
	"testing"
	"time"
)

// Held returns the number of leases in the schedule of c.
func Held(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.schedule.leases)
}

// SleepMachine returns a function that simulates a suspended machine: the wall clock advances by d, and the monotonic
// clock does not. Leases must not be extended after that in the same test, because time.Now does not know about the
// suspension.
func SleepMachine(t testing.TB) (sleep func(d time.Duration)) {
	t.Cleanup(func() { slept.Store(0) })
	return func(d time.Duration) { slept.Add(int64(d)) }
}

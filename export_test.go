package locker

import (
	"testing"
	"time"
)

// Held tells how many leases c keeps account of.
func Held(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.schedule.leases)
}

// SleepMachine returns a function that lets the machine sleep: the wall clock goes on by d, the monotonic one does not. Leases
// must not be extended after that in the test: they would be given ends by a wall clock that did not go on.
func SleepMachine(t testing.TB) (sleep func(d time.Duration)) {
	t.Cleanup(func() { slept.Store(0) })
	return func(d time.Duration) { slept.Add(int64(d)) }
}

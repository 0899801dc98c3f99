package locker

import (
	"testing"
	"time"
)

// Held returns the number of grants in the schedule of c.
func Held(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.schedule.grants)
}

// HideGrants takes the list of its grants away from c, until show is called. What looks at all of them finds none.
func HideGrants(c *Client) (show func()) {
	hide := func(grants byDue) (was byDue) {
		c.mu.Lock()
		defer c.mu.Unlock()
		was, c.schedule.grants = c.schedule.grants, grants
		return was
	}
	was := hide(nil)
	return func() { hide(was) }
}

// SleepMachine returns a function that simulates a suspended machine: the wall clock advances by d, and the monotonic
// clock does not. Leases must not be extended after that in the same test, because time.Now does not know about the
// suspension.
func SleepMachine(t testing.TB) (sleep func(d time.Duration)) {
	t.Cleanup(func() { slept.Store(0) })
	return func(d time.Duration) { slept.Add(int64(d)) }
}

// Queues returns the number of queues of c.
func Queues(c *Client) int {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	return len(c.queues.byKey)
}

// Closing reports whether Close of c has begun.
func (c *Client) Closing() bool { return c.closes() }

// Stall keeps everybody from the grant of l, until resume is called. So Close, which ends one grant after the other,
// does not get past it. Time stands still in a bubble meanwhile.
func Stall(l Lease) (resume func()) {
	g := l.(*lease).grant
	g.mu.Lock()
	return g.mu.Unlock
}

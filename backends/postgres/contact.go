package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

const (
	// pollInterval is how often a waiter looks whether it has its turn, and shows that it is there. Usually it is
	// notified. The server passes over a waiter that it has not seen for three seconds.
	pollInterval = time.Second

	// silence is how long a request may be unanswered before it counts as failed.
	silence = time.Second

	minPause = 5 * time.Millisecond
)

// contact is what a call of Queue knows of the lock and of the server.
type contact struct {
	ctx  context.Context
	open context.Context // of the Backend
	req  locker.Request
	news chan struct{} // has a value if the call should ask; nil if nobody tells

	held   *locker.HeldError
	fault  error // of the last contact; nil if the server answered
	faulty time.Time
}

// refused notes an answer that another owner has the lock, or that other waiters come first.
func (c *contact) refused(held *locker.HeldError) {
	first := c.held == nil
	c.held = held
	if first && c.req.Waiting != nil {
		c.req.Waiting(held)
	}
	if c.fault != nil {
		c.fault = nil
		if c.req.Failing != nil {
			c.req.Failing(time.Time{}, nil)
		}
	}
}

// failed notes that a request has failed that was sent at sent. It returns how long to pause before the next one, or
// that the call is over.
func (c *contact) failed(sent time.Time, err error) (pause time.Duration, over bool) {
	if c.fault == nil {
		c.faulty = sent
	}
	c.fault = err
	if c.held != nil && c.req.Failing != nil {
		c.req.Failing(c.faulty, err)
	}
	since := time.Since(c.faulty)
	if c.held == nil || since >= c.req.Patience {
		return 0, true
	}
	pause = min(max(since, 2*minRetry), maxRetry)
	return pause/2 + rand.N(pause/2), false
}

// seen returns the error for a call whose context has ended. err is that of a request that was not answered.
func (c *contact) seen(err error) error {
	switch {
	case c.fault != nil:
		return c.fault
	case c.held != nil:
		return c.held
	}
	return unavailable(err)
}

// pollDelay returns the pause after a refusal: until the lock expires, and not longer than the interval.
func (c *contact) pollDelay() time.Duration {
	d := pollInterval + rand.N(pollInterval/8)
	if r := c.held.Remaining; r > 0 {
		d = min(d, r+minPause)
	}
	return max(d, minPause)
}

// sleep returns when the waiter should ask again. If the call should end instead, it returns an error.
func (c *contact) sleep(d time.Duration) error {
	start, reason := time.Now(), lockertrace.WakePoll
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.news:
		reason = lockertrace.WakeNotify
	case <-c.ctx.Done():
		return c.seen(c.ctx.Err())
	case <-c.req.Closing:
		return locker.ErrClosed
	case <-c.open.Done():
		return locker.ErrClosed
	}
	c.woken(reason, start)
	return nil
}

// woken tells the trace of the call that it has slept since start.
func (c *contact) woken(reason lockertrace.WakeReason, start time.Time) {
	if trace := lockertrace.From(c.ctx); trace != nil && trace.Woken != nil {
		trace.Woken(lockertrace.Wake{Reason: reason, Slept: time.Since(start)})
	}
}

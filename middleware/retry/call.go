package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/ending"
)

// call is one operation that has failed and is retried.
type call struct {
	*policy
	ctx    context.Context
	latest time.Time       // no retry begins after this time; zero for no limit
	over   <-chan struct{} // when it is closed, pauses end; may be nil
	last   bool            // over has ended a pause

	start time.Time // when the operation began
	tries int
	row   int       // number of retries since the first of the consecutive faults
	since time.Time // when that fault happened
}

// fault reports whether err is a failure of the store that may be temporary.
func fault(err error) bool {
	if !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrNoQuorum) {
		return false
	}
	for _, final := range []error{
		locker.ErrInvalid, locker.ErrClosed, locker.ErrForeignKey, locker.ErrHeld, locker.ErrLost, locker.ErrUnlocked,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

// run repeats op, which has failed with err, until it succeeds, fails with an error that is not retryable, or its time
// is over.
func (c *call) run(err error, retryable func(error) bool, op func() error) error {
	c.tries, c.since = 1, time.Now()
	for retryable(err) {
		if !c.pause(fault(err)) {
			return c.failed(err)
		}
		c.tries++
		c.row++
		if err = op(); err == nil {
			return nil
		}
	}
	return c.failed(err)
}

// anew starts counting consecutive faults again. It is called if the store has answered before the last fault.
func (c *call) anew() { c.row, c.since = 0, time.Now() }

// pause waits until it is time for the next retry. It returns false if there must be no further retry.
func (c *call) pause(counted bool) bool {
	if c.last {
		return false
	}
	latest := c.since.Add(c.limit)
	if !c.latest.IsZero() && c.latest.Before(latest) {
		latest = c.latest
	}
	delay := c.delay()
	if time.Now().Add(delay).After(latest) {
		return false
	}
	if !c.sleep(delay) || !counted {
		return ending.Of(c.ctx) == nil
	}
	deadline, bounded := c.ctx.Deadline()
	if bounded && deadline.Before(latest) {
		latest = deadline
	}
	wait, ok := c.bucket.take(latest)
	if !ok {
		if bounded && latest.Equal(deadline) { // the call must end with ctx's error
			c.sleep(time.Until(deadline))
		}
		return false
	}
	if wait > 0 && !c.sleep(wait) {
		c.bucket.giveBack()
	}
	return ending.Of(c.ctx) == nil
}

// delay returns the random pause before the next retry.
func (c *call) delay() time.Duration {
	top := min(c.base, c.maxDelay)
	for n := 0; n < c.row && top < c.maxDelay; n++ {
		top += min(top, c.maxDelay-top) // doubles without overflow
	}
	return max(floor, rand.N(top))
}

// sleep waits for d. It returns false if it was interrupted.
func (c *call) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.over: // the next try fails with the reason, and is the last one
		c.last = true
	case <-c.ctx.Done():
	}
	return false
}

// failed adds the number of tries to err, which is the last error. If ctx ended during a pause, it also adds ctx's
// error.
func (c *call) failed(err error) error {
	t := &tried{tries: c.tries, took: time.Since(c.start), err: err}
	if end := ending.Of(c.ctx); end != nil && !errors.Is(err, end) {
		t.end = ending.Why(c.ctx, end)
	}
	if t.tries == 1 && t.end == nil {
		return err
	}
	// The error with the operation and the key stays the outermost one.
	if e, ok := err.(*locker.Error); ok { //nolint:errorlint // a wrapped one is not of this operation
		t.err = e.Err
		return &locker.Error{Op: e.Op, Key: e.Key, Err: t}
	}
	return t
}

// tried is the last error of an operation that was retried.
type tried struct {
	tries int
	took  time.Duration
	end   error // the error of the caller's context; nil if it has not ended or if err matches it
	err   error
}

func (t *tried) Error() string {
	text := fmt.Sprintf("after %d tries in %v: %v", t.tries, t.took.Round(time.Millisecond), t.err)
	if t.tries == 1 {
		text = t.err.Error()
	}
	if t.end != nil {
		text = t.end.Error() + ": " + text
	}
	return text
}

func (t *tried) Unwrap() []error {
	if t.end != nil {
		return []error{t.end, t.err}
	}
	return []error{t.err}
}

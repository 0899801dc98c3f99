package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
)

// call is one operation that has failed once, and is repeated.
type call struct {
	*policy
	ctx    context.Context
	latest time.Time       // no retry begins after that; zero: none
	over   <-chan struct{} // closed when there is no point in waiting on; nil: never

	start time.Time // of the operation
	tries int
	row   int       // retries since the first of the faults in a row
	since time.Time // when that was
}

// fault reports whether err may pass: the store was not reached, did not answer, or refused.
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

// ended is ctx's error, if it has ended, for it alone to say. A deadline that has passed is waited for: the timer of a context
// may run a moment late.
func ended(ctx context.Context) error {
	if d, ok := ctx.Deadline(); ok && ctx.Done() != nil && !time.Now().Before(d) {
		late := time.NewTimer(lateTimer)
		defer late.Stop()
		select {
		case <-ctx.Done():
		case <-late.C:
		}
	}
	return ctx.Err()
}

// lateTimer is how late the timer of a context may be. A context that does not end then does not mean its deadline.
const lateTimer = time.Second

// run repeats op, which has failed with err, until it succeeds, or fails in a way that retryable does not know, or
// its time is over.
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

// anew begins a new row of faults with the last one: the store has answered in between.
func (c *call) anew() { c.row, c.since = 0, time.Now() }

// pause waits until it is time for the next retry, and reports whether there is to be one.
func (c *call) pause(budgeted bool) bool {
	latest := c.since.Add(c.limit)
	if !c.latest.IsZero() && c.latest.Before(latest) {
		latest = c.latest
	}
	delay := c.delay()
	if time.Now().Add(delay).After(latest) {
		return false
	}
	if !c.sleep(delay) || !budgeted {
		return ended(c.ctx) == nil
	}
	deadline, bounded := c.ctx.Deadline()
	if bounded && deadline.Before(latest) {
		latest = deadline
	}
	wait, ok := c.budget.take(latest)
	if !ok {
		if bounded && latest.Equal(deadline) { // then it is ctx that ends the call
			c.sleep(time.Until(deadline))
		}
		return false
	}
	if wait > 0 && !c.sleep(wait) {
		c.budget.giveBack()
	}
	return ended(c.ctx) == nil
}

// delay draws the pause before the next retry.
func (c *call) delay() time.Duration {
	top := min(c.base, c.most)
	for n := 0; n < c.row && top < c.most; n++ {
		top += min(top, c.most-top) // doubled, without an overflow
	}
	return max(floor, rand.N(top))
}

// sleep reports whether it has slept for d.
func (c *call) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.over: // the operation itself says why
	case <-c.ctx.Done():
	}
	return false
}

// failed adds to err, the last of several, how often it was tried, and ctx's end if that was during a pause.
func (c *call) failed(err error) error {
	t := &tried{tries: c.tries, took: time.Since(c.start), err: err}
	if end := ended(c.ctx); end != nil && !errors.Is(err, end) {
		t.end = end
		if cause := context.Cause(c.ctx); cause != nil && !errors.Is(end, cause) {
			t.end = fmt.Errorf("%w (%w)", end, cause)
		}
	}
	if t.tries == 1 && t.end == nil {
		return err
	}
	// What says operation and key stays outermost.
	if e, ok := err.(*locker.Error); ok { //nolint:errorlint // deeper down it is not this operation's
		t.err = e.Err
		return &locker.Error{Op: e.Op, Key: e.Key, Err: t}
	}
	return t
}

// tried is the last error of an operation that was retried.
type tried struct {
	tries int
	took  time.Duration
	end   error // of the caller's context; nil: err has it, or it has not ended
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

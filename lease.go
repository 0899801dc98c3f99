package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// validity returns the end of what a holder may rely on when a TTL was set by a request that was sent at start or
// later. One per cent covers clocks that run at different speeds (NTP slews by 0.05 % at most), 2 ms the granularity of
// expiry: the numbers of the Redlock description.
func validity(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// margin is how long before the end of d done is closed, so that a timer that fires late still closes it in time.
// Timers are late by milliseconds, on a busy machine by tens of them, however long they were set for: more would only
// give away validity. Of a short d it is a small part.
func margin(d time.Duration) time.Duration {
	return min(d/100, 50*time.Millisecond) + time.Millisecond
}

// lease is the Lease of a Client. It runs no goroutine while it is held: a timer ends it, and the Client's schedule
// renews it.
type lease struct {
	client  *Client
	req     Request
	trace   *Trace // of the context it was acquired with; nil: none
	renews  bool
	start   time.Time     // when the request was sent that acquired it
	limit   time.Time     // set by MaxHold; zero: none
	limitBy time.Time     // when it ends because of that
	minHold time.Duration // keep it from others until start plus this

	// The place in the schedule, guarded by the Client's mu.
	due time.Time
	pos int

	mu      sync.Mutex
	until   time.Time
	done    chan struct{} // closed when err is set; nil as long as nobody has asked for it
	err     error         // why it ended; nil while held
	ended   time.Time     // when
	expiry  *time.Timer   // ends it shortly before until, or at its limit
	inDoubt bool          // the last renewal failed
	// extending has what cancels the extensions that are under way; the end of the lease does.
	extending []*context.CancelFunc

	// See unlock.go.
	releasing bool          // a release is under way
	settled   chan struct{} // closed when it is over; nil unless another Unlock waits for that
	sent      bool          // a release was sent whose outcome was not learnt
	released  bool          // the store confirmed the end
}

func newLease(ctx context.Context, c *Client, req Request, start time.Time, o options) *lease {
	l := &lease{
		client:  c,
		req:     req,
		trace:   TraceFrom(ctx),
		renews:  !o.noRenewal,
		start:   start,
		minHold: o.minHold,
		pos:     -1,
		until:   validity(start, req.TTL),
	}
	if o.maxHold > 0 {
		l.limit = start.Add(o.maxHold)
		l.limitBy = l.limit.Add(-margin(o.maxHold))
	}
	return l
}

// begin starts the lease, unless its time has been spent on the way or the Client was closed meanwhile. What fails here
// was never held, so Trace.Lost is not called.
func (l *lease) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	end, reason := l.end()
	rest := left(end)
	if rest <= 0 {
		l.err = &LostError{reason}
		if reason == LostMaxHold {
			return fmt.Errorf("%w: the lock was granted too late: MaxHold is over", ErrUnavailable)
		}
		return fmt.Errorf("%w: the lock was granted too late, with nothing left of its TTL of %v", ErrUnavailable, l.req.TTL)
	}
	if !l.client.hold(l, rest) {
		l.err = &LostError{LostClosed}
		return ErrClosed
	}
	return nil
}

// end is when the lease ends unless it is extended, and why it does then. Call with mu held.
func (l *lease) end() (time.Time, LostReason) {
	expiry := l.until.Add(-margin(l.req.TTL))
	if !l.limit.IsZero() && !expiry.Before(l.limitBy) {
		return l.limitBy, LostMaxHold
	}
	return expiry, LostExpired
}

func (l *lease) Key() string   { return l.req.Key }
func (l *lease) Token() string { return l.req.Token }
func (l *lease) Fence() uint64 { return l.req.Fence }

func (l *lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

func (l *lease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.until
	if !l.limit.IsZero() {
		until = earlier(until, l.limit)
	}
	if l.err != nil {
		until = earlier(until, l.ended)
	}
	return until
}

func (l *lease) Err() error { return l.finish(nil) }

// finish ends the lease for reason (nil: none), unless it has ended before, or its time is over: then that is why. It
// returns why it ended, nil if it goes on.
func (l *lease) finish(reason error) error {
	l.mu.Lock()
	was := l.err
	if was == nil {
		if end, why := l.end(); left(end) <= 0 {
			reason = &LostError{why}
		}
		if reason != nil {
			l.finishLocked(reason)
		}
	}
	err := l.err
	l.mu.Unlock()
	if was == nil && l.trace != nil && l.trace.Lost != nil {
		if lost, ok := err.(*LostError); ok { //nolint:errorlint // as it was set above
			l.trace.Lost(lost)
		}
	}
	return err
}

func (l *lease) finishLocked(reason error) {
	l.err = reason
	l.ended = time.Now()
	if l.done != nil {
		close(l.done)
	}
	for _, cancel := range l.extending {
		(*cancel)()
	}
	l.client.forget(l)
}

// rearm ends the lease if its time is over, and sets its timer anew otherwise, for when the clocks have gone apart.
func (l *lease) rearm() {
	if l.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.setExpiry()
	}
}

// setExpiry sets the timer. Call with mu held, of a lease that has not ended.
func (l *lease) setExpiry() {
	end, _ := l.end()
	l.expiry.Reset(max(0, left(end)))
}

func (l *lease) Extend(ctx context.Context) error {
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := l.extend(bounded, &cancel); err != nil {
		if ended := l.Err(); ended != nil { // which may be why it was not answered
			err = ended
		}
		return &Error{"extend", l.req.Key, withContext(ctx, err)}
	}
	return nil
}

// extend makes one attempt to prolong the lease. The end of the lease calls cancel, which ends ctx.
func (l *lease) extend(ctx context.Context, cancel *context.CancelFunc) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := ended(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	if err := l.err; err != nil {
		l.mu.Unlock()
		return err
	}
	l.extending = append(l.extending, cancel)
	l.mu.Unlock()
	start := time.Now()
	err := fromBackend(l.client.backend.Extend(ctx, l.req))
	l.mu.Lock()
	i := slices.Index(l.extending, cancel)
	l.extending = slices.Delete(l.extending, i, i+1)
	l.mu.Unlock()
	switch {
	case err == nil:
		return l.prolong(start)
	case errors.Is(err, ErrNotHeld):
		// No effect if Unlock was faster: then its deletion is what was seen.
		return l.finish(&LostError{reasonOf(err)})
	default:
		return err
	}
}

// prolong moves the end of the lease after an extension that began at start. An extension that was confirmed after the
// lease had ended does not revive it: done is closed, and callers have acted on that.
func (l *lease) prolong(start time.Time) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.inDoubt = false
	if until := validity(start, l.req.TTL); until.After(l.until) {
		l.until = until
		l.setExpiry()
	}
	return nil
}

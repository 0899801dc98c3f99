package locker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// releaseGrace is how long Unlock waits for the answer although its context has ended.
	releaseGrace = 250 * time.Millisecond
	// releaseBound is how long Unlock waits at most.
	releaseBound = 5 * time.Second
)

// validity returns the end of what a holder may rely on when a TTL was set by a request that was sent at start or
// later. One per cent covers clocks that run at different speeds (NTP slews by 0.05 % at most), 2 ms the granularity of
// expiry: the numbers of the Redlock description.
func validity(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// lease is the Lease of a Client. It runs no goroutine while it is held: one timer ends it, one renews it.
type lease struct {
	client *Client
	req    Request
	renews bool
	done   chan struct{} // closed when err is set

	mu       sync.Mutex
	until    time.Time
	start    time.Time   // when the request was sent that acquired it
	err      error       // why it ended; nil while held
	expiry   *time.Timer // ends it shortly before until
	renewal  *time.Timer // nil without renewal
	renewing context.CancelFunc

	releasing sync.Mutex // held while a release is sent; guards the two below
	released  bool       // the store confirmed the end
	sent      bool       // a release was sent whose outcome was not learnt
}

func newLease(c *Client, req Request, start time.Time, renews bool) *lease {
	return &lease{
		client: c,
		req:    req,
		renews: renews,
		done:   make(chan struct{}),
		until:  validity(start, req.TTL),
		start:  start,
	}
}

// begin starts the lease, unless its validity has been spent on the way or the Client was closed meanwhile.
func (l *lease) begin() error {
	if !l.client.hold(l) {
		return ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil { // Close was faster
		return ErrClosed
	}
	left := time.Until(l.expireAt())
	if left <= 0 {
		l.endLocked(&LostError{LostExpired})
		return fmt.Errorf("%w: the lock was granted too late, with nothing left of its TTL of %v", ErrUnavailable, l.req.TTL)
	}
	l.expiry = time.AfterFunc(left, func() { _ = l.Err() })
	l.startRenewal(l.start)
	return nil
}

// expireAt is when the lease ends unless it is extended: before until, so that a timer that fires a little late still
// closes done in time. Call with mu held.
func (l *lease) expireAt() time.Time {
	return l.until.Add(-l.req.TTL/100 - time.Millisecond)
}

func (l *lease) Key() string           { return l.req.Key }
func (l *lease) Token() string         { return l.req.Token }
func (l *lease) Fence() uint64         { return l.req.Fence }
func (l *lease) Done() <-chan struct{} { return l.done }

func (l *lease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

func (l *lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && over(l.expireAt()) {
		l.endLocked(&LostError{LostExpired})
	}
	return l.err
}

// over reports whether end has passed, by either clock: the monotonic one, which stands still while the machine is
// suspended (CLOCK_MONOTONIC on Linux, mach_absolute_time on macOS), and the wall clock. Where they differ the lease
// ends: a wall clock that is stepped forward costs a lock, one that is stepped back is outvoted.
func over(end time.Time) bool {
	now := time.Now()
	return !now.Before(end) || !now.Round(0).Before(end.Round(0))
}

// end ends the lease for the given reason, unless it has ended before.
func (l *lease) end(reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.endLocked(reason)
	}
}

func (l *lease) endLocked(reason error) {
	l.err = reason
	close(l.done)
	for _, t := range []*time.Timer{l.expiry, l.renewal} {
		if t != nil {
			t.Stop()
		}
	}
	if l.renewing != nil {
		l.renewing()
	}
	l.client.forget(l)
}

func (l *lease) Extend(ctx context.Context) error {
	if err := l.extend(ctx); err != nil {
		return &Error{"extend", l.req.Key, withContext(ctx, err)}
	}
	return nil
}

// extend makes one attempt to prolong the lease.
func (l *lease) extend(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := ended(ctx); err != nil {
		return err
	}
	start := time.Now()
	err := l.client.backend.Extend(ctx, l.req)
	switch {
	case err == nil:
		return l.prolong(start)
	case errors.Is(err, ErrNotHeld):
		l.end(&LostError{LostTakenOver}) // no effect if Unlock was faster: then its deletion is what was seen
		return l.Err()
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
	if until := validity(start, l.req.TTL); until.After(l.until) {
		l.until = until
		l.expiry.Reset(time.Until(l.expireAt()))
	}
	return nil
}

func (l *lease) Unlock(ctx context.Context) error {
	l.releasing.Lock()
	defer l.releasing.Unlock()
	if l.released {
		return &Error{"unlock", l.req.Key, ErrUnlocked}
	}
	l.end(ErrUnlocked)
	err := l.release(ctx)
	switch {
	case err == nil:
		l.released = true
		return nil
	case errors.Is(err, ErrNotHeld) && l.sent:
		// An earlier release went unanswered: that one may have freed the lock, in time or too late.
		l.released = true
		err = fmt.Errorf("%w: the lock is free, but an earlier release went unanswered, so it is not known since when", ErrUnavailable)
	case errors.Is(err, ErrNotHeld):
		l.released = true
		err = fmt.Errorf("%w: %w", err, l.lost())
	default:
		l.sent = true
		err = withContext(ctx, err)
	}
	return &Error{"unlock", l.req.Key, err}
}

// lost returns how the lease was lost, for a release that found it gone.
func (l *lease) lost() error {
	if err := l.Err(); errors.Is(err, ErrLost) {
		return err
	}
	return &LostError{LostTakenOver}
}

// release sends the release on a context of its own: ctx's values, but not its end. It waits until ctx ends, for
// releaseGrace at least and releaseBound at most.
func (l *lease) release(ctx context.Context) error {
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()
	if ctx.Done() != nil {
		graceEnd := time.Now().Add(releaseGrace)
		stop := context.AfterFunc(ctx, func() {
			time.AfterFunc(time.Until(graceEnd), cancel)
		})
		defer stop()
	}
	return l.client.backend.Release(rctx, l.req)
}

// giveUp releases a lease that was granted but never handed out.
func (l *lease) giveUp(ctx context.Context) {
	_ = l.release(ctx) // best effort: the backend goes on by itself, and the TTL ends it otherwise
}

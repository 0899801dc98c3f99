package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// releaseBound is how long Unlock waits for the store's answer, whatever the caller's context says. It is longer than a
// round trip between continents, and short enough for a shutdown while the store hangs.
const releaseBound = time.Second

var errUnlocking = fmt.Errorf("%w: another call of Unlock has not been answered yet", ErrUnavailable)

func (l *lease) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx); err != nil {
		return &Error{"unlock", l.req.Key, err}
	}
	return nil
}

// unlock ends the lease and releases the lock. It uses a new context that has the values of ctx and ends after
// releaseBound. ctx itself has often ended already, and a release with an ended context would not be sent.
func (l *lease) unlock(ctx context.Context) (err error) {
	defer func() { err = l.release(ctx) }() // also if a hook panics
	return l.finish(ErrUnlocked)
}

// release releases the lock of a lease that has ended.
func (l *lease) release(ctx context.Context) error {
	if ctx.Value(undoKey{}) != nil {
		l.undo(ctx)
		return nil
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()

	err := l.beginRelease(rctx)
	if errors.Is(err, ErrUnlocked) {
		return err
	}
	if err != nil {
		return unreleased(ctx, rctx, err)
	}
	req := l.held()
	if l.minHold > 0 {
		req.Keep = max(0, l.minHold-time.Since(l.start))
	}
	err = fromBackend(l.client.backend.Release(rctx, req))
	notHeld := errors.Is(err, ErrNotHeld)
	unanswered := l.endRelease(err == nil || notHeld)
	switch {
	case err == nil:
		return nil
	case notHeld && unanswered:
		// The earlier release may have released the lock in time, or the lock may have been lost before.
		return fmt.Errorf("%w: the lock is no longer held, but an earlier release was not answered, so it is not "+
			"known when it ended", ErrUnavailable)
	case notHeld:
		lost := l.lost(err)
		if lost == nil {
			return fmt.Errorf("%w: the store has no such lock although its TTL is not over: the key was deleted, or "+
				"this release was sent twice and the first answer was lost", ErrUnavailable)
		}
		return fmt.Errorf("%w: %w", err, lost)
	default:
		return unreleased(ctx, rctx, err)
	}
}

// held returns the request of the lock as the store may have it.
func (l *lease) held() Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	req := l.req
	req.TTL = l.longest
	return req
}

// beginRelease waits until no other call is releasing the lock. If it returns nil, the caller must call endRelease.
// It returns ErrUnlocked if an earlier release has succeeded.
func (l *lease) beginRelease(ctx context.Context) error {
	for waited := false; ; waited = true {
		l.mu.Lock()
		switch {
		case l.released:
			l.mu.Unlock()
			return ErrUnlocked
		case waited && ctx.Err() != nil:
			l.mu.Unlock()
			return errUnlocking
		case !l.releasing:
			l.releasing = true
			l.mu.Unlock()
			return nil
		}
		if l.settled == nil {
			l.settled = make(chan struct{})
		}
		settled := l.settled
		l.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
		}
	}
}

// endRelease records the outcome of a release and lets the next call release. It reports whether an earlier release was
// not answered.
func (l *lease) endRelease(answered bool) (unanswered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	unanswered = l.sent
	if answered {
		l.released = true
	} else {
		l.sent = true
	}
	l.releasing = false
	if l.settled != nil {
		close(l.settled)
		l.settled = nil
	}
	return unanswered
}

// lost returns how the lease was lost, given the error notHeld of its release. It returns nil if the lease may not have
// been lost.
func (l *lease) lost(notHeld error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(l.err, ErrLost):
		return l.err
	case left(l.until) <= 0:
		return &LostError{Reason: LostExpired, Err: l.failed}
	}
	var e *NotHeldError
	ok := errors.As(notHeld, &e)
	if ok && e.Reason == LostGone {
		return nil
	}
	return &LostError{Reason: reasonOf(notHeld)}
}

// undo releases the lock of a lease that was never returned to a caller. It waits until ctx ends, if not for less.
func (l *lease) undo(ctx context.Context) {
	c := l.client
	if !l.counted.Swap(false) && !c.enter(&c.attempts) {
		return // the Client is closed, and the lock ends with its TTL
	}
	released := c.giveUp(ctx, l.held(), nil)
	c.attempts.Done()
	select {
	case <-released:
	case <-ctx.Done():
	}
}

// giveUp releases a lock that was granted to req, but whose lease cannot be returned to the caller. why is the reason.
// It is called within an attempt. The channel is closed when the release has ended.
func (c *Client) giveUp(ctx context.Context, req Request, why error) (released <-chan struct{}) {
	over := make(chan struct{})
	if errors.Is(why, ErrClosed) {
		// Release the lock before returning. Close closes the backend as soon as the attempts have ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		_ = c.backend.Release(ctx, req)
		close(over)
		return over
	}
	c.attempts.Add(1) // Close waits for the release as it waits for the attempt
	joined := c.join()
	go func() {
		defer close(over)
		if joined {
			defer c.background.Done()
		}
		defer c.attempts.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
		defer cancel()
		_ = c.backend.Release(ctx, req) // if it fails, the backend retries, and the TTL ends the lock otherwise
	}()
	return over
}

// giveUpMany releases the locks that were granted to reqs. The first of them have leases.
func (c *Client) giveUpMany(ctx context.Context, reqs []Request, leases []*lease) {
	for _, l := range leases {
		_ = l.finish(ErrUnlocked)
	}
	for _, req := range reqs {
		_ = c.giveUp(ctx, req, nil)
	}
}

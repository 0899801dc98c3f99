package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// releaseBound is how long Unlock waits for the store's answer, whatever its caller's context says: longer than a round
// trip between continents takes, and short enough for a shutdown in which the store hangs.
const releaseBound = time.Second

func (l *lease) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx); err != nil {
		return &Error{"unlock", l.req.Key, err}
	}
	return nil
}

// unlock ends the lease and releases the lock. It waits for the answer on a context of its own, which has the values of ctx
// and ends after releaseBound: ctx has often ended by now, and a release on it would not be sent.
func (l *lease) unlock(ctx context.Context) error {
	_ = l.finish(ErrUnlocked)
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()

	err := l.turn(rctx)
	if errors.Is(err, ErrUnlocked) {
		return err
	}
	if err != nil {
		return withContext(ctx, err)
	}
	req := l.req
	req.Uncancelled = true
	if l.minHold > 0 {
		req.Keep = max(0, l.minHold-time.Since(l.start))
	}
	err = fromBackend(l.client.backend.Release(rctx, req))
	notHeld := errors.Is(err, ErrNotHeld)
	unanswered := l.settle(err == nil || notHeld)
	switch {
	case err == nil:
		return nil
	case notHeld && unanswered:
		// An earlier release went unanswered: that one may have ended the lock, in time or too late.
		return fmt.Errorf("%w: the lock has ended, but an earlier release went unanswered, so it is not known since when",
			ErrUnavailable)
	case notHeld:
		lost := l.lost(err)
		if lost == nil {
			return fmt.Errorf("%w: the store has no such lock before its time is over: it was deleted, or the answer to "+
				"this release was lost and it was sent again", ErrUnavailable)
		}
		return fmt.Errorf("%w: %w", err, lost)
	default:
		return withContext(ctx, err)
	}
}

// turn waits until no other call releases the lock, so that there is one release at a time. It returns ErrUnlocked if one
// has succeeded.
func (l *lease) turn(ctx context.Context) error {
	for waited := false; ; waited = true {
		l.mu.Lock()
		switch {
		case l.released:
			l.mu.Unlock()
			return ErrUnlocked
		case waited && ctx.Err() != nil:
			l.mu.Unlock()
			return fmt.Errorf("%w: another call of Unlock has had no answer yet", ErrUnavailable)
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

// settle ends what turn began. It reports whether an earlier release went unanswered.
func (l *lease) settle(answered bool) (unanswered bool) {
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

// lost returns how the lease was lost, for a release that was told notHeld; nil if it is not known that it was.
func (l *lease) lost(notHeld error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(l.err, ErrLost):
		return l.err
	case left(l.until) <= 0:
		return &LostError{LostExpired}
	}
	var e *NotHeldError
	ok := errors.As(notHeld, &e)
	if ok && e.Reason == LostGone {
		return nil
	}
	return &LostError{reasonOf(notHeld)}
}

// giveUp releases a lease that was granted but never handed out, because of why. It is called within an attempt.
func (l *lease) giveUp(ctx context.Context, why error) {
	c := l.client
	if errors.Is(why, ErrClosed) {
		// Now: the backend may be closed any moment, and a goroutine would come too late.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		_ = c.backend.Release(ctx, l.req)
		return
	}
	c.attempts.Add(1) // Close gives it the same grace as the attempt
	joined := c.join()
	go func() {
		if joined {
			defer c.background.Done()
		}
		defer c.attempts.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
		defer cancel()
		_ = c.backend.Release(ctx, l.req) // best effort: the backend goes on by itself, and the TTL ends it otherwise
	}()
}

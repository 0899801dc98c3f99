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

func (l *lease) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx); err != nil {
		return &Error{"unlock", l.req.Key, err}
	}
	return nil
}

// unlock ends the lease and releases the lock, on a context of its own: ctx's values, but not its end. It waits until ctx
// ends, for releaseGrace at least and releaseBound at most.
func (l *lease) unlock(ctx context.Context) error {
	_ = l.finish(ErrUnlocked)
	rctx := l.releaseContext(ctx)
	defer rctx.stop()

	err := l.turn(rctx)
	if errors.Is(err, ErrUnlocked) {
		return err
	}
	if err != nil {
		return withContext(ctx, err)
	}
	req := l.req
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

// releasing is the context of a release: the caller's values, but an end of its own. It makes a Done channel, and what it
// takes to close it in time, only for those that ask; internal/node asks when it ends instead.
type releasing struct {
	context.Context                 // the caller's values
	caller          context.Context // ends it, but not before least
	least, end      time.Time

	mu     sync.Mutex
	made   context.Context // whose Done is this one's; nil if nobody has asked
	cancel context.CancelFunc
}

// releaseContext returns one for a call of Unlock. That of the first is a part of the lease.
func (l *lease) releaseContext(ctx context.Context) *releasing {
	r := &l.first
	l.mu.Lock()
	if r.caller != nil {
		r = new(releasing)
	}
	now := time.Now()
	r.Context, r.caller, r.least, r.end = ctx, ctx, now.Add(releaseGrace), now.Add(releaseBound)
	l.mu.Unlock()
	if ctx.Done() != nil {
		r.Context = context.WithoutCancel(ctx)
	}
	return r
}

// Lingers says when the context ends: with the caller's, but not before least, and at end at the latest.
func (r *releasing) Lingers() (caller context.Context, least, end time.Time) {
	return r.caller, r.least, r.end
}

func (r *releasing) Deadline() (time.Time, bool) { return r.end, true }

func (r *releasing) Done() <-chan struct{} { return r.make().Done() }

func (r *releasing) Err() error {
	r.mu.Lock()
	made := r.made
	r.mu.Unlock()
	now := time.Now()
	switch {
	case made != nil:
		return made.Err()
	case !now.Before(r.end):
		return context.DeadlineExceeded
	case !now.Before(r.least):
		return r.caller.Err()
	}
	return nil
}

func (r *releasing) make() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil {
		made, cancel := context.WithDeadline(r.Context, r.end)
		stop := func() bool { return true }
		if r.caller.Done() != nil {
			stop = context.AfterFunc(r.caller, func() { time.AfterFunc(time.Until(r.least), cancel) })
		}
		r.made, r.cancel = made, func() {
			stop()
			cancel()
		}
	}
	return r.made
}

// stop ends it, now that nobody waits any more.
func (r *releasing) stop() {
	r.mu.Lock()
	cancel := r.cancel
	r.mu.Unlock()
	if cancel != nil {
		cancel()
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

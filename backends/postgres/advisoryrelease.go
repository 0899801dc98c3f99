package postgres

import (
	"context"
	"time"

	"github.com/golocker/locker"
)

// releaseAttempt is an attempt to release a lock. Several calls may wait for it.
type releaseAttempt struct {
	over chan struct{} // closed when err is set
	err  error
}

// Release implements [locker.Backend]. If the server refuses to keep the lock, it is asked again in the background: for
// the TTL, or until the Client is closed.
//
// A session has one such goroutine, however often Release is called: later calls wait for its next attempt. With one
// for each call, a program that repeats Unlock would have more and more of them.
func (b *AdvisoryBackend) Release(ctx context.Context, req locker.Request) error {
	keepUntil := time.Now().Add(req.Keep)
	if err := b.enter(); err != nil {
		return err
	}
	defer b.background.Done()
	s, ok := req.Private.(*session)
	if !ok {
		return locker.ErrNotHeld
	}
	next, first := s.nextAttempt()
	if first {
		b.background.Go(func() { s.keepReleasing(keepUntil, req.TTL) })
	}
	select {
	case <-next.over:
		return next.err
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

// nextAttempt returns the attempt to release that is under way, or the next one. If it is the first one, the caller has
// to make it.
func (s *session) nextAttempt() (next *releaseAttempt, first bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.releasing == nil {
		s.releasing, first = &releaseAttempt{over: make(chan struct{})}, true
	}
	return s.releasing, first
}

// answer tells the calls that wait for the attempt. more says that another attempt follows.
func (s *session) answer(err error, more bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.releasing.err = err
	close(s.releasing.over)
	s.releasing = nil
	if more {
		s.releasing = &releaseAttempt{over: make(chan struct{})}
	}
}

// keepReleasing makes attempts until the session has ended or was given back, or until Close. If the server refuses to
// keep the lock until limit has passed, the lock is released at once and not kept. Each attempt that the server has
// answered begins the TTL anew, so the lock would be taken for up to a TTL more.
func (s *session) keepReleasing(keepUntil time.Time, limit time.Duration) {
	attempt := func(keepUntil time.Time) error {
		err := s.release(keepUntil)
		over := s.ended()
		s.answer(err, !over)
		if over {
			return nil
		}
		return err
	}
	switch err := s.b.repeat(limit, func(context.Context) error { return attempt(keepUntil) }); {
	case err == nil:
	case s.b.open.Err() != nil:
		s.answer(locker.ErrClosed, false) // Close leaves the lock to its TTL
	default:
		_ = attempt(time.Time{}) // which ends in any case
	}
}

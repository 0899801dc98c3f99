package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
)

// refusal is an answer that a lock is held.
type refusal struct {
	at  time.Time
	err error
}

// toyBackend is the Backend of one process.
type toyBackend struct {
	*toy
	closed atomic.Bool
	held   sync.Map // the last refusal, by key
}

func (b *toyBackend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if b.closed.Load() {
		return locker.Grant{}, locker.ErrClosed
	}
	last, ok := b.held.Load(req.Key)
	if ok && b.remembersHeld && time.Since(last.(refusal).at) < 50*time.Millisecond {
		return locker.Grant{}, last.(refusal).err
	}
	g, err := b.toy.Acquire(ctx, req)
	if errors.Is(err, locker.ErrHeld) {
		b.held.Store(req.Key, refusal{time.Now(), err})
	}
	return g, err
}

func (b *toyBackend) Close() error {
	b.closed.Store(!b.staysOpen)
	return nil
}

// toyQueuer polls from its position in the queue.
type toyQueuer struct{ *toyBackend }

func (b toyQueuer) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	s := b.toy
	seen := &locker.HeldError{}
	for news, waited := -1, 0; ; waited++ {
		sent := time.Now()
		g, err := s.answer(ctx, func() (locker.Grant, error) { return s.look(req, &news, waited == 0) },
			func() { s.forget(req) })
		var e *locker.HeldError
		isHeld := errors.As(err, &e)
		if isHeld {
			seen = e
		}
		if isHeld && waited == 0 || isHeld && waited == 1 && s.waitingTwice || err == nil && waited == 0 &&
			s.waitingAlways {
			req.Waiting(seen)
		}
		if err == nil {
			if g.Sent = sent; s.sentLate && waited > 0 {
				time.Sleep(100 * time.Millisecond)
				g.Sent = time.Now()
			}
			return g, nil
		}
		if s.queueLate && waited > 0 && ctx.Err() != nil {
			time.Sleep(time.Second)
		}
		if !isHeld {
			b.leave(req)
			if err == silent && waited > 0 {
				err = seen
			}
			return g, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			if s.queueLate {
				time.Sleep(time.Second)
			}
			b.leave(req)
			return g, seen
		case <-req.Closing:
			b.leave(req)
			if s.closingIsHeld {
				return g, &locker.HeldError{}
			}
			return g, locker.ErrClosed
		}
	}
}

// look joins the queue. It takes the lock if the lock is free and the caller is first in the queue. news is the last
// notification that the caller has seen.
func (s *toy) look(req locker.Request, news *int, first bool) (locker.Grant, error) {
	line := s.line[req.Key]
	if !slices.Contains(line, req.Token) {
		if s.lifo {
			line = append([]string{req.Token}, line...)
		} else {
			line = append(slices.Clone(line), req.Token)
		}
		s.line[req.Key] = line
	}
	l, present := s.locks[req.Key]
	over := present && !time.Now().Before(l.expires)
	told := *news != s.changes || first
	*news = s.changes
	if line[0] != req.Token || over && s.deafToExpiry || !over && !told && s.trustsNews {
		return locker.Grant{}, l.heldError()
	}
	g, err := s.take(req)
	if err == nil {
		s.line[req.Key] = line[1:]
	}
	return g, err
}

func (b toyQueuer) leave(req locker.Request) { b.with(func() { b.forget(req) }) }

// forget removes a waiter from the queue, and releases a lock that it was granted in the meantime.
func (s *toy) forget(req locker.Request) {
	if s.staysInLine {
		return
	}
	s.line[req.Key] = slices.DeleteFunc(s.line[req.Key], func(token string) bool { return token == req.Token })
	s.drop(req)
	s.changes++
}

// toyNotifier notifies waiters when a lock is released.
type toyNotifier struct{ *toyBackend }

func (b toyNotifier) Notify(key string, wake func()) (live func() bool, stop func()) {
	s := b.toy
	s.with(func() { s.wakes[key] = append(s.wakes[key], &wake) })
	time.AfterFunc(time.Millisecond, wake)
	return func() bool { return !s.neverLive }, func() {
		s.with(func() {
			if !s.neverStops {
				s.wakes[key] = slices.DeleteFunc(slices.Clone(s.wakes[key]), func(w *func()) bool { return w == &wake })
			}
		})
	}
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// lazy polls the lock every five seconds.
type lazy struct{ locker.Locker }

func (l *lazy) Unwrap() locker.Locker { return l.Locker }

func (l *lazy) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	for {
		time.Sleep(5 * time.Second)
		if lease, err := l.TryLock(ctx, key, opts...); !errors.Is(err, locker.ErrHeld) || ctx.Err() != nil {
			return lease, err
		}
	}
}

// stubborn continues to wait when its caller has left.
type stubborn struct{ locker.Locker }

func (s *stubborn) Unwrap() locker.Locker { return s.Locker }

func (s *stubborn) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	type result struct {
		lease locker.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		l, err := s.Locker.Lock(context.WithoutCancel(ctx), key, opts...)
		done <- result{l, err}
	}()
	select {
	case r := <-done:
		return r.lease, r.err
	case <-ctx.Done():
		return nil, &locker.Error{Op: "lock", Key: key, Err: fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)}
	}
}

// optimist counts the validity from the answer, not from the request.
type optimist struct{ locker.Locker }

func (o *optimist) Unwrap() locker.Locker { return o.Locker }

func (o *optimist) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	start := time.Now()
	lease, err := o.Locker.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	return &badLease{Lease: lease, until: func(l locker.Lease) time.Time { return l.Until().Add(took) }}, nil
}

// repeating makes a second attempt when the store is unavailable. The lease counts from that attempt.
type repeating struct{ locker.Locker }

func repeats(next locker.Locker) locker.Locker { return &repeating{next} }

func (r *repeating) Unwrap() locker.Locker { return r.Locker }

func (r *repeating) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := r.Locker.TryLock(ctx, key, opts...)
	if errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil {
		return r.Locker.TryLock(ctx, key, opts...)
	}
	return lease, err
}

// forgetful soon forgets that a lease was unlocked.
func forgetful(next locker.Locker) locker.Locker {
	var unlocked sync.Map // time of Unlock, by token
	return bad(badLocker{lease: badLease{
		unlock: func(l locker.Lease, ctx context.Context) error {
			unlocked.Store(l.Token(), time.Now())
			return l.Unlock(ctx)
		},
		err: func(l locker.Lease) error {
			if at, ok := unlocked.Load(l.Token()); ok && time.Since(at.(time.Time)) > 300*time.Millisecond {
				return &locker.LostError{Reason: locker.LostExpired}
			}
			return l.Err()
		},
	}})(next)
}

// hasty makes an attempt before it waits. If its caller leaves, it abandons the attempt, whose lock then belongs to
// nobody.
type hasty struct{ locker.Locker }

func (h *hasty) Unwrap() locker.Locker { return h.Locker }

func (h *hasty) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if ctx.Err() != nil {
		return h.Locker.Lock(ctx, key, opts...)
	}
	type result struct {
		lease locker.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
		defer cancel()
		l, err := h.TryLock(ctx, key, opts...)
		done <- result{l, err}
	}()
	select {
	case r := <-done:
		if r.err == nil {
			return r.lease, nil
		}
		return h.Locker.Lock(ctx, key, opts...)
	case <-ctx.Done():
		return nil, &locker.Error{Op: "lock", Key: key, Err: ctx.Err()}
	}
}

// lingering continues for a caller that leaves while it waits, and polls faster than other waiters. It is slow to
// release the lock that it then acquires.
type lingering struct{ locker.Locker }

func (l *lingering) Unwrap() locker.Locker { return l.Locker }

func (l *lingering) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	start := time.Now()
	waits := false
	trace := &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { waits = true }}
	lease, err := l.Locker.Lock(lockertrace.With(ctx, trace), key, opts...)
	if !errors.Is(err, context.Canceled) || !waits {
		return lease, err
	}
	go func() {
		for {
			lease, err := l.TryLock(context.WithoutCancel(ctx), key, opts...)
			switch {
			case err == nil:
				time.Sleep(2*slack + slack/4)
				_ = lease.Unlock(context.WithoutCancel(ctx))
				return
			case !errors.Is(err, locker.ErrHeld) || time.Since(start) > patience:
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	return lease, err
}

// sharing gives one lease to all callers that wait at the same time, like a single-flight cache around a lock.
type sharing struct {
	locker.Locker
	mu     sync.Mutex
	flight map[string]*flight
}

type flight struct {
	done  chan struct{}
	lease locker.Lease
	err   error
}

func (s *sharing) Unwrap() locker.Locker { return s.Locker }

func (s *sharing) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	s.mu.Lock()
	f := s.flight[key]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		s.flight[key] = f
		s.mu.Unlock()
		f.lease, f.err = s.Locker.Lock(ctx, key, opts...)
		s.mu.Lock()
		delete(s.flight, key)
		close(f.done)
	}
	s.mu.Unlock()
	<-f.done
	return f.lease, f.err
}

// selfish does not notify its own waiters of its releases. A waiter for a lock that the same client holds polls at long
// intervals.
type selfish struct {
	locker.Locker
	held sync.Map
}

func (s *selfish) Unwrap() locker.Locker { return s.Locker }

func (s *selfish) mine(key string, lease locker.Lease, err error) (locker.Lease, error) {
	if err != nil {
		return nil, err
	}
	s.held.Store(key, true)
	return &badLease{Lease: lease, unlock: func(l locker.Lease, ctx context.Context) error {
		s.held.Delete(key)
		return l.Unlock(ctx)
	}}, nil
}

func (s *selfish) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := s.Locker.TryLock(ctx, key, opts...)
	return s.mine(key, lease, err)
}

func (s *selfish) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if _, mine := s.held.Load(key); mine {
		select {
		case <-time.After(slack + slack/2):
		case <-ctx.Done():
		}
	}
	lease, err := s.Locker.Lock(ctx, key, opts...)
	return s.mine(key, lease, err)
}

// remembering caches for a while that a lock is held.
type remembering struct {
	locker.Locker
	told sync.Map // the last refusal, by key
}

func (r *remembering) Unwrap() locker.Locker { return r.Locker }

func (r *remembering) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if last, ok := r.told.Load(key); ok && time.Since(last.(refusal).at) < 50*time.Millisecond {
		return nil, last.(refusal).err
	}
	lease, err := r.Locker.TryLock(ctx, key, opts...)
	if errors.Is(err, locker.ErrHeld) {
		r.told.Store(key, refusal{time.Now(), err})
	}
	return lease, err
}

// frozen always reports the first Until.
func frozen(next locker.Locker) locker.Locker {
	var ends sync.Map // by token
	return bad(badLocker{lease: badLease{until: func(l locker.Lease) time.Time {
		end, _ := ends.LoadOrStore(l.Token(), l.Until())
		return end.(time.Time)
	}}})(next)
}

// expired reports whether the lease has ended because nobody renewed it.
func expired(l locker.Lease) bool {
	var lost *locker.LostError
	ok := errors.As(l.Err(), &lost)
	return ok && lost.Reason == locker.LostExpired
}

// doneLate closes Done late for one kind of loss.
func doneLate(by time.Duration, kind func(locker.Lease) bool) func(locker.Lease) <-chan struct{} {
	return func(l locker.Lease) <-chan struct{} {
		if errors.Is(l.Err(), locker.ErrUnlocked) {
			return l.Done()
		}
		late := make(chan struct{})
		go func() {
			<-l.Done()
			if kind(l) {
				time.Sleep(by)
			}
			close(late)
		}()
		return late
	}
}

// noticed reports whether the lease has ended because the store reported another owner, or none.
func noticed(l locker.Lease) bool {
	var lost *locker.LostError
	ok := errors.As(l.Err(), &lost)
	return ok && lost.Reason != locker.LostExpired && lost.Reason != locker.LostMaxHold
}

// unnoticed makes a lease whose holder does not learn of another owner.
func unnoticed(l locker.Lease) <-chan struct{} {
	told := make(chan struct{})
	go func() {
		if <-l.Done(); !noticed(l) {
			close(told)
		}
	}()
	if !noticed(l) && l.Err() != nil {
		return l.Done()
	}
	return told
}

package semaphore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// fragile is a Locker whose leases panic in Unlock, if they are of a certain lock.
type fragile struct {
	locker.Locker
	breaks func(lock string) bool
	after  bool // the lock is released before
}

func (l fragile) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return l.wrap(l.Locker.Lock(ctx, key, opts...))
}

func (l fragile) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return l.wrap(l.Locker.TryLock(ctx, key, opts...))
}

func (l fragile) wrap(lease locker.Lease, err error) (locker.Lease, error) {
	if err != nil || !l.breaks(lease.Key()) {
		return lease, err
	}
	return fragileLease{lease, l.after}, nil
}

type fragileLease struct {
	locker.Lease
	after bool
}

func (l fragileLease) Unwrap() locker.Lease { return l.Lease }

func (l fragileLease) Unlock(ctx context.Context) error {
	if l.after {
		_ = l.Lease.Unlock(ctx)
	}
	panic("boom")
}

// spare is a Locker that refuses the first attempts, so that those that follow are made two at a time.
type spare struct {
	locker.Locker
	attempts atomic.Int64
	granted  func(n int64) // is called when attempt n is granted, if it is not nil
}

func (l *spare) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	n := l.attempts.Add(1)
	if n <= 4 {
		return nil, &locker.Error{Op: "trylock", Key: key, Err: locker.ErrHeld}
	}
	lease, err := l.Locker.TryLock(ctx, key, opts...)
	if err == nil && l.granted != nil {
		l.granted(n)
	}
	return lease, err
}

// panics returns what f panics with, or nil.
func panics(f func()) (panicked any) {
	defer func() { panicked = recover() }()
	f()
	return nil
}

// A middleware that panics while something is released in the background does not take the program: Unlock panics. If
// it panics within a call, the call does, and leaves nothing behind.
func TestPanicOfARelease(t *testing.T) {
	const n = 6
	for _, after := range []bool{false, true} {
		stores(t, func(w *world) {
			gate := func(lock string) bool { return lock == "{"+key+"}#gate" }
			s := semaphore.New(fragile{w.Client(), gate, after}, n)
			p := w.lock(s)
			if panics(func() { w.Unlock(p) }) != "boom" {
				w.Error("the panic of the release of the gate is gone")
			}
			if err := p.Unlock(w.Context()); !errors.Is(err, locker.ErrUnlocked) {
				w.Errorf("the second Unlock: %v", err)
			}
			w.empty(n)

			p = w.lock(semaphore.New(w.Client(), n))
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			if panics(func() { _, _ = s.Weight(n).Lock(ctx, key) }) != "boom" {
				w.Error("the panic of a call that gives up is gone")
			}
			w.Unlock(p)
			w.empty(n)

			slots := func(lock string) bool { return !gate(lock) }
			s = semaphore.New(&spare{Locker: fragile{w.Client(), slots, after}}, n)
			if panics(func() { _, _ = s.TryLock(w.Context(), key) }) != "boom" {
				w.Error("the panic of a call that gives back what it does not need is gone")
			}
			w.empty(n)
		})
	}
}

// TryLock returns when its context ends, also if the store does not answer while a permit is given back that is not
// needed.
func TestTryLockReturnsWhenItsContextEnds(t *testing.T) {
	const n = 6
	stores(t, func(w *world) {
		l := &spare{Locker: w.Client(), granted: func(n int64) {
			if n == 6 {
				w.Calls.Delay(3 * time.Second)
			}
		}}
		ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		lease, err := semaphore.New(l, n).TryLock(ctx, key)
		if took := time.Since(start); err != nil || took > 100*time.Millisecond {
			w.Errorf("TryLock: %v after %v", err, took)
		}
		w.Calls.Delay(0)
		w.Unlock(lease)
		time.Sleep(3 * time.Second)
		w.empty(n)
	})
}

// store is a store in memory whose releases and Close are those of a test.
type store struct {
	*memory.Backend
	release func(ctx context.Context, next func() error) error
	close   func()
}

func (s store) Close() error {
	s.close()
	return nil
}

func (s store) Release(ctx context.Context, req locker.Request) error {
	return s.release(ctx, func() error { return s.Backend.Release(ctx, req) })
}

// afterAWait returns a permit for which c has waited. The gate is being released. others is a Client of the same locks.
func afterAWait(t *testing.T, c, others *locker.Client) locker.Lease {
	t.Helper()
	held, err := semaphore.New(others, 1).Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = held.Unlock(t.Context()) })
	lease, err := semaphore.New(c, 1).Lock(t.Context(), key, locker.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// A Close that follows a Lock at once waits for the release of the gate, so that others find it free. It does not
// release the permit.
func TestCloseAwaitsTheReleaseOfTheGate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const takes = 10 * time.Millisecond
		locks, closed := memory.NewBackend(), false
		others := locker.NewClient(locks)
		defer others.Close()
		defer time.Sleep(takes) // a release may go on
		c := locker.NewClient(store{locks, func(_ context.Context, next func() error) error {
			time.Sleep(takes)
			if closed {
				return locker.ErrUnavailable
			}
			return next()
		}, func() { closed = true }})
		afterAWait(t, c, others)
		start := time.Now()
		_ = c.Close()
		if took := time.Since(start); took > takes {
			t.Errorf("Close took %v, want the %v of the release", took, takes)
		}
		gate, err := others.TryLock(t.Context(), "{"+key+"}#gate")
		if err != nil {
			t.Fatalf("after Close: %v", err)
		}
		_ = gate.Unlock(t.Context())
		if _, err := others.TryLock(t.Context(), "{"+key+"}#0"); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("after Close, the permit is not held: %v", err)
		}
	})
}

// Unlock waits for a store that hangs as long as any other Unlock does, also if the gate has not been released yet.
func TestUnlockWhileTheGateIsReleased(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		locks := memory.NewBackend()
		others := locker.NewClient(locks)
		defer others.Close()
		c := locker.NewClient(store{locks, func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			return locker.ErrUnavailable
		}, func() {}})
		defer c.Close()
		lease := afterAWait(t, c, others)
		start := time.Now()
		err := lease.Unlock(t.Context())
		if took := time.Since(start); !errors.Is(err, locker.ErrUnavailable) || took > time.Second {
			t.Errorf("Unlock: %v after %v, want a second", err, took)
		}
	})
}

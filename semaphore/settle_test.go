package semaphore_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// fragile is a Locker whose leases panic in Unlock, if they are of a certain lock.
type fragile struct {
	locker.Locker
	breaks func(lock string) bool
	after  bool // the lock is released before
}

func (l fragile) Unwrap() locker.Locker { return l.Locker }

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
	grants   atomic.Int64
	granted  func(n int64) // is called at the n-th grant, if it is not nil
}

func (l *spare) Unwrap() locker.Locker { return l.Locker }

func (l *spare) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if l.attempts.Add(1) <= 4 {
		return nil, &locker.Error{Op: "trylock", Key: key, Err: locker.ErrHeld}
	}
	lease, err := l.Locker.TryLock(ctx, key, opts...)
	if err == nil && l.granted != nil {
		l.granted(l.grants.Add(1))
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
			if w.Groups { // nothing is released in the background
				return
			}
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
		if w.Groups { // there is one attempt
			return
		}
		l := &spare{Locker: w.Client(), granted: func(n int64) {
			if n == 2 { // no attempt is in progress any more
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

// gatedStore is a store in memory without groups. All Clients of a test have to be of such stores: a permit of a group
// keeps no lock from anybody.
type gatedStore struct{ *memory.Backend }

func (s gatedStore) Capabilities() backend.Capabilities {
	can := s.Backend.Capabilities()
	can.Groups = false
	return can
}

// store is a gatedStore whose releases and Close are those of a test.
type store struct {
	gatedStore
	release func(ctx context.Context, next func() error) error
	close   func()
}

func (s store) Close() error {
	s.close()
	return nil
}

func (s store) Release(ctx context.Context, req backend.Request) error {
	return s.release(ctx, func() error { return s.Backend.Release(ctx, req) })
}

// afterAWait returns what lock returns, which waits for a permit. The gate is being released. others is a Client of the
// same locks.
func afterAWait(t *testing.T, others *locker.Client, lock func() (locker.Lease, error)) locker.Lease {
	t.Helper()
	held, err := semaphore.New(others, 1).Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = held.Unlock(t.Context()) })
	lease, err := lock()
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// A Close that follows a Lock at once waits for the release of the gate, so that others find it free. It does not
// release the permit.
func TestCloseAwaitsTheReleaseOfTheGate(t *testing.T) {
	closeAwaitsTheRelease(t, func(ctx context.Context, l locker.Locker) (locker.Lease, error) {
		return l.Lock(ctx, key, locker.TTL(time.Hour))
	})
	closeAwaitsTheRelease(t, func(ctx context.Context, l locker.Locker) (locker.Lease, error) {
		return locker.LockAll(ctx, l, []string{key, "other"}, locker.TTL(time.Hour))
	})
}

func closeAwaitsTheRelease(t *testing.T, lock func(ctx context.Context, l locker.Locker) (locker.Lease, error)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		const takes = 10 * time.Millisecond
		locks, closed := gatedStore{memory.NewBackend()}, false
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
		afterAWait(t, others, func() (locker.Lease, error) { return lock(t.Context(), semaphore.New(c, 1)) })
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
		locks := gatedStore{memory.NewBackend()}
		others := locker.NewClient(locks)
		defer others.Close()
		c := locker.NewClient(store{locks, func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			return locker.ErrUnavailable
		}, func() {}})
		defer c.Close()
		lease := afterAWait(t, others, func() (locker.Lease, error) {
			return semaphore.New(c, 1).Lock(t.Context(), key, locker.TTL(time.Hour))
		})
		start := time.Now()
		err := lease.Unlock(t.Context())
		if took := time.Since(start); !errors.Is(err, locker.ErrUnavailable) || took > time.Second {
			t.Errorf("Unlock: %v after %v, want a second", err, took)
		}
	})
}

// gated calls f in the Unlock of a gate.
type gated struct {
	locker.Locker
	f func()
}

type gatedLease struct {
	locker.Lease
	f func()
}

func (g gated) Lock(ctx context.Context, name string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := g.Locker.Lock(ctx, name, opts...)
	if err == nil && name == "{"+key+"}#gate" {
		lease = gatedLease{lease, g.f}
	}
	return lease, err
}

func (l gatedLease) Unlock(ctx context.Context) error {
	l.f()
	return l.Lease.Unlock(ctx)
}

// A middleware or a hook that runs while the gate is released may unlock the permit.
func TestUnlockWithinTheReleaseOfTheGate(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there is no gate
			return
		}
		permits := make(chan locker.Lease)
		l := gated{w.Client(), func() { w.Unlock(<-permits) }}
		held := w.lock(semaphore.New(w.Client(), 1))
		time.AfterFunc(time.Second, func() { w.Unlock(held) })
		permits <- w.lock(semaphore.New(l, 1))
		time.Sleep(3 * time.Second)
		w.empty(1)
	})
}

// A caller that waits for a permit with a gate that another caller of its Client has handed over to it gives the gate
// back when its Client is closed, and when a hook panics. Close waits for that, and for nothing else.
func TestGateThatWasHandedOver(t *testing.T) {
	const closed, served, panics = "closed", "served", "panics"
	for name, tt := range map[string]struct {
		hook    func()
		outcome string
		took    time.Duration // by Close
	}{
		"closed later":          {func() {}, closed, 0},
		"closed at that moment": {func() { time.Sleep(1100 * time.Millisecond) }, closed, 100 * time.Millisecond},
		"panic":                 {func() { panic(panics) }, panics, 0},
		"served":                {func() {}, served, 0},
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(w *world) {
				if w.Groups { // there is no gate
					return
				}
				held := w.lock(semaphore.New(w.Client(), 1))
				gate := w.Lock(w.Client(), "{"+key+"}#gate", locker.NoLocalHandover())
				closes := w.Client()
				var handed atomic.Bool
				ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Woken: func(wake lockertrace.Wake) {
					if wake.Reason == lockertrace.WakeLocal {
						handed.Store(true)
						tt.hook()
					}
				}})
				leases, outcomes := make(chan locker.Lease, 2), make(chan string, 2)
				for range cap(outcomes) {
					go func() {
						defer func() {
							if text, ok := recover().(string); ok {
								outcomes <- text
							}
						}()
						lease, err := semaphore.New(closes, 1).Lock(ctx, key, locker.TTL(time.Hour))
						switch {
						case err == nil:
							leases <- lease
							outcomes <- served
						case errors.Is(err, locker.ErrClosed):
							outcomes <- closed
						default:
							outcomes <- err.Error()
						}
					}()
				}
				time.Sleep(time.Second)
				w.Unlock(held, gate)
				first := <-leases
				time.Sleep(time.Second)
				if !handed.Load() {
					w.Fatal("the gate was not handed over")
				}
				if tt.outcome == served {
					w.Unlock(first)
					time.Sleep(time.Second)
				}
				start := time.Now()
				_ = closes.Close()
				if took := time.Since(start); took != tt.took {
					w.Errorf("Close took %v", took)
				}
				w.Free("{" + key + "}#gate")
				// The other one is handed the gate before the call of the first has returned, and may be the first to end.
				got, want := []string{<-outcomes, <-outcomes}, []string{served, tt.outcome}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					w.Errorf("%q, want %q", got, want)
				}
			})
		})
	}
}

// Callers that wait for permits while their Client drains give back the permits that they have, and leave their queue.
// A permit that is held stays so.
func TestDrainWhileCallersWait(t *testing.T) {
	stores(t, func(w *world) {
		const n = 4
		client := w.Client()
		own, foreign := w.lock(semaphore.New(client, n)), w.lock(semaphore.New(w.Client(), n).Weight(2))
		failed := make(chan error)
		for _, k := range []int{2, 4, 1} { // behind a caller that waits, nobody overtakes
			go func() {
				s := semaphore.New(client, n).Weight(k)
				_, err := s.Lock(w.Context(), key, locker.TTL(time.Hour), locker.MinHold(time.Minute))
				failed <- err
			}()
			time.Sleep(time.Second)
		}
		over, cancel := context.WithCancel(w.Context())
		cancel()
		client.Drain(over)
		for range 3 {
			if err := <-failed; !errors.Is(err, locker.ErrDraining) {
				w.Error(err)
			}
		}
		w.Settle()
		rest := semaphore.New(w.Client(), n)
		w.Unlock(w.lock(rest)) // nobody is in the way
		time.Sleep(10 * locker.DefaultTTL)
		w.Unlock(foreign, own)
		if held := client.Drain(w.Context()); len(held) > 0 {
			w.Errorf("%d locks are held", len(held))
		}
		w.empty(n)
	})
}

package rwlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/rwlock"
)

// Callers of all kinds in several processes, some of which give up: no writer is beside a reader or another writer,
// tokens are in order, and nothing is left behind.
func TestNoWriterBesideAReader(t *testing.T) {
	stores(t, func(w *world) {
		j := &judge{T: w.T}
		hold := func() { time.Sleep(rand.N(10 * time.Millisecond)) }
		var all sync.WaitGroup
		for range 4 {
			rw := w.process()
			do := func(kind string, l locker.Locker, opts ...locker.Option) {
				ctx, cancel := w.Context(), context.CancelFunc(func() {})
				if rand.N(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, rand.N(20*time.Millisecond))
				}
				defer cancel()
				lease, err := l.Lock(ctx, key, opts...)
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						w.Error(err)
					}
					return
				}
				j.enter(kind, lease)
				hold()
				j.leave(kind)
				w.Unlock(lease)
			}
			for range 3 {
				all.Go(func() {
					for range 8 {
						do("read", rw.Shared())
						do("read", rw.Shared(), locker.NoLocalHandover())
						do("upgradeable", rw.Upgradeable())
					}
				})
			}
			all.Go(func() {
				for range 6 {
					do("write", rw.Exclusive())
					hold()
				}
			})
		}
		all.Wait()
		if j.most < 3 {
			w.Errorf("at most %d readers at a time", j.most)
		}
		w.empty()
	})
}

// A free lock costs a call of the store. Where the store has no groups, an upgradeable one costs two, and where it also
// acquires one lock at a time, there are two more, for the gates.
func TestCostOfAFreeLock(t *testing.T) {
	stores(t, func(w *world) {
		steps := w.Steps
		rw := w.process()
		for _, tt := range []struct {
			l           locker.Locker
			step, calls int
		}{
			{rw.Shared(), 1, 2},
			{rw.Exclusive(), 1, 66},
			{rw.Upgradeable(), 2, 3},
		} {
			lease := w.lock(tt.l)
			synctest.Wait()
			calls := w.Calls.Took()
			asked, want := calls["AcquireMany"]+calls["Acquire"]+calls["Queue"], tt.calls
			switch {
			case w.Groups:
				want = 1
			case steps:
				want = tt.step
			}
			if asked != want {
				w.Errorf("%v, want %d", calls, want)
			}
			w.Unlock(lease)
			synctest.Wait()
			w.Calls.Took()
		}
		w.empty()
	})
}

// Readers and a writer that wait for a writer are served in the order of their arrival, and those that do not wait
// overtake nobody.
func TestOrderBetweenTheClasses(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Queues {
			return
		}
		written := w.lock(w.process().Exclusive())
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range 6 {
			rw := w.process()
			l := rw.Shared()
			if i == 2 {
				l = rw.Exclusive()
			}
			all.Go(func() {
				lease := w.lock(l)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				w.Unlock(lease)
			})
			time.Sleep(10 * time.Millisecond)
		}
		w.refused(w.process().Shared())
		w.Unlock(written)
		all.Wait()
		if slices.Sort(order[:2]); !slices.Equal(order[:3], []int{0, 1, 2}) {
			w.Errorf("served in the order %v", order)
		}
		w.empty()
	})
}

// A caller that loses the intent lock, the gate or a slot before it has all slots gives everything back, and begins
// anew.
func TestLossWhileSlotsAreCollected(t *testing.T) {
	for what, lock := range map[string]func(of func(i int) string) string{
		"the intent lock": func(func(int) string) string { return intent },
		"the gate":        func(func(int) string) string { return gate },
		"a slot":          func(of func(int) string) string { return of(20) },
	} {
		t.Run(what, func(t *testing.T) {
			stores(t, func(w *world) {
				if w.Groups { // a waiter has nothing yet
					return
				}
				read := w.lock(w.process().Shared())
				waits := w.waiting(w.process().Exclusive())
				ofWriter := func(i int) string { // a slot that the reader does not have
					if own, _ := locker.LeaseAs[interface{ Unwrap() locker.Lease }](read); own.Unwrap().Key() == slot(i) {
						i++
					}
					return slot(i)
				}
				name := lock(ofWriter)
				// An operator takes the lock away, and another program has it for a while.
				if _, err := w.Calls.ForceRelease(w.Context(), name, ""); err != nil {
					w.Fatal(err)
				}
				other, err := w.Client().Lock(w.Context(), name)
				if err != nil {
					w.Fatal(err)
				}
				time.Sleep(ttl) // the waiter learns of it by a renewal
				if what == "a slot" {
					w.Unlock(other) // the writer waits again at once, because the gates are free
				} else {
					free, err := w.Client().TryLock(w.Context(), ofWriter(40))
					if err != nil {
						w.Fatalf("a slot of a writer that has lost %s: %v", what, err)
					}
					w.Unlock(free, other)
				}
				w.Unlock(read)
				w.Unlock(<-waits)
			})
		})
	}
}

// A program that closes its Client while it waits leaves nothing behind, and nobody waits for its TTL.
func TestCloseWhileCallersWait(t *testing.T) {
	stores(t, func(w *world) {
		for i, kind := range []func(rw *rwlock.RWLock) locker.Locker{
			(*rwlock.RWLock).Shared, (*rwlock.RWLock).Upgradeable, (*rwlock.RWLock).Exclusive,
		} {
			held := w.lock(w.process().Exclusive())
			if i == 2 { // the writer has some of the slots
				w.Unlock(held)
				held = w.lock(w.process().Shared())
			}
			closes := w.Client()
			failed := make(chan error)
			go func() {
				_, err := kind(rwlock.New(closes)).Lock(w.Context(), key, locker.TTL(time.Hour))
				failed <- err
			}()
			time.Sleep(time.Second)
			go func() { _ = closes.Close() }()
			if err := <-failed; !errors.Is(err, locker.ErrClosed) {
				w.Error(err)
			}
			w.Unlock(held)
			w.empty()
		}
	})
}

// A program that drains while callers wait leaves nothing behind. Its readers keep the slot that they share, and nobody
// shares it from then on, because Drain would not end while readers come.
func TestDrainWhileCallersWait(t *testing.T) {
	stores(t, func(w *world) {
		for _, kind := range []func(rw *rwlock.RWLock) locker.Locker{
			(*rwlock.RWLock).Shared, (*rwlock.RWLock).Upgradeable, (*rwlock.RWLock).Exclusive,
		} {
			held := w.Lock(w.process().Exclusive(), "z")
			client := w.Client()
			rw := rwlock.New(client)
			reads, up := w.lock(rw.Shared()), w.Lock(rw.Upgradeable(), "up")
			failed := make(chan error)
			go func() {
				_, err := kind(rw).Lock(w.Context(), "z", locker.TTL(time.Hour))
				failed <- err
			}()
			go func() {
				_, err := kind(rw).Lock(w.Context(), "z")
				failed <- err
			}()
			time.Sleep(time.Second)
			over, cancel := context.WithCancel(w.Context())
			cancel()
			client.Drain(over)
			for range 2 {
				if err := <-failed; !errors.Is(err, locker.ErrDraining) {
					w.Error(err)
				}
			}
			for _, acquire := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){
				rw.Shared().Lock, rw.Shared().TryLock, rw.Exclusive().TryLock,
			} {
				if _, err := acquire(w.Context(), key); !errors.Is(err, locker.ErrDraining) {
					w.Errorf("a further lock while the Client drains: %v", err)
				}
			}
			if _, err := rwlock.Upgrade(w.Context(), up); !errors.Is(err, locker.ErrDraining) {
				w.Errorf("Upgrade while the Client drains: %v", err)
			}
			down, err := rwlock.Downgrade(w.Context(), up)
			if err != nil {
				w.Fatal(err)
			}
			time.Sleep(10 * locker.DefaultTTL)
			w.Unlock(held, reads, down)
			if held := client.Drain(w.Context()); len(held) > 0 {
				w.Errorf("%d locks are held", len(held))
			}
			w.empty()
		}
	})
}

// A hook that panics takes nothing with it.
func TestPanicOfAHook(t *testing.T) {
	stores(t, func(w *world) {
		written := w.lock(w.process().Exclusive())
		boom := func(lockertrace.Waiting) { panic("boom") }
		ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Waiting: boom})
		rw := w.process()
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()} {
			func() {
				defer func() {
					if recover() != "boom" {
						w.Error("the panic is gone")
					}
				}()
				_, _ = l.Lock(ctx, key)
			}()
		}
		waits := w.waiting(rw.Shared())
		w.Unlock(written)
		w.Unlock(<-waits)
		w.empty()
	})
}

// alarming has leases whose Err panics once, as a hook does that learns there of a loss.
type alarming struct {
	locker.Locker
	on *bool
}

func (a alarming) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := a.Locker.Lock(ctx, key, opts...)
	return alarm{l, a.on}, err
}

func (a alarming) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := a.Locker.TryLock(ctx, key, opts...)
	return alarm{l, a.on}, err
}

type alarm struct {
	locker.Lease
	on *bool
}

func (a alarm) Err() error {
	if *a.on {
		*a.on = false
		panic("boom")
	}
	return a.Lease.Err()
}

func TestHookThatPanicsAtUnlockLeavesNoLock(t *testing.T) {
	stores(t, func(w *world) {
		on := false
		rw := rwlock.New(alarming{w.Client(), &on})
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()} {
			lease := w.lock(l)
			func() {
				defer func() {
					if recover() != "boom" {
						w.Error("the panic is gone")
					}
				}()
				on = true
				_ = lease.Unlock(w.Context())
			}()
			w.empty()
		}
	})
}

// An error names the operation and the key of the caller.
func TestErrorsNameTheKeyOfTheCaller(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		wants := func(err error, op string, is error) {
			w.Helper()
			var of *locker.Error
			if !errors.As(err, &of) || of.Op != op || of.Key != key || !errors.Is(err, is) {
				w.Errorf("%v, want a %s of %s", err, op, key)
			}
		}
		views := []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()}
		written := w.lock(rw.Exclusive())
		for _, l := range views {
			_, err := l.TryLock(w.Context(), key)
			wants(err, "trylock", locker.ErrHeld)
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			_, err = l.Lock(ctx, key)
			wants(err, "lock", locker.ErrHeld)
			wants(err, "lock", context.DeadlineExceeded)
			cancel()
			_, err = l.Lock(ctx, key)
			wants(err, "lock", context.DeadlineExceeded)
			_, err = l.Lock(w.Context(), key, locker.TTL(1))
			wants(err, "lock", locker.ErrInvalid)
			if _, err = l.Lock(w.Context(), ""); !errors.Is(err, locker.ErrInvalid) {
				w.Errorf("an empty key: %v", err)
			}
		}
		w.Unlock(written)
		for _, l := range views {
			lease := w.lock(l)
			if lease.Key() != key {
				w.Errorf("the key of the lease is %q", lease.Key())
			}
			if err := lease.Extend(w.Context()); err != nil {
				w.Error(err)
			}
			err := lease.Extend(w.Context(), locker.TTL(time.Hour))
			if valid := time.Until(lease.Until()); err != nil || valid < 59*time.Minute {
				w.Errorf("Extend with a TTL of an hour: %v, valid for %v", err, valid)
			}
			ctx, cancel := locker.WithLease(w.Context(), lease)
			for _, l := range views {
				_, err := l.Lock(ctx, key)
				wants(err, "lock", locker.ErrReentrant)
			}
			cancel()
			w.Unlock(lease)
			wants(lease.Unlock(w.Context()), "unlock", locker.ErrUnlocked)
			wants(lease.Extend(w.Context()), "extend", locker.ErrUnlocked)
			wants(locker.Verify(w.Context(), lease), "verify", locker.ErrUnlocked)
			_, err = rwlock.Downgrade(w.Context(), lease)
			if l != views[0] {
				wants(err, "downgrade", locker.ErrUnlocked)
			}
			lease = w.lock(l)
			time.Sleep(time.Minute)
			w.lose()
			<-lease.Done()
			if lost := (*locker.LostError)(nil); !errors.As(lease.Err(), &lost) || time.Now().After(lease.Until()) {
				w.Errorf("lost: %v", lease.Err())
			}
			wants(lease.Unlock(w.Context()), "unlock", locker.ErrNotHeld)
		}
		w.empty()
	})
}

// A call that would wait for its own caller fails at once, also behind leases of other locks.
func TestLockThatWouldWaitForItself(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		outer, inner := w.lock(rw.Shared()), w.lock(w.Client(), locker.TTL(ttl))
		writer := w.waiting(w.process().Exclusive())
		ctx, cancel := locker.WithLease(w.Context(), locker.NewAllLease(outer, inner))
		defer cancel()
		another, err := rw.Exclusive().Lock(ctx, "another")
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel = locker.WithLease(ctx, another)
		defer cancel()
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()} {
			start := time.Now()
			if _, err := l.Lock(ctx, key); !errors.Is(err, locker.ErrReentrant) || time.Since(start) > 0 {
				w.Errorf("%v after %v", err, time.Since(start))
			}
		}
		w.Unlock(another, inner, outer)
		w.Unlock(<-writer)
		w.empty()
	})
}

// renaming is a Locker that puts something in front of the names of locks.
type renaming struct {
	locker.Locker
	front string
}

func (r renaming) Unwrap() locker.Locker { return r.Locker }

func (r renaming) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.Locker.Lock(ctx, r.front+key, opts...)
}

func (r renaming) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.Locker.TryLock(ctx, r.front+key, opts...)
}

func (r renaming) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	front := func(keys []string) (renamed []string) {
		for _, key := range keys {
			renamed = append(renamed, r.front+key)
		}
		return renamed
	}
	return locker.TryLockMany(ctx, r.Locker, locker.Many{Keys: front(m.Keys), N: m.N, Gates: front(m.Gates)}, opts...)
}

// A call that would wait for its own caller fails at once, also if the lease is of another RWLock with the same locks.
// It does not if these have other names, or are of another Client.
func TestLockThatWouldWaitForItselfByAnotherRWLock(t *testing.T) {
	stores(t, func(w *world) {
		c := w.Client()
		for _, tt := range []struct {
			one, other locker.Locker
			same       bool
		}{
			{c, c, true},
			{c, locker.Defaults(locker.TTL(ttl))(c), true},
			{renaming{c, "a/"}, locker.Defaults(locker.TTL(ttl))(renaming{c, "a/"}), true},
			{renaming{c, "a/"}, renaming{c, "b/"}, false},
			{c, renaming{c, "a/"}, false},
			{renaming{c, "a/"}, c, false},
		} {
			one, other := rwlock.New(tt.one), rwlock.New(tt.other)
			outer := w.lock(one.Shared())
			writer := w.waiting(rwlock.New(tt.one).Exclusive())
			ctx, cancel := locker.WithLease(w.Context(), outer)
			for _, l := range []locker.Locker{other.Shared(), other.Exclusive(), other.Upgradeable()} {
				start := time.Now()
				lease, err := l.Lock(ctx, key)
				if same := errors.Is(err, locker.ErrReentrant); same != tt.same || time.Since(start) > 0 {
					w.Errorf("%T beside %T: %v after %v", tt.other, tt.one, err, time.Since(start))
				}
				if err == nil {
					w.Unlock(lease)
				}
				lease, err = l.TryLock(ctx, key)
				if errors.Is(err, locker.ErrReentrant) {
					w.Errorf("TryLock of %T beside %T: %v", tt.other, tt.one, err)
				}
				if err == nil {
					w.Unlock(lease)
				}
			}
			cancel()
			w.Unlock(outer)
			w.Unlock(<-writer)
		}
	})
}

// bare is a middleware without optional interfaces.
type bare struct{ locker.Locker }

// A reader whose context carries a lease of another RWLock does not wait for it together with readers who wait for a
// writer that waits for that lease, whatever middleware is between.
func TestReaderDoesNotWaitForItselfBehindOthers(t *testing.T) {
	stores(t, func(w *world) {
		for _, wrap := range []locker.Middleware{
			func(l locker.Locker) locker.Locker { return l },
			func(l locker.Locker) locker.Locker { return renaming{l, "a/"} },
			func(l locker.Locker) locker.Locker { return bare{renaming{l, "a/"}} },
		} {
			c := w.Client()
			one, other := rwlock.New(wrap(c)), rwlock.New(wrap(c))
			outer := w.lock(one.Shared())
			writer := w.waiting(rwlock.New(wrap(w.Client())).Exclusive())
			reader := w.waiting(other.Shared())
			ctx, cancel := locker.WithLease(w.Context(), outer)
			ctx, soon := context.WithTimeout(ctx, time.Minute)
			for _, l := range []locker.Locker{other.Shared(), other.Exclusive(), other.Upgradeable()} {
				start := time.Now()
				if _, err := l.Lock(ctx, key); !errors.Is(err, locker.ErrReentrant) || time.Since(start) > 0 {
					w.Errorf("behind a %T: %v after %v", wrap(c), err, time.Since(start))
				}
			}
			soon()
			cancel()
			w.Unlock(outer)
			w.Unlock(<-writer)
			w.Unlock(<-reader)
		}
	})
}

// An RWLock knows its own leases, also if nobody can see what they are made of.
func TestReaderDoesNotWaitForItselfBehindOpaqueLeases(t *testing.T) {
	stores(t, func(w *world) {
		rw := rwlock.New(placestest.Opaque(w.Client()))
		outer := w.lock(rw.Shared())
		ctx, cancel := locker.WithLease(w.Context(), outer)
		ctx, soon := context.WithTimeout(ctx, time.Second)
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()} {
			if _, err := l.Lock(ctx, key); !errors.Is(err, locker.ErrReentrant) {
				w.Error(err)
			}
		}
		soon()
		cancel()
		w.Unlock(outer)
	})
}

// A Close while LockAll has one of its slots and waits for another one gives back the first.
func TestCloseWhileLockAllHasASlot(t *testing.T) {
	stores(t, func(w *world) {
		held := w.Lock(rwlock.New(w.Client()).Exclusive(), "z")
		closes := w.Client()
		failed := make(chan error)
		go func() {
			_, err := locker.LockAll(w.Context(), rwlock.New(closes).Shared(), []string{key, "z"}, locker.TTL(time.Hour))
			failed <- err
		}()
		go func() {
			l := locker.Defaults(locker.TTL(time.Hour))(closes)
			_, err := locker.LockAll(w.Context(), rwlock.New(l).Shared(), []string{key, "z"})
			failed <- err
		}()
		time.Sleep(time.Second)
		_ = closes.Close()
		for range 2 {
			if err := <-failed; !errors.Is(err, locker.ErrClosed) {
				w.Error(err)
			}
		}
		w.Unlock(held)
		w.empty()
	})
}

// oneByOne is a ManyLocker that acquires locks one by one, and does not end in a Client.
type oneByOne struct {
	locker.Locker
	acquired *atomic.Int64
}

func (o oneByOne) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	if m.N != 1 || len(m.Gates) > 0 {
		return nil, errors.ErrUnsupported
	}
	o.acquired.Add(1)
	lease, err := o.TryLock(ctx, m.Keys[1], opts...)
	leases := make([]locker.Lease, len(m.Keys))
	leases[1] = lease
	return leases, err
}

// The question whether a call would wait for itself acquires nothing, and leaves nothing behind.
func TestQuestionAboutAnotherRWLockTakesNothing(t *testing.T) {
	stores(t, func(w *world) {
		l := oneByOne{w.Client(), new(atomic.Int64)}
		outer := w.lock(rwlock.New(w.Client()).Shared(), locker.Label("outer"))
		ctx, cancel := locker.WithLease(w.Context(), outer)
		ctx, soon := context.WithTimeout(ctx, time.Second)
		_, _ = rwlock.New(l).Exclusive().Lock(ctx, key)
		soon()
		cancel()
		if n := l.acquired.Load(); n > 0 {
			w.Errorf("a slot was acquired %d times to answer a question", n)
		}
		w.Unlock(outer)
		w.empty()
	})
}

// lose takes all locks of the key away.
func (w *world) lose() {
	w.Helper()
	for i := range 64 {
		_, _ = w.Calls.ForceRelease(w.Context(), slot(i), "")
		_, _ = w.Calls.ForceRelease(w.Context(), group, "")
	}
}

// A key may have several holders, so nobody is shown as the one. Its locks are for operators.
func TestRWLockCannotBeInspectedAsALock(t *testing.T) {
	stores(t, func(w *world) {
		rw := rwlock.New(w.Client())
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()} {
			i, ok := locker.As[inspect.Inspector](l)
			if !ok {
				w.Fatal("the Locker below is inspected instead")
			}
			_, err := i.Inspect(w.Context(), key)
			_, force := i.ForceRelease(w.Context(), key, "")
			if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(force, errors.ErrUnsupported) {
				w.Errorf("%v, %v", err, force)
			}
		}
		if locks := rw.Locks(key); w.Groups && !slices.Equal(locks, []string{group}) || !w.Groups && len(locks) != 66 {
			w.Errorf("%d locks, want a group, or 64 slots, the gate and the intent lock", len(locks))
		}
	})
}

// A call that has waited tolerates a failing store, also if it fails between two locks that the call acquires.
func TestPatienceBetweenLocks(t *testing.T) {
	for name, of := range map[string]func(rw *rwlock.RWLock) locker.Locker{
		"shared": (*rwlock.RWLock).Shared, "exclusive": (*rwlock.RWLock).Exclusive,
		"upgradeable": (*rwlock.RWLock).Upgradeable,
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(w *world) {
				reads := w.lock(w.process().Shared())
				first := w.waiting(w.process().Exclusive())
				second := w.waiting(of(w.process()))
				w.Calls.Fail(locker.ErrUnavailable)
				w.Unlock(reads)
				time.Sleep(3 * time.Second)
				w.Calls.Fail(nil)
				w.Unlock(<-first)
				w.Unlock(<-second)
				w.empty()
			})
		})
	}
}

// An error does not call a waiter the holder of the key.
func TestErrorsSayWhetherOthersComeBefore(t *testing.T) {
	stores(t, func(w *world) {
		says := func(err error, want string) {
			w.Helper()
			var of *locker.Error
			if !errors.Is(err, locker.ErrHeld) || !errors.As(err, &of) || of.Err.Error() != want {
				w.Errorf("%v, want %q", err, want)
			}
		}
		reads := w.lock(w.process().Shared(), locker.Label("web-7:4211"))
		rw := w.process()
		_, err := rw.Exclusive().TryLock(w.Context(), key)
		says(err, "held by web-7:4211 for 3 s unless renewed")
		writes := w.waiting(w.process().Exclusive(), locker.Label("web-8:1"))
		const before = "others come before, the first of them is web-8:1"
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive()} {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			_, err := l.Lock(ctx, key)
			cancel()
			says(err, "timed out after 1s: "+before)
			if w.Steps { // otherwise TryLock looks at the slots, and not at the gate
				_, err := l.TryLock(w.Context(), key)
				says(err, before)
			}
		}
		w.Unlock(reads)
		w.Unlock(<-writes)
		w.empty()
	})
}

// When Unlock has returned, nothing of the call goes on in the background: the gate and the intent lock are open, and
// no other slot is waited for.
func TestUnlockLeavesNothingInTheBackground(t *testing.T) {
	for name, of := range map[string]func(rw *rwlock.RWLock) locker.Locker{
		"shared": (*rwlock.RWLock).Shared, "exclusive": (*rwlock.RWLock).Exclusive,
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(w *world) {
				rw := w.process()
				held := w.lock(rw.Exclusive())
				got := w.waiting(of(w.process()))
				w.Calls.Delay(10 * time.Millisecond)
				w.Unlock(held)
				lease := <-got
				synctest.Wait() // the gates are being released
				w.Calls.Delay(0)
				w.Unlock(lease)
				if w.Groups {
					w.Unlock(w.lock(rw.Exclusive()))
					return
				}
				w.Free(rw.Locks(key)...)
			})
		})
	}
}

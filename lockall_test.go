package locker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// stepping is a store that acquires several locks in one step.
type stepping struct{ *store }

func (s stepping) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) (gs []*backend.Grant, err error) {
	err = s.call(ctx, "acquire many", func() (err error) {
		gs, err = s.Backend.(backend.ManyAcquirer).AcquireMany(ctx, reqs, c)
		return err
	})
	return gs, err
}

// plain hides all but the two methods of a Locker, like a middleware of which LockAll knows nothing.
type plain struct{ locker.Locker }

// steps runs f with a Client of a store that acquires several locks in one step, and with one whose Locker cannot.
func steps(t *testing.T, f func(t *testing.T, s *store, l locker.Locker)) {
	t.Helper()
	t.Run("in one step", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			s := newStore()
			c := locker.NewClient(stepping{s})
			f(t, s, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("one by one", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) { f(t, s, plain{c}) })
	})
}

func mustLockAll(t *testing.T, l locker.Locker, keys []string, opts ...locker.Option) *locker.AllLease {
	t.Helper()
	lease, err := locker.TryLockAll(t.Context(), l, keys, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, l locker.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantKey checks which key err is about.
func wantKey(t *testing.T, err error, key string) {
	t.Helper()
	if e := (*locker.Error)(nil); !errors.As(err, &e) || e.Key != key {
		t.Errorf("got %v, want an error about %q", err, key)
	}
}

func TestLockAllAcquiresEachKeyOnce(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		before := mustLock(t, l, "a")
		mustUnlock(t, before)
		lease, err := locker.LockAll(t.Context(), l, []string{"c", "a", "b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		if keys := lease.Keys(); !slices.Equal(keys, []string{"a", "b", "c"}) {
			t.Errorf("the lease is for %v", keys)
		}
		for _, key := range lease.Keys() {
			_, err := l.TryLock(t.Context(), key)
			wantErr(t, err, locker.ErrHeld)
		}
		if lease.FenceOf("a") <= before.Fence() || lease.FenceOf("b") == 0 || lease.FenceOf("x") != 0 {
			t.Errorf("tokens %d, %d, %d", lease.FenceOf("a"), lease.FenceOf("b"), lease.FenceOf("x"))
		}
		if lease.Fence() != 0 || lease.Token() != "" || lease.Key() != "a,b,c" {
			t.Errorf("it pretends to be the lease of one lock: %d, %q, %q", lease.Fence(), lease.Token(), lease.Key())
		}
		mustUnlock(t, lease)
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnlocked)
		wantErr(t, lease.Err(), locker.ErrUnlocked)
		mustUnlock(t, mustLockAll(t, l, []string{"a", "b", "c"}))
	})
}

func TestLockAllRefusesBadCalls(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		for _, keys := range [][]string{nil, {"a", ""}, {"a", string(make([]byte, locker.MaxKey+1))}} {
			_, err := locker.LockAll(t.Context(), l, keys)
			wantErr(t, err, locker.ErrInvalid)
			_, err = locker.TryLockAll(t.Context(), l, keys)
			wantErr(t, err, locker.ErrInvalid)
		}
		_, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, locker.TTL(-1))
		wantErr(t, err, locker.ErrInvalid)
		mustUnlock(t, mustLockAll(t, l, []string{"a", "b"})) // nothing was left behind
		if s.count("extend") != 0 {
			t.Error("something was extended")
		}
	})
}

func TestTryLockAllAcquiresNothingIfOneIsHeld(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		held := mustLock(t, l, "b")
		_, err := locker.TryLockAll(t.Context(), l, []string{"a", "b", "c"}, locker.MinHold(time.Minute))
		wantErr(t, err, locker.ErrHeld)
		wantKey(t, err, "b")
		// MinHold is for leases that a caller had.
		mustUnlock(t, mustLockAll(t, l, []string{"a", "c"}))
		mustUnlock(t, held)
		mustUnlock(t, mustLockAll(t, l, []string{"a", "b", "c"}))
	})
}

func TestOptionsApplyToEachOfTheLocks(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		lease := mustLockAll(t, l, []string{"a", "b"}, locker.TTL(ttl), locker.Label("me"), locker.MinHold(time.Minute))
		for _, unlocked := range []bool{false, true} {
			if unlocked {
				mustUnlock(t, lease)
			}
			for _, key := range lease.Keys() {
				_, err := l.TryLock(t.Context(), key)
				wantErr(t, err, locker.ErrHeld)
				var held *locker.HeldError
				if !unlocked && (!errors.As(err, &held) || held.Label != "me" || held.Remaining > ttl) {
					t.Errorf("%v: label and TTL are not those of the call", err)
				}
			}
		}
		time.Sleep(time.Minute)
		mustUnlock(t, mustLockAll(t, l, []string{"a", "b"}))
	})
}

func TestAllFreeIsOneStep(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(stepping{s})
		for _, l := range []locker.Locker{c, locker.Wrap(c, locker.Defaults(), locker.Defaults(locker.TTL(ttl)))} {
			before := s.count("acquire many")
			lease, err := locker.LockAll(t.Context(), l, []string{"b", "a"}, locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			if n := s.count("acquire many") - before; n != 1 || s.count("acquire") != 0 {
				t.Errorf("%d steps and %d single attempts", n, s.count("acquire"))
			}
			mustUnlock(t, lease)
		}
		lease := mustLockAll(t, locker.Wrap(c, locker.Defaults(locker.TTL(ttl), locker.NoRenewal())), []string{"a", "b"})
		time.Sleep(ttl)
		wantErr(t, lease.Err(), locker.ErrLost)
		_ = c.Close()
	})
}

func TestLockAllWaits(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		b := mustLock(t, l, "b")
		start := time.Now()
		time.AfterFunc(3*ttl, func() { _ = b.Unlock(context.Background()) })
		lease, err := locker.LockAll(t.Context(), l, []string{"c", "b", "a"}, locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 3*ttl || took > 4*ttl { // the store does not notify, so the call polls
			t.Errorf("it waited for %v, want %v", took, 3*ttl)
		}
		time.Sleep(3 * ttl)
		if err := lease.Err(); err != nil {
			t.Errorf("it is not renewed: %v", err)
		}
		mustUnlock(t, lease)
	})
}

// A call whose context ends leaves nothing behind, and does not wait for a store that hangs.
func TestLockAllEndsWithItsContext(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		held := mustLock(t, l, "b")
		for _, op := range []string{"", "release"} {
			s.on(op, hang)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err := locker.LockAll(ctx, l, []string{"a", "b"})
			wantErr(t, err, context.DeadlineExceeded, locker.ErrHeld)
			wantKey(t, err, "b")
			if took := time.Since(start); took != time.Second {
				t.Errorf("it took %v", took)
			}
			cancel()
			time.Sleep(2 * time.Second) // the release in the background has failed
			s.on(op, nil)
			time.Sleep(locker.DefaultTTL)
			mustUnlock(t, mustLock(t, l, "a"))
		}
		mustUnlock(t, held)
	})
}

// Two programs that hold a lock while they call LockAll can wait for each other. MaxHold ends that.
func TestMaxHoldBreaksACircle(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		const most = time.Second
		z := mustLock(t, l, "z", locker.MaxHold(time.Hour))
		other := make(chan error)
		go func() {
			lease, err := locker.LockAll(t.Context(), l, []string{"a", "z"}, locker.MaxHold(most))
			if err == nil {
				err = lease.Unlock(t.Context())
			}
			other <- err
		}()
		synctest.Wait() // the other program holds a, and waits for z
		start := time.Now()
		a, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*most {
			t.Errorf("a was free after %v", took)
		}
		mustUnlock(t, a)
		mustUnlock(t, z)
		if err := <-other; err != nil {
			t.Errorf("the other program: %v", err)
		}
	})
}

// Without renewal, a lease that expires while LockAll waits is not returned.
func TestLockAllReturnsNoLeaseThatHasExpired(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		b := mustLock(t, l, "b")
		time.AfterFunc(5*ttl+ttl/2, func() { _ = b.Unlock(context.Background()) })
		lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)
	})
}

func TestLockAllEndsWhenTheClientIsClosed(t *testing.T) {
	for _, wrap := range []func(locker.Locker) locker.Locker{
		func(l locker.Locker) locker.Locker { return l }, func(l locker.Locker) locker.Locker { return plain{l} },
	} {
		virtual.Test(t, func(t *testing.T) {
			c, other := locker.NewClient(memory.NewBackend()), make(chan error)
			mustLock(t, c, "b")
			go func() {
				_, err := locker.LockAll(t.Context(), wrap(c), []string{"a", "b"})
				other <- err
			}()
			synctest.Wait()
			_ = c.Close()
			wantErr(t, <-other, locker.ErrClosed)
		})
	}
}

// endsAfter ends the caller's context after its Locker has answered that a lock is held.
type endsAfter struct {
	locker.Locker
	end context.CancelFunc
}

func (e endsAfter) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	defer e.end()
	return locker.TryLockMany(ctx, e.Locker, m, opts...)
}

// A context that ends between the step and the waiting has ended.
func TestLockAllWhoseContextEndsAfterTheStep(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := locker.NewClient(memory.NewBackend())
		held := mustLock(t, c, "b")
		ctx, cancel := context.WithCancel(t.Context())
		_, err := locker.LockAll(ctx, endsAfter{c, cancel}, []string{"a", "b"})
		wantErr(t, err, context.Canceled, locker.ErrHeld)
		wantKey(t, err, "b")
		mustUnlock(t, held)
		_ = c.Close()
	})
}

// slowToEnd is a Locker whose Lock returns a second after its context has ended.
type slowToEnd struct{ locker.Locker }

func (s slowToEnd) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := s.Locker.Lock(ctx, key, opts...)
	if err != nil {
		time.Sleep(time.Second)
	}
	return l, err
}

// A lock is lost while LockAll waits for another one, and the deadline of the caller passes before Lock has returned.
// The error is that of the caller's context, and not that of the one that LockAll has ended.
func TestLockAllReportsTheCallersContextOnly(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		held := mustLock(t, c, "b")
		ctx, cancel := context.WithTimeout(t.Context(), ttl+ttl/10)
		defer cancel()
		_, err := locker.LockAll(ctx, slowToEnd{c}, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		wantErr(t, err, context.DeadlineExceeded, locker.ErrHeld)
		wantKey(t, err, "b")
		mustUnlock(t, held)
	})
}

// Workers that lock random subsets of keys never wait for each other in a circle, never hold a part of what they asked
// for after a failure, and get growing tokens.
func TestCrowdOfLockAll(t *testing.T) {
	for name, wrap := range map[string]func(l locker.Locker) locker.Locker{
		"in one step": func(l locker.Locker) locker.Locker { return l },
		"one by one":  func(l locker.Locker) locker.Locker { return plain{l} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				b := memory.NewBackend()
				c := contention.Crowd{TTL: 500 * time.Millisecond, Crash: 50, Open: func() (*locker.Client, locker.Locker) {
					c := locker.NewClient(b)
					return c, wrap(c)
				}}
				if lost := c.Run(t, contention.CrowdCalls(2000)); lost > 0 {
					t.Errorf("%d leases were lost", lost)
				}
			})
		})
	}
}

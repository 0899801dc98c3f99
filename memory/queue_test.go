package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// queue calls b.Queue on another goroutine, and returns when that call waits or has ended.
func queue(ctx context.Context, b *memory.Backend, req backend.Request) <-chan error {
	wait, _ := clientwait.New(ctx, locker.Patience(0))
	return queueWith(ctx, b, req, wait)
}

func queueWith(ctx context.Context, b *memory.Backend, req backend.Request, wait backend.Wait) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := b.Queue(ctx, req, wait)
		result <- err
	}()
	synctest.Wait()
	return result
}

// soon checks that a call has returned the error want.
func soon(t *testing.T, what string, result <-chan error, want error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-result:
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	default:
		t.Errorf("%s: still waits", what)
	}
}

func waits(t *testing.T, what string, result <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-result:
		t.Errorf("%s: returned %v, should wait", what, err)
	default:
	}
}

func held(t *testing.T, b *memory.Backend, token string) {
	t.Helper()
	if _, err := b.Acquire(t.Context(), request("k", token)); err != nil {
		t.Fatal(err)
	}
}

func release(t *testing.T, b *memory.Backend, token string) {
	t.Helper()
	if err := b.Release(t.Context(), request("k", token)); err != nil {
		t.Errorf("release by %s: %v", token, err)
	}
}

func TestQueueIsInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		held(t, b, "a")
		first := queue(t.Context(), b, request("k", "b"))
		second := queue(t.Context(), b, request("k", "c"))
		release(t, b, "a")
		if _, err := b.Acquire(t.Context(), request("k", "d")); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("a caller that does not wait came before the waiters: %v", err)
		}
		soon(t, "b", first, nil)
		waits(t, "c", second)
		release(t, b, "b")
		soon(t, "c", second, nil)
		release(t, b, "c")
		if n := memory.Len(b); n != 0 {
			t.Errorf("%d locks are still stored", n)
		}
	})
}

// The holder dies. The first waiter is granted the lock and dies as well.
func TestQueueGoesOnWhenLocksExpire(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		held(t, b, "a")
		first := queue(t.Context(), b, request("k", "b"))
		second := queue(t.Context(), b, request("k", "c"))
		time.Sleep(time.Second) // the TTL
		soon(t, "b", first, nil)
		if err := b.Extend(t.Context(), request("k", "b")); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		soon(t, "c", second, nil)
		release(t, b, "c")
	})
}

// A context ends before, with or after the grant. The lock then belongs to the caller or to the next waiter.
func TestQueueWhenTheContextEnds(t *testing.T) {
	for range 50 {
		for _, when := range []string{"before", "at the same time", "with the client's end"} {
			virtual.Test(t, func(t *testing.T) {
				b := memory.NewBackend()
				held(t, b, "a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req := request("k", "b")
				wait, closes := clientwait.New(ctx, locker.Patience(0))
				first := queueWith(ctx, b, req, wait)
				second := queue(t.Context(), b, request("k", "c"))
				want := locker.ErrHeld
				switch when {
				case "before":
					cancel()
					soon(t, "b", first, want)
				case "at the same time":
					cancel()
				case "with the client's end":
					closes()
					want = locker.ErrClosed
				}
				release(t, b, "a")
				if when != "before" {
					synctest.Wait()
					if err := <-first; err == nil {
						waits(t, "c", second)
						release(t, b, "b")
					} else if !errors.Is(err, want) {
						t.Errorf("%s: %v", when, err)
					}
				}
				soon(t, "c", second, nil)
				release(t, b, "c")
				if n := memory.Len(b); n != 0 {
					t.Errorf("%d locks are still stored", n)
				}
			})
		}
	}
}

// A lock that stays taken after its release is handed to the next waiter when that time is over. The waiter does not
// wait until the TTL would have ended.
func TestQueueWhenTheLockIsKept(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		long := request("k", "a")
		long.TTL = time.Hour
		if _, err := b.Acquire(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		result := queue(t.Context(), b, request("k", "b"))
		long.Keep = 2500 * time.Millisecond
		if err := b.Release(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		time.Sleep(long.Keep - 1)
		waits(t, "b", result)
		start := time.Now()
		if err := <-result; err != nil {
			t.Error(err)
		}
		if late := time.Since(start); late > time.Second {
			t.Errorf("b got the lock %v after it was free", late)
		}
		release(t, b, "b")
	})
}

// A grant counts from when the lock was granted, however long those who watch the lock take.
func TestGrantOfAWaiterCountsFromTheGrant(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		held(t, b, "a")
		grants := make(chan backend.Grant, 1)
		go func() {
			req := request("k", "b")
			wait, _ := clientwait.New(t.Context(), locker.Patience(0))
			g, err := b.Queue(t.Context(), req, wait)
			if err != nil {
				t.Error(err)
			}
			grants <- g
		}()
		synctest.Wait()
		stop, err := b.Watch("k", func() { time.Sleep(100 * time.Millisecond) })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		granted := time.Now()
		release(t, b, "a")
		if late := (<-grants).Sent.Sub(granted); late > 0 {
			t.Errorf("the grant counts from %v after the lock was granted", late)
		}
	})
}

// The owner after the one that a waiter has seen may have a shorter TTL, and die.
func TestWaiterNoticesAShorterLock(t *testing.T) {
	for _, forced := range []bool{false, true} {
		noticesAShorterLock(t, forced)
	}
}

func noticesAShorterLock(t *testing.T, forced bool) {
	virtual.Test(t, func(t *testing.T) {
		store := memory.NewBackend()
		a, b, c := locker.NewClient(store), locker.NewClient(store), locker.NewClient(store)
		first, err := a.Lock(t.Context(), "k", locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go func() {
			_, err := b.Lock(t.Context(), "k", locker.TTL(time.Second), locker.NoRenewal()) // and is never released
			if err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		done := make(chan time.Duration, 1)
		go func() {
			l, err := c.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			done <- time.Since(start)
			_ = l.Unlock(t.Context())
		}()
		synctest.Wait()
		if forced {
			_, err = store.ForceRelease(t.Context(), "k", "")
		} else {
			err = first.Unlock(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if took := <-done; took > 2*time.Second {
			t.Errorf("the waiter has got the lock after %v; it was free after 1 s", took)
		}
	})
}

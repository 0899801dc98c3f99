package locker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

// traced adds a Trace to each call.
type traced struct {
	locker.Locker
	trace *lockertrace.Trace
}

func (l traced) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return l.Locker.Lock(lockertrace.With(ctx, l.trace), key, opts...)
}

func (l traced) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return l.Locker.TryLock(lockertrace.With(ctx, l.trace), key, opts...)
}

// alarmed returns a Locker over c whose leases call a hook that panics when they are lost.
func alarmed(c *locker.Client) locker.Locker {
	return traced{c, &lockertrace.Trace{Lost: func(error) { panic("boom") }}}
}

// wantPanic calls f, which panics with what the hook of alarmed does.
func wantPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if p := recover(); p != "boom" {
			t.Errorf("panic %v", p)
		}
	}()
	f()
}

// The release of a lock follows a look whether it is lost. The hook that this look calls must not prevent the release.
func TestHookThatPanicsAtTheEndLeavesNoLock(t *testing.T) {
	keys := []string{"a", "b", "c"}
	for name, hold := range map[string]func(ctx context.Context, l locker.Locker, sleep func()){
		"Do": func(ctx context.Context, l locker.Locker, sleep func()) {
			_ = locker.Do(ctx, l, "a", func(context.Context) error { sleep(); return nil }, locker.TTL(ttl))
		},
		"TryDo": func(ctx context.Context, l locker.Locker, sleep func()) {
			_ = locker.TryDo(ctx, l, "a", func(context.Context) error { sleep(); return nil }, locker.TTL(ttl))
		},
		"Mutex": func(_ context.Context, l locker.Locker, sleep func()) {
			m := locker.NewMutex(l, "a", locker.TTL(ttl))
			m.Lock()
			sleep()
			m.Unlock()
		},
		"LockAll": func(ctx context.Context, l locker.Locker, sleep func()) {
			lease, _ := locker.LockAll(ctx, l, keys, locker.TTL(ttl))
			sleep()
			_ = lease.Unlock(ctx)
		},
		"Unlock": func(ctx context.Context, l locker.Locker, sleep func()) {
			lease, _ := l.TryLock(ctx, "a", locker.TTL(ttl))
			sleep()
			_ = lease.Unlock(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := memory.NewBackend()
				c := locker.NewClient(s)
				// While the machine is suspended, the clock of the lock in the store stands still.
				suspend := locker.SleepMachine(t)
				wantPanic(t, func() { hold(t.Context(), alarmed(c), func() { suspend(ttl) }) })
				for _, key := range keys {
					_, err := s.Acquire(t.Context(), backend.Request{Key: key, Token: "next", TTL: time.Minute})
					if err != nil {
						t.Errorf("%s is still taken: %v", key, err)
					}
				}
				_ = c.Close()
			})
		})
	}
}

func TestHookThatPanicsInCloseStopsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		var leases []locker.Lease
		for i := range 10 {
			leases = append(leases, mustLock(t, alarmed(c), fmt.Sprint(i), locker.TTL(ttl)))
		}
		wantPanic(t, func() { _ = c.Close() })
		for _, l := range leases {
			if !isDone(l) {
				t.Errorf("Done of %s is open", l.Key())
			}
			wantErr(t, l.Err(), locker.ErrLost, locker.ErrClosed)
		}
		if !s.closed {
			t.Error("the backend is open")
		}
	})
}

// The hooks of one lease do not delay the Done of another one, when all end in Close.
func TestCloseTellsOfAllLeasesBeforeItCallsHooks(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		slow := traced{c, &lockertrace.Trace{Lost: func(error) { time.Sleep(time.Second) }}}
		start := time.Now()
		told := make(chan time.Duration, 10)
		for i := range cap(told) {
			lease := mustLock(t, slow, fmt.Sprint(i))
			go func() {
				<-lease.Done()
				told <- time.Since(start)
			}()
		}
		_ = c.Close()
		for range cap(told) {
			if after := <-told; after > 0 {
				t.Errorf("Done of a lease was closed after %v", after)
			}
		}
	})
}

// An AllLease knows of the end of its locks before the hook of another lease is called.
func TestErrOfAnAllLeaseDoesNotWaitForHooks(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		var all *locker.AllLease
		var asked []error
		first := traced{c, &lockertrace.Trace{Lost: func(error) { asked = append(asked, all.Err()) }}}
		mustLock(t, first, "0")
		all = mustLockAll(t, c, []string{"1", "2"})
		if err := all.Err(); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if len(asked) != 1 || asked[0] == nil {
			t.Errorf("a hook of another lease has got %v from Err, want one error", asked)
		}
	})
}

// A program that waits for Done and calls Unlock at once does so after the hook, so telemetry records a loss as a loss.
func TestHookOfALossComesBeforeUnlock(t *testing.T) {
	for range 20 { // the program and the timer of the lease run at the same time
		virtual.Test(t, func(t *testing.T) {
			c := locker.NewClient(memory.NewBackend())
			defer c.Close()
			var told atomic.Bool
			trace := lockertrace.With(t.Context(), &lockertrace.Trace{Lost: func(error) { told.Store(true) }})
			lease, err := c.Lock(trace, "k", locker.MaxHold(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			<-lease.Done()
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if !told.Load() {
				t.Fatal("Unlock has returned before the hook was called")
			}
		})
	}
}

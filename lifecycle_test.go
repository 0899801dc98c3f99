package locker_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// lifeTrace records the events of a lease.
func lifeTrace(ctx context.Context, log func(string)) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{
		Renewed: func(r lockertrace.Renewal) {
			switch {
			case r.Err == nil:
				log("renewed")
			case errors.Is(r.Err, locker.ErrLost):
				log("renewal: lost")
			default:
				log("renewal: unknown")
			}
		},
		InDoubt: func(err error) { log("in doubt") },
		Lost:    func(err error) { log("lost: " + string(err.(*locker.LostError).Reason)) },
	})
}

func TestTraceOfALease(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, s *store, c *locker.Client, l locker.Lease)
		want []string
	}{
		{"renewed and unlocked", func(t *testing.T, _ *store, _ *locker.Client, l locker.Lease) {
			time.Sleep(ttl + 1)
			_ = l.Unlock(t.Context())
		}, []string{"renewed", "renewed", "renewed"}},
		{"in doubt twice", func(t *testing.T, s *store, _ *locker.Client, l locker.Lease) {
			s.on("extend", unavailable)
			time.Sleep(ttl/3 + ttl/5 + 1) // the renewal after a third has failed, and two more after a tenth each
			s.on("extend", nil)
			time.Sleep(ttl / 10)
			s.on("extend", unavailable)
			time.Sleep(ttl / 3)
			_ = l.Unlock(t.Context())
		}, []string{
			"renewal: unknown", "in doubt", "renewal: unknown", "renewal: unknown", "renewed", "renewal: unknown",
			"in doubt",
		}},
		{"extended by hand while in doubt", func(t *testing.T, s *store, _ *locker.Client, l locker.Lease) {
			s.on("extend", unavailable)
			time.Sleep(ttl/3 + 1)
			s.on("extend", nil)
			_ = l.Extend(t.Context())
			s.on("extend", unavailable)
			time.Sleep(ttl / 10)
			_ = l.Unlock(t.Context())
		}, []string{"renewal: unknown", "in doubt", "renewal: unknown", "in doubt"}},
		{"deleted", func(t *testing.T, s *store, _ *locker.Client, l locker.Lease) {
			s.steal(t, l, 0)
			<-l.Done()
			_ = l.Unlock(t.Context())
		}, []string{"lost: gone", "renewal: lost"}},
		{"taken over", func(t *testing.T, s *store, _ *locker.Client, l locker.Lease) {
			s.steal(t, l, time.Hour)
			<-l.Done()
			_ = l.Unlock(t.Context())
		}, []string{"lost: taken over", "renewal: lost"}},
		{"unlocked during a renewal", func(t *testing.T, s *store, _ *locker.Client, l locker.Lease) {
			s.on("extend", hang)
			time.Sleep(ttl/3 + 1)
			_ = l.Unlock(t.Context())
		}, nil},
		{"closed", func(_ *testing.T, s *store, c *locker.Client, _ locker.Lease) {
			s.on("extend", hang)
			time.Sleep(ttl/3 + 1)
			_ = c.Close()
		}, []string{"lost: closed"}},
		{"expired", func(t *testing.T, s *store, _ *locker.Client, l locker.Lease) {
			s.on("extend", func(ctx context.Context, _ func() error) error {
				s.on("extend", hang)
				return locker.ErrUnavailable
			})
			<-l.Done()
			_ = l.Unlock(t.Context())
		}, []string{
			"renewal: unknown", "in doubt", "renewal: unknown", "renewal: unknown", "renewal: unknown", "lost: expired",
			"renewal: unknown",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				var mu sync.Mutex
				var got []string
				l, err := c.Lock(lifeTrace(t.Context(), func(event string) {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, event)
				}), "k", locker.TTL(ttl))
				if err != nil {
					t.Fatal(err)
				}
				tt.do(t, s, c, l)
				_ = l.Err()
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				if !slices.Equal(got, tt.want) {
					t.Errorf("got  %q\nwant %q", got, tt.want)
				}
			})
		})
	}
}

// Hooks are called without a mutex held, so that a hook that calls the lease does not hang.
func TestHooksMayLookAtTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		var l locker.Lease
		looked := 0
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
			Lost:    func(error) { _, _ = l.Err(), l.Until(); looked++ },
			InDoubt: func(error) { _, _ = l.Err(), l.Until(); looked++ },
		})
		l, _ = c.TryLock(ctx, "k", locker.TTL(ttl))
		s.on("extend", unavailable)
		<-l.Done()
		synctest.Wait()
		if looked != 2 {
			t.Errorf("%d hooks were called", looked)
		}
	})
}

func TestRenewalsCarryTheTrace(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		trace := &lockertrace.Trace{}
		_, err := c.TryLock(lockertrace.With(t.Context(), trace), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		seen := make(chan *lockertrace.Trace, 1)
		s.on("extend", func(ctx context.Context, next func() error) error {
			seen <- lockertrace.From(ctx)
			return next()
		})
		if <-seen != trace {
			t.Error("the backend does not see the Trace when a lease is renewed, so nobody learns of its votes")
		}
	})
}

func TestCloseWakesWaitersAtOnce(t *testing.T) {
	for range 20 { // repeated, because a poll could wake a waiter by chance
		bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
			mustLock(t, c, "k")
			time.AfterFunc(time.Second, func() { _ = c.Close() })
			start := time.Now()
			_, err := c.Lock(t.Context(), "k")
			wantErr(t, err, locker.ErrClosed)
			if d := time.Since(start); d != time.Second {
				t.Errorf("returned %v after Close", d-time.Second)
			}
		})
	}
}

func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		mustLock(t, c, "k", locker.TTL(ttl))
		s.on("extend", func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		})
		time.Sleep(ttl/3 + 1)
		start := time.Now()
		go func() { _ = c.Close() }()
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("the second call returned after %v, the first after a second", d)
		}
	})
}

// A lock that is granted while the Client is being closed is released before TryLock returns, because the backend may
// be closed after that.
func TestGrantedWhileClosing(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		s.on("acquire", func(_ context.Context, next func() error) error {
			go func() { _ = c.Close() }()
			time.Sleep(time.Millisecond)
			cancel() // the release must not depend on the caller's context
			return next()
		})
		released := false
		s.on("release", func(ctx context.Context, next func() error) error {
			time.Sleep(time.Millisecond)
			released = ctx.Err() == nil
			return next()
		})
		_, err := c.TryLock(ctx, "k")
		wantErr(t, err, locker.ErrClosed, context.Canceled)
		if !released {
			t.Error("it was left to a goroutine, or given up with the caller")
		}
	})
}

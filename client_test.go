package locker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/memory"
)

func TestLockWaitsForHolder(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		held := mustLock(t, c, "k")
		go func() {
			time.Sleep(time.Minute) // longer than the TTL: renewal keeps it
			if err := held.Unlock(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		start := time.Now()
		next, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < time.Minute || waited > time.Minute+100*time.Millisecond {
			t.Errorf("waited %v for a lock that was held for a minute", waited)
		}
		if next.Fence() <= held.Fence() {
			t.Errorf("fence %d is not greater than the earlier %d", next.Fence(), held.Fence())
		}
		_ = next.Unlock(t.Context())
	})
}

func TestWaiterIsServedWhenTheHolderDies(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		dead := mustLock(t, c, "k", locker.TTL(50*time.Millisecond), locker.NoRenewal())
		start := time.Now()
		l, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		// The waiter knows the remaining TTL, and does not wait for the next poll.
		if waited := time.Since(start); waited > 60*time.Millisecond {
			t.Errorf("waited %v for a lease of 50ms", waited)
		}
		if !time.Now().After(dead.Until()) {
			t.Error("the lock was granted while the earlier lease claims to be valid")
		}
		_ = l.Unlock(t.Context())
	})
}

func TestBadInputSendsNothing(t *testing.T) {
	tests := []struct {
		name, key string
		opts      []locker.Option
		want      string
	}{
		{"no key", "", nil, "key is empty"},
		{"long key", strings.Repeat("x", 1<<20), nil, "1048576 bytes"},
		{"no TTL", "k", []locker.Option{locker.TTL(0)}, "below the minimum of 10ms"},
		{"one nanosecond", "k", []locker.Option{locker.TTL(1)}, "TTL 1ns"},
		{"negative", "k", []locker.Option{locker.TTL(-time.Second)}, "TTL -1s"},
		{"absurd", "k", []locker.Option{locker.TTL(1 << 62)}, "above the maximum"},
		{"negative MaxHold", "k", []locker.Option{locker.MaxHold(-time.Second)}, "MaxHold -1s is negative"},
		{"short MaxHold", "k", []locker.Option{locker.MaxHold(time.Millisecond)},
			"MaxHold 1ms is below the minimum of 10ms"},
		{"negative MinHold", "k", []locker.Option{locker.MinHold(-1)}, "MinHold -1ns is negative"},
		{"a separator in the label", "k", []locker.Option{locker.Label("a|b")},
			`Label "a|b": a label has at most 64 bytes of printable UTF-8 text, without | and +`},
		{"long label", "k", []locker.Option{locker.Label(strings.Repeat("x", 65))}, `x": a label has at most 64 bytes`},
		{"absurd MinHold", "k", []locker.Option{locker.MinHold(25 * time.Hour)},
			"MinHold 25h0m0s is above the maximum of 24h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				for _, lock := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){c.Lock,
					c.TryLock} {
					l, err := lock(t.Context(), tt.key, tt.opts...)
					if err == nil || l != nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 300 {
						t.Errorf("got %v, %v; want an error with %q, not long", l, err, tt.want)
					}
					wantErr(t, err, locker.ErrInvalid)
				}
				if n := s.count("acquire"); n != 0 {
					t.Errorf("%d attempts were sent", n)
				}
			})
		})
	}
}

func TestTokensAreFreshForEveryAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		held := mustLock(t, c, "k")
		time.AfterFunc(3*time.Second, func() { _ = held.Unlock(context.Background()) })
		l, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock(t.Context())
		seen := map[string]bool{}
		for _, token := range s.tokens {
			if seen[token] {
				t.Errorf("token %s was used for two attempts", token)
			}
			seen[token] = true
			if len(token) != 27 { // base64 of 20 bytes
				t.Errorf("token %q has not 20 random bytes", token)
			}
		}
		if len(seen) < 5 {
			t.Errorf("only %d attempts were made: the test shows nothing", len(seen))
		}
	})
}

func TestPollsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		mustLock(t, c, "k")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := c.Lock(ctx, "k")
		wantErr(t, err, locker.ErrHeld, context.DeadlineExceeded)
		// A pause takes 50 to 100 ms once the back-off has grown.
		if n := s.count("acquire"); n < 100 || n > 220 {
			t.Errorf("%d attempts in 10 s", n)
		}
	})
}

func TestManyGoroutinesExclude(t *testing.T) {
	store := memory.NewBackend()
	var clients [4]*locker.Client
	for i := range clients {
		clients[i] = locker.NewClient(store)
	}
	var n, inside int // guarded only by the lock, so the race detector also finds violations
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for range 25 {
				l, err := clients[g%len(clients)].Lock(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				inside++
				if inside != 1 {
					t.Errorf("%d holders at once", inside)
				}
				n++
				inside--
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n != 400 {
		t.Errorf("counted %d of 400", n)
	}
	for _, c := range clients {
		_ = c.Close()
	}
}

func TestCloseEndsLeasesButNotLocks(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if !isDone(l) {
			t.Error("Done is open after Close")
		}
		wantErr(t, l.Err(), locker.ErrLost, locker.ErrClosed)
		wantErr(t, l.Extend(t.Context()), locker.ErrLost, locker.ErrClosed)
		if s.count("release") != 0 || !s.closed {
			t.Error("Close must close the backend and release nothing: the holder may still be at work")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.count("extend"); n != 0 {
			t.Errorf("%d renewals after Close", n)
		}
	})
}

// A grant that arrives while the Client is being closed must be released while the backend is still open.
func TestCloseWaitsForAttemptsToBeUndone(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("acquire", func(_ context.Context, next func() error) error {
			err := next()
			time.Sleep(100 * time.Millisecond)
			return err
		})
		s.on("release", func(_ context.Context, next func() error) error {
			if s.closed {
				t.Error("the backend was closed before the release")
			}
			return next()
		})
		time.AfterFunc(50*time.Millisecond, func() { _ = c.Close() })
		_, err := c.Lock(t.Context(), "k")
		wantErr(t, err, locker.ErrClosed)
		synctest.Wait()
		if s.count("release") != 1 {
			t.Error("the grant was not released")
		}
		if !s.closed {
			t.Error("the backend was not closed")
		}
	})
}

// If the backend does not implement Inspector, the error says so, and does not match ErrUnavailable.
func TestInspectIsOptional(t *testing.T) {
	c := locker.NewClient(struct{ backend.Backend }{memory.NewBackend()})
	_, err := c.Inspect(t.Context(), "k")
	_, forced := c.ForceRelease(t.Context(), "k", "")
	for _, err := range []error{err, forced} {
		if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Inspect(t.Context(), "k"); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	c = memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Inspect(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Inspect(t.Context(), "k"); !errors.Is(err, locker.ErrClosed) {
		t.Error(err)
	}
}

package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
)

// verifying is a store that can verify.
type verifying struct{ *store }

func (v verifying) Verify(ctx context.Context, req backend.Request) error {
	return v.call(ctx, "verify", func() error { return v.Backend.(backend.Verifier).Verify(ctx, req) })
}

// verified is bubble with a Client whose leases can be verified, and a lease.
func verified(t *testing.T, f func(t *testing.T, s *store, l locker.Lease), opts ...locker.Option) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(verifying{s})
		f(t, s, mustLock(t, c, "k", append(opts, locker.TTL(ttl))...))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestVerifyAsksTheStoreOnce(t *testing.T) {
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		for n := 1; n <= 3; n++ {
			until := l.Until()
			if err := locker.Verify(t.Context(), l); err != nil || s.count("verify") != n {
				t.Errorf("got %v, and %d requests after %d calls", err, s.count("verify"), n)
			}
			if !l.Until().Equal(until) {
				t.Error("it moved Until")
			}
		}
		if s.count("extend") != 0 {
			t.Error("it extended the lease")
		}
	})
}

// A refusal ends the lease, as it does when it is the answer to a renewal.
func TestVerifyNoticesALoss(t *testing.T) {
	for reason, by := range map[locker.LostReason]time.Duration{locker.LostGone: 0, locker.LostTakenOver: time.Minute} {
		verified(t, func(t *testing.T, s *store, l locker.Lease) {
			s.steal(t, l, by)
			err := locker.Verify(t.Context(), l)
			wantErr(t, err, locker.ErrLost)
			if lost := (*locker.LostError)(nil); !errors.As(err, &lost) || lost.Reason != reason {
				t.Errorf("got %v, want the reason %q", err, reason)
			}
			wantErr(t, l.Err(), locker.ErrLost)
			if !isDone(l) {
				t.Error("Done is open")
			}
		})
	}
}

// A lease that has ended is not verified, whatever the store might say.
func TestVerifyOfALeaseThatHasEnded(t *testing.T) {
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		<-l.Done()
		wantErr(t, locker.Verify(t.Context(), l), locker.ErrLost)
		if s.count("verify") != 0 {
			t.Error("it asked the store")
		}
	}, locker.NoRenewal())
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, locker.Verify(t.Context(), l), locker.ErrUnlocked)
		if s.count("verify") != 0 {
			t.Error("it asked the store")
		}
	})
}

// An answer that comes after the end of the lease is no success.
func TestVerifyThatIsAnsweredTooLate(t *testing.T) {
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		s.on("verify", func(_ context.Context, next func() error) error {
			err := next()
			time.Sleep(ttl)
			return err
		})
		wantErr(t, locker.Verify(t.Context(), l), locker.ErrLost)
	}, locker.NoRenewal())
}

func TestVerifyWithoutAnAnswer(t *testing.T) {
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		s.on("verify", unavailable)
		wantErr(t, locker.Verify(t.Context(), l), locker.ErrUnavailable)
		s.on("verify", hang)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		wantErr(t, locker.Verify(ctx, l), locker.ErrUnavailable, context.DeadlineExceeded)
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("returned after %v", took)
		}
		if err := l.Err(); err != nil {
			t.Errorf("no answer was taken for a loss: %v", err)
		}
	})
}

func TestUnlockInterruptsVerify(t *testing.T) {
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		s.on("verify", hang)
		done := make(chan error)
		go func() { done <- locker.Verify(t.Context(), l) }()
		synctest.Wait()
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, <-done, locker.ErrUnlocked)
	})
}

// wrapping is a Lease of middleware.
type wrapping struct{ locker.Lease }

func (w wrapping) Unwrap() locker.Lease { return w.Lease }

func TestVerifyFindsTheLease(t *testing.T) {
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		if err := locker.Verify(t.Context(), wrapping{wrapping{l}}); err != nil || s.count("verify") != 1 {
			t.Errorf("behind two wrappers: %v", err)
		}
		hidden := struct{ locker.Lease }{l}
		if err := locker.Verify(t.Context(), hidden); !errors.Is(err, errors.ErrUnsupported) || s.count("verify") != 1 {
			t.Errorf("hidden by middleware: %v", err)
		}
	})
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		err := locker.Verify(t.Context(), l)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("of a backend that is no Verifier: %v", err)
		}
		wantErr(t, err)
		if l.Err() != nil {
			t.Error("the lease has ended")
		}
	})
}

// binding is a store that can verify leases, and bind numbers to their locks.
type binding struct{ verifying }

func (b binding) Bind(ctx context.Context, req backend.Request, to any) error {
	if _, ok := to.(int); !ok {
		return errors.ErrUnsupported
	}
	return b.Verify(ctx, req)
}

type queuingBinding struct {
	queuing
	b binding
}

func (q queuingBinding) Bind(ctx context.Context, req backend.Request, to any) error {
	return q.b.Bind(ctx, req, to)
}

func (q queuingBinding) Verify(ctx context.Context, req backend.Request) error {
	return q.b.Verify(ctx, req)
}

// Bind reaches the backend behind middleware, for each of several locks. What cannot be bound is no failure of the
// store.
func TestBind(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, _ *locker.Client) {
		c := locker.NewClient(binding{verifying{s}})
		l := wrapping{mustLock(t, c, "k")}
		if err := locker.Bind(t.Context(), l, 1); err != nil || s.count("verify") != 1 {
			t.Errorf("behind a wrapper: %v", err)
		}
		all := mustLockAll(t, c, []string{"a", "b"})
		if err := locker.Bind(t.Context(), all, 1); err != nil || s.count("verify") != 3 {
			t.Errorf("of two locks: %v", err)
		}
		for what, l := range map[string]locker.Lease{
			"of an unknown type":               l,
			"of an unknown type, to two locks": all,
			"hidden by middleware":             struct{ locker.Lease }{l},
		} {
			err := locker.Bind(t.Context(), l, "text")
			wantErr(t, err)
			if !errors.Is(err, errors.ErrUnsupported) || l.Err() != nil || s.count("verify") != 3 {
				t.Errorf("%s: %v", what, err)
			}
		}
		s.steal(t, l, time.Minute)
		wantErr(t, locker.Bind(t.Context(), l, 1), locker.ErrLost)
		s.on("verify", func(_ context.Context, next func() error) error {
			err := next()
			time.Sleep(ttl)
			return err
		})
		late := mustLock(t, c, "late", locker.TTL(ttl), locker.NoRenewal())
		wantErr(t, locker.Bind(t.Context(), late, 1), locker.ErrLost)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	verified(t, func(t *testing.T, s *store, l locker.Lease) {
		err := locker.Bind(t.Context(), l, 1)
		wantErr(t, err)
		if !errors.Is(err, errors.ErrUnsupported) || l.Err() != nil || s.count("verify") != 0 {
			t.Errorf("of a backend that is no Binder: %v", err)
		}
	})
}

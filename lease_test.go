package locker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
)

const ttl = 3 * time.Second

func TestUntilIsMeasuredFromBeforeTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("acquire", func(_ context.Context, next func() error) error {
			time.Sleep(time.Second)
			err := next()
			time.Sleep(time.Second)
			return err
		})
		start := time.Now()
		l := mustLock(t, c, "k", locker.TTL(ttl))
		if got, want := l.Until().Sub(start), ttl-ttl/100-2*time.Millisecond; got != want {
			t.Errorf("valid for %v from the start of the request, want %v", got, want)
		}
	})
}

func TestDoneClosesBeforeUntil(t *testing.T) {
	for _, d := range []time.Duration{locker.MinTTL, 100 * time.Millisecond, ttl, time.Hour, locker.MaxTTL} {
		bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
			l := mustLock(t, c, "k", locker.TTL(d), locker.NoRenewal())
			<-l.Done()
			early := time.Until(l.Until())
			if early < 0 || early > d/50+2*time.Millisecond {
				t.Errorf("TTL %v: Done closed %v before Until", d, early)
			}
			wantErr(t, l.Err(), locker.ErrLost)
			wantErr(t, l.Extend(t.Context()), locker.ErrLost)
		})
	}
}

func TestRenewalKeepsTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		for range 100 {
			time.Sleep(ttl / 3)
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := c.TryLock(t.Context(), "k"); err == nil {
				t.Fatal("the lock was free while it was held")
			}
		}
		if n := s.count("extend"); n < 95 || n > 101 {
			t.Errorf("%d renewals in 100 thirds of the TTL", n)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		n := s.count("extend")
		time.Sleep(10 * ttl)
		if s.count("extend") != n {
			t.Error("renewed after Unlock")
		}
	})
}

func TestUnknownRenewalIsRetriedUntilTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		s.on("extend", unavailable)
		time.Sleep(ttl * 9 / 10)
		if err := l.Err(); err != nil {
			t.Fatalf("unknown was taken for lost: %v", err)
		}
		if n := s.count("extend"); n < 5 {
			t.Errorf("only %d renewals were tried", n)
		}
		s.on("extend", nil) // the store is back
		time.Sleep(ttl)
		if err := l.Err(); err != nil {
			t.Fatalf("a renewal that succeeded in time did not keep the lease: %v", err)
		}
		_ = l.Unlock(t.Context())
	})
}

func TestHungRenewalEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		s.on("extend", hang)
		<-l.Done()
		if time.Now().After(l.Until()) {
			t.Error("Done closed after Until")
		}
		wantErr(t, l.Err(), locker.ErrLost)
		n := s.count("extend")
		time.Sleep(10 * ttl)
		synctest.Wait()
		if s.count("extend") != n {
			t.Error("renewal went on after the loss")
		}
	})
}

func TestTakenOverIsNoticedAtTheNextRenewal(t *testing.T) {
	for _, by := range []time.Duration{0, time.Hour} { // deleted, or another owner's
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			l := mustLock(t, c, "k", locker.TTL(ttl))
			s.steal(t, l, by)
			start := time.Now()
			<-l.Done()
			if d := time.Since(start); d > ttl/3 {
				t.Errorf("noticed after %v", d)
			}
			if lost, ok := l.Err().(*locker.LostError); !ok || lost.Reason != locker.LostTakenOver {
				t.Errorf("Err is %v", l.Err())
			}
			wantErr(t, l.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
		})
	}
}

func TestExtend(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl), locker.NoRenewal())
		for range 10 {
			time.Sleep(ttl / 2)
			start := time.Now()
			if err := l.Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, want := l.Until().Sub(start), ttl-ttl/100-2*time.Millisecond; got != want {
				t.Errorf("valid for %v, want %v", got, want)
			}
		}
		until := l.Until()

		s.on("extend", unavailable)
		wantErr(t, l.Extend(t.Context()), locker.ErrUnavailable)
		s.on("extend", hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, l.Extend(ctx), locker.ErrUnavailable, context.DeadlineExceeded)
		if l.Until() != until {
			t.Error("a failed extension moved Until")
		}
		n := s.count("extend")
		wantErr(t, l.Extend(ctx), context.DeadlineExceeded)
		if s.count("extend") != n {
			t.Error("sent although the context had ended")
		}
		s.on("extend", nil)
		s.steal(t, l, 0)
		wantErr(t, l.Extend(t.Context()), locker.ErrLost)
		if !isDone(l) {
			t.Error("Done is open although the store said that the lock is gone")
		}
	})
}

func TestExtensionConfirmedTooLateDoesNotReviveTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl), locker.NoRenewal())
		s.on("extend", func(_ context.Context, next func() error) error {
			err := next()
			time.Sleep(2 * ttl)
			return err
		})
		wantErr(t, l.Extend(t.Context()), locker.ErrLost)
	})
}

func TestUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !isDone(l) {
			t.Error("Done is open")
		}
		wantErr(t, l.Err(), locker.ErrUnlocked)
		wantErr(t, l.Extend(t.Context()), locker.ErrUnlocked)
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnlocked)
		if n := s.count("release"); n != 1 {
			t.Errorf("%d releases were sent", n)
		}
		next := mustLock(t, c, "k")
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnlocked)
		if err := next.Unlock(t.Context()); err != nil {
			t.Errorf("a late second Unlock hurt the successor: %v", err)
		}
	})
}

func TestUnlockWithAnEndedContext(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		type ctxKey struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "value"))
		l := mustLock(t, c, "k")
		cancel()
		s.on("release", func(ctx context.Context, next func() error) error {
			if ctx.Value(ctxKey{}) != "value" {
				t.Error("the context's values are gone")
			}
			time.Sleep(100 * time.Millisecond)
			if err := ctx.Err(); err != nil {
				t.Errorf("the release has no time to be answered: %v", err)
			}
			return next()
		})
		if err := l.Unlock(ctx); err != nil {
			t.Error(err)
		}
		s.on("release", nil)
		_ = mustLock(t, c, "k").Unlock(t.Context())
	})
}

func TestUnlockIsBounded(t *testing.T) {
	tests := []struct {
		name     string
		deadline time.Duration // of the context; 0: none
		want     time.Duration
	}{
		{"ended context", 1, 250 * time.Millisecond},
		{"short deadline", 100 * time.Millisecond, 250 * time.Millisecond},
		{"deadline", time.Second, time.Second},
		{"no deadline", 0, 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				l := mustLock(t, c, "k")
				s.on("release", hang)
				ctx, want := t.Context(), []error{locker.ErrUnavailable}
				if tt.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.deadline)
					defer cancel()
					want = append(want, context.DeadlineExceeded)
				}
				start := time.Now()
				wantErr(t, l.Unlock(ctx), want...)
				if d := time.Since(start); d != tt.want {
					t.Errorf("returned after %v, want %v", d, tt.want)
				}
			})
		})
	}
}

func TestUnlockAfterAnUnansweredUnlock(t *testing.T) {
	lostReply := func(_ context.Context, next func() error) error {
		_ = next()
		return locker.ErrUnavailable
	}
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		s.on("release", unavailable)
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnavailable)
		s.on("release", nil)
		if err := l.Unlock(t.Context()); err != nil {
			t.Errorf("the second call did not release: %v", err)
		}

		l = mustLock(t, c, "k")
		s.on("release", lostReply)
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnavailable)
		s.on("release", nil)
		// "not held" would be wrong: it was the first call that released it
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnavailable)
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnlocked)
	})
}

func TestUnlockSparesTheSuccessor(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		stale := mustLock(t, c, "k", locker.TTL(ttl), locker.NoRenewal())
		time.Sleep(ttl)
		next := mustLock(t, c, "k")
		wantErr(t, stale.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
		if err := next.Extend(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestExtensionInFlightDuringUnlockIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.NoRenewal())
		s.on("extend", func(_ context.Context, next func() error) error {
			time.Sleep(time.Second)
			return next()
		})
		result := make(chan error)
		go func() { result <- l.Extend(t.Context()) }()
		synctest.Wait()
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, <-result, locker.ErrUnlocked)
		wantErr(t, l.Err(), locker.ErrUnlocked)
	})
}

func TestUnlockInterruptsRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		var interrupted time.Time
		s.on("extend", func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			interrupted = time.Now()
			return locker.ErrUnavailable
		})
		time.Sleep(ttl/3 + 100*time.Millisecond)
		unlocked := time.Now()
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !interrupted.Equal(unlocked) {
			t.Errorf("the renewal in flight ended %v after Unlock", interrupted.Sub(unlocked))
		}
	})
}

// The first renewal is due a third of the TTL after the request, however long the answer took.
func TestSlowAcquisitionIsRenewedInTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("acquire", func(_ context.Context, next func() error) error {
			err := next()
			time.Sleep(2 * time.Second)
			return err
		})
		l := mustLock(t, c, "k", locker.TTL(ttl))
		time.Sleep(2 * ttl)
		if err := l.Err(); err != nil {
			t.Errorf("%v, after %d renewals", err, s.count("extend"))
		}
		_ = l.Unlock(t.Context())
	})
}

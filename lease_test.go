package locker_test

import (
	"context"
	"errors"
	"fmt"
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
			until := l.Until()
			<-l.Done()
			early := time.Until(until)
			// Done must close early enough for a timer that is late, but a long lease must not lose a hundredth.
			if early < time.Millisecond || early > min(d/50+2*time.Millisecond, 100*time.Millisecond) {
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

// The error of a lease that could not be renewed says why not, and is not the one of an outage.
func TestExpiredLeaseSaysWhyItWasNotRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		s.on("extend", func(context.Context, func() error) error {
			return fmt.Errorf("%w: connection refused", locker.ErrUnavailable)
		})
		<-l.Done()
		err, lost := l.Err(), (*locker.LostError)(nil)
		const want = "lock lost: expired: the last renewal failed: lock store unavailable: connection refused"
		if !errors.As(err, &lost) || !errors.Is(lost.Err, locker.ErrUnavailable) || err.Error() != want {
			t.Errorf("Err: got %v, want %q", err, want)
		}
		if errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("%v matches ErrUnavailable: a loss is not an outage", err)
		}
	})
}

func TestTakenOverIsNoticedAtTheNextRenewal(t *testing.T) {
	for by, reason := range map[time.Duration]locker.LostReason{0: locker.LostGone, time.Hour: locker.LostTakenOver} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			l := mustLock(t, c, "k", locker.TTL(ttl))
			s.steal(t, l, by)
			start := time.Now()
			<-l.Done()
			if d := time.Since(start); d > ttl/3 {
				t.Errorf("noticed after %v", d)
			}
			if lost, ok := l.Err().(*locker.LostError); !ok || lost.Reason != reason {
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

func TestExtensionIsMeasuredFromBeforeTheRequest(t *testing.T) {
	for _, byHand := range []bool{true, false} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			l := mustLock(t, c, "k", locker.TTL(ttl))
			var sent time.Time
			s.on("extend", func(_ context.Context, next func() error) error {
				sent = time.Now()
				err := next()
				time.Sleep(ttl / 10)
				return err
			})
			if byHand {
				if err := l.Extend(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				time.Sleep(ttl / 2)
				synctest.Wait()
			}
			if got, want := l.Until().Sub(sent), ttl-ttl/100-2*time.Millisecond; got != want {
				t.Errorf("valid for %v from the start of the request, want %v", got, want)
			}
			_ = l.Unlock(t.Context())
		})
	}
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

// Extend returns when the lease ends, even if the backend has not returned.
func TestExtendEndsWithTheLease(t *testing.T) {
	for name, tt := range map[string]struct {
		limit time.Duration // of the caller's context
		end   func(l locker.Lease) (at time.Duration)
		want  error
	}{
		"expired": {2 * ttl, func(locker.Lease) time.Duration { return ttl - ttl/100 - 2*time.Millisecond },
			locker.ErrLost},
		"without context": {0, func(locker.Lease) time.Duration { return ttl - ttl/100 - 2*time.Millisecond },
			locker.ErrLost},
		"unlocked": {2 * ttl, func(l locker.Lease) time.Duration {
			time.Sleep(ttl / 4)
			_ = l.Unlock(context.Background())
			return ttl / 4
		}, locker.ErrUnlocked},
	} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			l := mustLock(t, c, "k", locker.TTL(ttl), locker.NoRenewal())
			begun := time.Now()
			s.on("extend", func(ctx context.Context, _ func() error) error {
				<-ctx.Done()
				return locker.ErrUnavailable
			})
			ctx := context.Background()
			if tt.limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.limit)
				defer cancel()
			}
			extended := make(chan error)
			var took time.Duration
			go func() {
				err := l.Extend(ctx)
				took = time.Since(begun)
				extended <- err
			}()
			by := tt.end(l)
			wantErr(t, <-extended, tt.want)
			if took > by {
				t.Errorf("%s: Extend came back after %v, want %v at the latest", name, took, by)
			}
		})
	}
}

// The first renewal is due a third of the TTL after the request was sent, even if the answer came late.
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

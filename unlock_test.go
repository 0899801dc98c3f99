package locker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
)

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
		{"ended context", 1, time.Second},
		{"short deadline", 100 * time.Millisecond, time.Second},
		{"deadline", time.Hour, time.Second},
		{"no deadline", 0, time.Second},
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
					if tt.deadline < time.Second {
						want = append(want, context.DeadlineExceeded)
					}
				}
				start := time.Now()
				err := l.Unlock(ctx)
				wantErr(t, err, want...)
				const text = `locker: unlock "k": lock store unavailable`
				if err.Error() != text { // it is not the context that has ended the release
					t.Errorf("got %q, want %q", err, text)
				}
				if d := time.Since(start); d != tt.want {
					t.Errorf("returned after %v, want %v", d, tt.want)
				}
			})
		})
	}
}

// The caller has set no deadline, so the text names none, whatever a driver says about the end of the release.
func TestUnlockThatIsNotAnsweredNamesItsBound(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		s.on("release", func(ctx context.Context, _ func() error) error {
			<-ctx.Done()
			return fmt.Errorf("%w: db1: %w", locker.ErrUnavailable, ctx.Err())
		})
		err := l.Unlock(t.Context())
		wantErr(t, err, locker.ErrUnavailable)
		if want := `locker: unlock "k": lock store unavailable: db1: no answer within 1s`; err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	})
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
		// ErrNotHeld would be wrong, because the first call has released the lock.
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

func TestUnlockWhileAnotherUnlockIsUnderWay(t *testing.T) {
	slowly := func(d time.Duration) hook {
		return func(_ context.Context, next func() error) error {
			time.Sleep(d)
			return next()
		}
	}
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		begin := func(h hook) locker.Lease {
			l := mustLock(t, c, "k")
			s.on("release", h)
			go func() { _ = l.Unlock(context.Background()) }()
			synctest.Wait()
			s.on("release", nil)
			return l
		}
		start := time.Now()
		wantErr(t, begin(slowly(time.Second/2)).Unlock(t.Context()), locker.ErrUnlocked)
		if d := time.Since(start); d != time.Second/2 {
			t.Errorf("the second call returned after %v, the first after half a second", d)
		}

		// The second call waits no longer than a release.
		l := begin(slowly(2 * time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start = time.Now()
		wantErr(t, l.Unlock(ctx), locker.ErrUnavailable, context.DeadlineExceeded)
		if d := time.Since(start); d != time.Second {
			t.Errorf("the second call returned after %v", d)
		}
		time.Sleep(time.Second)
		wantErr(t, l.Unlock(ctx), locker.ErrUnlocked)

		// If the first call fails, the second one sends a release itself.
		l = begin(func(context.Context, func() error) error {
			time.Sleep(time.Second / 2)
			return locker.ErrUnavailable
		})
		n := s.count("release")
		if err := l.Unlock(t.Context()); err != nil {
			t.Errorf("the second call said %v although it released the lock", err)
		}
		if s.count("release") != n+1 {
			t.Error("the second call sent no release")
		}
	})
}

// A network may deliver a release twice and lose the first answer. An empty key then does not mean that the lock was
// lost. If the store says that another owner has or had the lock, it was lost.
func TestMissingKeyBeforeTheEndOfTheTTLIsNotALoss(t *testing.T) {
	for reason, known := range map[locker.LostReason]bool{
		locker.LostGone: false, locker.LostTakenOver: true, locker.LostSuperseded: true,
	} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			says := func(_ context.Context, next func() error) error {
				_ = next()
				return &locker.NotHeldError{Reason: reason}
			}
			l := mustLock(t, c, "k")
			s.on("release", says)
			err := l.Unlock(t.Context())
			if known {
				wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
				lostBecause(t, err, reason)
			} else {
				wantErr(t, err, locker.ErrUnavailable)
			}
			wantErr(t, l.Unlock(t.Context()), locker.ErrUnlocked) // the outcome is final

			s.on("release", nil)
			l = mustLock(t, c, "late", locker.TTL(ttl), locker.NoRenewal())
			s.on("release", says)
			time.Sleep(ttl)
			err = l.Unlock(t.Context())
			wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
			lostBecause(t, err, locker.LostExpired)

			s.on("release", nil)
			l = mustLock(t, c, "noticed", locker.NoRenewal())
			s.on("extend", func(context.Context, func() error) error { return &locker.NotHeldError{Reason: reason} })
			wantErr(t, l.Extend(t.Context()), locker.ErrLost)
			lostBecause(t, l.Err(), reason)
			s.on("release", says)
			err = l.Unlock(t.Context())
			wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
			lostBecause(t, err, reason)
		})
	}
}

func TestUnlockSaysHowTheLockWasLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		s.steal(t, l, time.Hour)
		err := l.Unlock(t.Context()) // before a renewal has noticed the loss
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		lostBecause(t, err, locker.LostTakenOver)

		l = mustLock(t, c, "other", locker.TTL(ttl), locker.NoRenewal())
		s.on("release", func(_ context.Context, next func() error) error {
			time.Sleep(ttl)
			return next()
		})
		err = l.Unlock(t.Context())
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		lostBecause(t, err, locker.LostExpired)
	})
}

// A lease expires while the machine is suspended, although its timers have not fired.
func TestUnlockOfALeaseThatExpiredUnnoticed(t *testing.T) {
	sleep := locker.SleepMachine(t)
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		s.steal(t, l, 0) // the lock has expired in the store, whose clock went on
		sleep(time.Hour)
		err := l.Unlock(t.Context())
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		lostBecause(t, err, locker.LostExpired)
		lostBecause(t, l.Err(), locker.LostExpired)
	})
}

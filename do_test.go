package locker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func TestDo(t *testing.T) {
	failed := errors.New("f failed")
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			l, ok := locker.LeaseFrom(ctx)
			if !ok || l.Key() != "k" || l.Fence() == 0 {
				t.Error("the context does not carry the lease")
			}
			_, err := c.TryLock(ctx, "k")
			wantErr(t, err, locker.ErrHeld)
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
		err = locker.Do(t.Context(), c, "k", func(context.Context) error { return failed })
		if !errors.Is(err, failed) {
			t.Errorf("got %v, want f's error", err)
		}
		wantErr(t, err)
		if s.count("release") != 2 {
			t.Errorf("%d releases after 2 calls", s.count("release"))
		}
		mustLock(t, c, "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = locker.Do(ctx, c, "k", func(context.Context) error {
			t.Error("f ran without the lock")
			return nil
		})
		wantErr(t, err, locker.ErrHeld, context.DeadlineExceeded)
	})
}

func TestDoEndsTheContextWithTheLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			l, _ := locker.LeaseFrom(ctx)
			s.steal(t, l, time.Hour)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), locker.ErrLost)
			return nil // f ignores the end of its context
		}, locker.TTL(ttl))
		wantErr(t, err, locker.ErrLost, locker.ErrNotHeld)
	})
}

func TestDoSaysThatMaxHoldIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		start := time.Now()
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour):
			}
			lostBecause(t, context.Cause(ctx), locker.LostMaxHold)
			return context.Cause(ctx)
		}, locker.MaxHold(time.Minute))
		wantErr(t, err, locker.ErrLost)
		lostBecause(t, err, locker.LostMaxHold)
		if d := time.Since(start); d > time.Minute {
			t.Errorf("the function was told after %v", d)
		}
		_ = mustLock(t, c, "k").Unlock(t.Context())
	})
}

func TestDoReportsALossThatReleaseDoesNotSee(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			l, _ := locker.LeaseFrom(ctx)
			<-l.Done() // the lease has expired, but the store keeps the lock some milliseconds longer
			return nil
		}, locker.TTL(ttl), locker.NoRenewal())
		wantErr(t, err, locker.ErrLost)
	})
}

func TestDoUnlocksWhenTheFunctionPanicsOrTheContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = locker.Do(t.Context(), c, "k", func(context.Context) error { panic("f") })
		}()
		ctx, cancel := context.WithCancel(t.Context())
		err := locker.Do(ctx, c, "k", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		wantErr(t, err, context.Canceled)
		if _, err := c.TryLock(t.Context(), "k"); err != nil {
			t.Errorf("the lock was left behind: %v", err)
		}
	})
}

type anyKey struct{}

// When a process that was stopped goes on, the clock has moved, and no other goroutine has run yet.
func TestDoEndsTheContextRightAfterAPause(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context) error{
		"Err":   func(ctx context.Context) error { return ctx.Err() },
		"Cause": context.Cause,
		"a context with a value": func(ctx context.Context) error {
			return context.WithValue(ctx, anyKey{}, 1).Err()
		},
		"one derived after": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return ctx.Err()
		},
		"Done": func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			default:
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sleep := locker.SleepMachine(t)
			bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
				err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
					if err := ask(ctx); err != nil {
						t.Errorf("%s: %v while the lock is held", name, err)
					}
					sleep(2 * ttl) // no timer fires, and no other goroutine runs
					err := ask(ctx)
					if err == nil {
						t.Errorf("%s: nil after the lock has ended", name)
					} else if name == "Cause" {
						lostBecause(t, err, locker.LostExpired)
					}
					lostBecause(t, context.Cause(ctx), locker.LostExpired)
					return nil
				}, locker.TTL(ttl))
				lostBecause(t, err, locker.LostExpired)
			})
		})
	}
}

func TestDoKeepsTheCauseOfTheCallersContext(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		_ = locker.Do(ctx, c, "k", func(ctx context.Context) error {
			cancel(why)
			if got := context.Cause(ctx); !errors.Is(got, why) || !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("got %v, %v", got, ctx.Err())
			}
			return nil
		})
	})
}

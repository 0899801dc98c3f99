package locker_test

import (
	"context"
	"errors"
	"strings"
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

// The work was done, and only the release failed. The error says that, and does not tell the caller to try again.
func TestDoTellsAFailedReleaseFromAFailedLock(t *testing.T) {
	for name, do := range map[string]func(
		context.Context, locker.Locker, string, func(context.Context) error, ...locker.Option) error{
		"Do": locker.Do, "TryDo": locker.TryDo,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				committed := 0
				f := func(context.Context) error { committed++; return nil }
				s.on("release", unavailable)
				wantErr(t, do(t.Context(), c, "k", f), locker.ErrReleaseUnknown)
				ctx, cancel := context.WithCancel(t.Context())
				wantErr(t, do(ctx, c, "l", func(context.Context) error { cancel(); return nil }), locker.ErrReleaseUnknown)
				s.on("release", hang)
				err := do(t.Context(), c, "m", func(context.Context) error { return errors.ErrUnsupported })
				wantErr(t, err, errors.ErrUnsupported, locker.ErrReleaseUnknown)
				s.on("release", nil)
				s.on("acquire", unavailable)
				// memory is a Queuer that store hides, so Lock calls Acquire
				wantErr(t, do(t.Context(), c, "n", f), locker.ErrUnavailable)
				if committed != 1 {
					t.Errorf("f was called %d times, want once", committed)
				}
			})
		})
	}
}

// An error that says what nodes have answered stays available.
func TestFailedReleaseSaysWhatTheBackendSaid(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("release", func(context.Context, func() error) error {
			return &locker.GracePeriodError{Node: "b", Remaining: time.Minute}
		})
		err := locker.Do(t.Context(), c, "k", func(context.Context) error { return nil })
		wantErr(t, err, locker.ErrReleaseUnknown)
		var resting *locker.GracePeriodError
		if !errors.As(err, &resting) || resting.Node != "b" {
			t.Errorf("%v has lost what the backend said", err)
		}
		const text = `locker: unlock "k": it is not known whether the lock was released: b rests for another 1m0s`
		if !strings.HasPrefix(err.Error(), text) {
			t.Errorf("got %q", err)
		}
	})
}

func TestTryDoSkipsWhatIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		ran := 0
		err := locker.TryDo(t.Context(), c, "k", func(ctx context.Context) error {
			ran++
			err := locker.TryDo(t.Context(), c, "k", func(context.Context) error { ran++; return nil })
			wantErr(t, err, locker.ErrHeld)
			l, _ := locker.LeaseFrom(ctx)
			s.steal(t, l, time.Hour)
			<-ctx.Done()
			wantErr(t, context.Cause(ctx), locker.ErrLost)
			return nil
		}, locker.TTL(ttl))
		wantErr(t, err, locker.ErrLost, locker.ErrNotHeld)
		if ran != 1 {
			t.Errorf("%d functions ran", ran)
		}
	})
}

// A context of a lease ends with the lease, for the reason that the lease has, and with its parent.
func TestWithLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		one := mustLock(t, c, "k", locker.TTL(ttl))
		all, err := locker.TryLockAll(t.Context(), c, []string{"a", "b"}, locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range []locker.Lease{one, all} {
			parent, stop := context.WithCancelCause(t.Context())
			ended, cancel := locker.WithLease(parent, lease)
			why := errors.New("shutting down")
			stop(why)
			<-ended.Done()
			if !errors.Is(context.Cause(ended), why) || lease.Err() != nil {
				t.Errorf("%v, %v", context.Cause(ended), lease.Err())
			}
			cancel()
			ended, cancel = locker.WithLease(t.Context(), lease)
			cancel()
			wantErr(t, ended.Err(), context.Canceled)
			ctx, cancel := locker.WithLease(t.Context(), lease)
			defer cancel()
			if l, ok := locker.LeaseFrom(ctx); !ok || l != lease || ctx.Err() != nil {
				t.Errorf("got %v, %v", l, ctx.Err())
			}
			if lease == one {
				s.steal(t, lease, time.Hour)
				<-ctx.Done()
				lostBecause(t, context.Cause(ctx), locker.LostTakenOver)
			} else {
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				wantErr(t, context.Cause(ctx), locker.ErrUnlocked)
			}
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

// wrapper wraps leases, as middleware does.
type wrapper struct{ locker.Locker }

func (w wrapper) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := w.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return wrapping{lease}, nil
}

// A Lock that would wait for its own caller fails at once, and says why: behind leases of other locks, behind
// middleware, and for one of several locks. What others hold, and what has ended, is waited for.
func TestLockThatWouldWaitForItself(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lock := func(ctx context.Context, l locker.Locker, key string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			lease, err := l.Lock(ctx, key)
			if err == nil {
				_ = lease.Unlock(ctx)
			}
			return err
		}
		wrapped := locker.Wrap(c, func(l locker.Locker) locker.Locker { return wrapper{l} }, locker.Defaults())
		other := locker.NewClient(s)
		t.Cleanup(func() { _ = other.Close() })
		all := mustLockAll(t, c, []string{"c", "d"})
		defer all.Unlock(t.Context())
		ctx, cancel := locker.WithLease(t.Context(), all)
		defer cancel()
		var left context.Context
		err := locker.Do(ctx, wrapped, "a", func(ctx context.Context) error {
			left = context.WithoutCancel(ctx)
			return locker.Do(ctx, wrapped, "b", func(ctx context.Context) error {
				for _, key := range []string{"a", "b", "c", "d"} {
					start := time.Now()
					wantErr(t, lock(ctx, wrapped, key), locker.ErrReentrant, locker.ErrInvalid)
					_, err := locker.LockAll(ctx, wrapped, []string{"e", key})
					wantErr(t, err, locker.ErrReentrant, locker.ErrInvalid)
					if time.Since(start) > 0 {
						t.Errorf("it took %v", time.Since(start))
					}
					wantErr(t, lock(ctx, other, key), locker.ErrHeld, context.DeadlineExceeded)
					wantErr(t, lock(context.Background(), c, key), locker.ErrHeld, context.DeadlineExceeded)
				}
				return lock(ctx, wrapped, "e")
			})
		})
		if err != nil {
			t.Error(err)
		}
		if err := lock(left, wrapped, "a"); err != nil {
			t.Errorf("a lock whose lease has ended: %v", err)
		}
	})
}

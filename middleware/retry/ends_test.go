package retry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/middleware/retry"
)

func TestContextEndsAPause(t *testing.T) {
	for name, ended := range map[string]struct {
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		}, context.DeadlineExceeded},
		"cancel": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(10*time.Second, func() { cancel(errReason) })
			return ctx, func() { cancel(nil) }
		}, context.Canceled},
	} {
		for _, perSecond := range []int{retry.DefaultPerSecond, 1} {
			t.Run(fmt.Sprint(name, ", per second ", perSecond), func(t *testing.T) {
				// With the smaller number the wait for a turn is interrupted.
				bubble(t, with(retry.Backoff(time.Second, time.Hour), retry.For(time.Hour), retry.PerSecond(perSecond)),
					func(t *testing.T, s *store, l locker.Locker) {
						s.on(down)
						if perSecond == 1 {
							hog(t, l, 30)
						}
						lease := locker.Lease(nil)
						for op, call := range map[string]func(context.Context) error{
							"lock":    func(ctx context.Context) error { _, err := l.Lock(ctx, "k"); return err },
							"trylock": func(ctx context.Context) error { _, err := l.TryLock(ctx, "k"); return err },
							"extend":  func(ctx context.Context) error { return lease.Extend(ctx) },
							"unlock":  func(ctx context.Context) error { return lease.Unlock(ctx) },
						} {
							s.on(nil)
							lease = mustLock(t, l, "held "+op, locker.TTL(time.Hour), locker.NoRenewal())
							s.on(down)
							ctx, cancel := ended.ctx(t.Context())
							start := time.Now()
							err := call(ctx)
							cancel()
							wantErr(t, err, locker.ErrUnavailable, ended.want)
							if !errors.Is(err, errDown) || errors.Is(err, errReason) != (name == "cancel") {
								t.Errorf("%s: %v lacks a cause", op, err)
							}
							if took := time.Since(start); took != 10*time.Second {
								t.Errorf("%s returned after %v: %v", op, took, err)
							}
						}
					})
			})
		}
	}
}

var errReason = errors.New("a reason to cancel")

// There is no retry if the context has ended, before or during an attempt.
func TestEndedContextIsNotRetried(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		ctx, cancel := context.WithCancel(t.Context())
		lease := mustLock(t, l, "other")
		s.on(func(string, int, func() error) error { cancel(); return errDown })
		_, err := l.Lock(ctx, "k")
		wantErr(t, err, locker.ErrUnavailable, context.Canceled)
		wantErr(t, lease.Unlock(ctx), locker.ErrUnavailable, context.Canceled)
		if a, r := s.count("acquire"), s.count("release"); a != 1 || r != 1 {
			t.Errorf("%d acquisitions, %d releases", a, r)
		}
	})
}

func TestExtendEndsWithTheLease(t *testing.T) {
	// For is set because with the default of a minute a pause may be longer than the rest of it, and Extend would
	// return earlier.
	bubble(t, with(retry.Backoff(time.Second, time.Hour), retry.For(24*time.Hour)),
		func(t *testing.T, s *store, l locker.Locker) {
			lease := mustLock(t, l, "k", locker.TTL(20*time.Second), locker.NoRenewal())
			s.on(down)
			err := lease.Extend(t.Context())
			wantErr(t, err, locker.ErrLost)
			wantText(t, err, fmt.Sprintf("after %d tries", s.count("extend")+1))
			if late := time.Since(lease.Until()); late > 0 {
				t.Errorf("Extend returned %v after the validity had ended", late)
			}
			for _, at := range s.calls["extend"] {
				if at.After(lease.Until()) {
					t.Error("the store was asked after the end")
				}
			}
		})
}

func TestExtendEndsWithUnlock(t *testing.T) {
	bubble(t, with(retry.Backoff(time.Hour, time.Hour), retry.For(24*time.Hour)),
		func(t *testing.T, s *store, l locker.Locker) {
			lease := mustLock(t, l, "k", locker.TTL(10*time.Hour), locker.NoRenewal())
			s.on(func(op string, _ int, next func() error) error {
				if op == "extend" {
					return errDown
				}
				return next()
			})
			time.AfterFunc(time.Millisecond/2, func() { mustUnlock(t, lease) })
			start := time.Now()
			wantErr(t, lease.Extend(t.Context()), locker.ErrUnlocked)
			if took := time.Since(start); took > time.Millisecond {
				t.Errorf("Extend returned after %v", took)
			}
		})
}

func TestUnlockEndsWithTheValidity(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		lease := mustLock(t, l, "k", locker.TTL(20*time.Second), locker.NoRenewal())
		until := lease.Until()
		s.on(down)
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		calls := s.calls["release"]
		if last := calls[len(calls)-1]; last.After(until) || until.Sub(last) > 2*retry.DefaultMaxDelay {
			t.Errorf("the last of %d tries was made %v before the end", len(calls), until.Sub(last))
		}

		lost := mustLockDown(t, s, l, locker.TTL(time.Second), locker.NoRenewal())
		time.Sleep(time.Second)
		s.on(down)
		wantErr(t, lost.Unlock(t.Context()), locker.ErrUnavailable)
		if n := s.count("release"); n != 1 {
			t.Errorf("%d tries to release what has ended", n)
		}
	})
}

// mustLockDown locks another key while the store is up.
func mustLockDown(t *testing.T, s *store, l locker.Locker, opts ...locker.Option) locker.Lease {
	t.Helper()
	s.on(nil)
	return mustLock(t, l, "another", opts...)
}

// A release was executed, but its answer was lost, so the retry finds no lock. That is not a success, because it is
// unknown when the lock ended. It is neither "not held" nor "already unlocked", because the caller has called Unlock
// only once.
func TestUnlockWhoseAnswerIsLost(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		lease := mustLock(t, l, "k")
		s.on(func(_ string, n int, next func() error) error {
			if err := next(); n > 1 {
				return err
			}
			return errDown
		})
		err := lease.Unlock(t.Context())
		wantErr(t, err, locker.ErrUnavailable)
		wantText(t, err, "the lock is no longer held, but an earlier release was not answered")
		s.on(nil)
		mustUnlock(t, mustLock(t, l, "k"))
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnlocked)
	})
}

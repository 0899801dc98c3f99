package retry_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/middleware/retry"
)

// stepping is a store that acquires several locks in one step.
type stepping struct{ *store }

func (s stepping) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) (gs []*backend.Grant, err error) {
	s.mu.Lock()
	for _, req := range reqs {
		s.tokens = append(s.tokens, req.Token)
	}
	s.mu.Unlock()
	err = s.call("acquire many", func() (err error) {
		gs, err = s.Backend.(backend.ManyAcquirer).AcquireMany(ctx, reqs, c)
		return err
	})
	return gs, err
}

func stepped(t *testing.T, opts []retry.Option, f func(t *testing.T, s *store, l locker.Locker)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(stepping{s})
		f(t, s, locker.Wrap(c, retry.New(opts...)))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A step for several locks is retried as a whole, with new owner values, and its leases like any other.
func TestStepIsRetriedAsAWhole(t *testing.T) {
	stepped(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		s.on(failing(5))
		lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		if n := s.count("acquire many"); n != 6 || s.count("acquire") != 0 {
			t.Errorf("%d steps and %d single attempts, want 6 and none", n, s.count("acquire"))
		}
		slices.Sort(s.tokens)
		if n := len(slices.Compact(s.tokens)); n != 12 {
			t.Errorf("%d different tokens of 6 attempts for two locks", n)
		}
		s.on(failing(5))
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		mustUnlock(t, lease)
		if n := s.count("extend"); n != 7 { // the calls of both leases fail five times in all
			t.Errorf("%d calls of extend", n)
		}
	})
}

// A step that fails in the end is one error, and the locks are free.
func TestStepThatFailsInTheEnd(t *testing.T) {
	stepped(t, with(retry.For(10*time.Second)), func(t *testing.T, s *store, l locker.Locker) {
		s.on(down)
		_, err := locker.TryLockAll(t.Context(), l, []string{"a", "b"})
		wantErr(t, err, locker.ErrUnavailable)
		wantText(t, err, "tries in")
		if s.count("acquire") != 0 {
			t.Error("a store that is down is asked for each lock by itself")
		}
		s.on(nil)
		for _, key := range []string{"a", "b"} {
			mustUnlock(t, mustLock(t, l, key))
		}
	})
}

// After a fault, a step that finds a lock held may have met its own failed attempt. It asks for two seconds.
func TestStepThatMeetsItsOwnFailedAttempt(t *testing.T) {
	stepped(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		ghost := mustLock(t, l, "b")
		time.AfterFunc(time.Second, func() { _ = ghost.Unlock(context.Background()) })
		s.on(failing(1))
		lease, err := locker.TryLockAll(t.Context(), l, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		held := mustLock(t, l, "c")
		before := time.Now()
		if _, err := locker.TryLockAll(t.Context(), l, []string{"c", "d"}); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		if took := time.Since(before); took != 0 {
			t.Errorf("without a fault, it took %v to find a lock held", took)
		}
		mustUnlock(t, held)
		mustUnlock(t, lease)
	})
}

// Locks that are acquired one after the other are retried by themselves. If one fails in the end, the others are
// released.
func TestLocksOneAfterTheOtherAreRetried(t *testing.T) {
	bubble(t, with(retry.For(10*time.Second)), func(t *testing.T, s *store, l locker.Locker) {
		s.on(failing(3))
		lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
		s.on(func(op string, n int, next func() error) error {
			if op == "acquire" && n > 1 {
				return errDown
			}
			return next()
		})
		if _, err := locker.LockAll(t.Context(), l, []string{"a", "b"}); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		s.on(nil)
		mustUnlock(t, mustLock(t, l, "a"))
	})
}

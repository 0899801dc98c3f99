package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// one returns the Lease of one of the locks of a, as far as steal needs it.
type one struct {
	locker.Lease
	key, token string
}

func (o one) Key() string   { return o.key }
func (o one) Token() string { return o.token }

// When one lock is lost, the lease is, and the others stay taken until Unlock.
func TestAllLeaseIsLostWithOneLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b", "c"}, locker.TTL(ttl))
		s.steal(t, one{key: "b", token: s.tokens[1]}, time.Minute)
		done := lease.Done()
		start := time.Now()
		<-done
		if took := time.Since(start); took > ttl {
			t.Errorf("Done was closed after %v", took)
		}
		err := lease.Err()
		wantErr(t, err, locker.ErrLost)
		wantKey(t, err, "b")
		if lost := (*locker.LostError)(nil); !errors.As(err, &lost) || lost.Reason != locker.LostTakenOver {
			t.Errorf("got %v", err)
		}
		if lease.Until().After(time.Now()) {
			t.Error("Until is after the end")
		}
		time.Sleep(3 * ttl)
		for _, key := range []string{"a", "c"} {
			_, err := c.TryLock(t.Context(), key)
			wantErr(t, err, locker.ErrHeld)
		}
		wantErr(t, lease.Extend(t.Context()), locker.ErrLost)
		wantErr(t, locker.Verify(t.Context(), lease), locker.ErrLost)
		err = lease.Unlock(t.Context())
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		wantKey(t, err, "b")
		mustUnlock(t, mustLockAll(t, c, []string{"a", "c"}))
		if lease.Err() == nil || !isDone(lease) {
			t.Error("the lease has come back")
		}
	})
}

// Err tells the loss although nobody has asked for Done.
func TestAllLeaseNoticesALossWithoutDone(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		time.Sleep(ttl)
		wantErr(t, lease.Err(), locker.ErrLost)
		if !isDone(lease) {
			t.Error("Done is open")
		}
		_ = lease.Unlock(t.Context())
	})
}

// A release that fails does not keep the others from being released, and a second call tries only that one again.
func TestUnlockReleasesAllWhateverFails(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		lease := mustLockAll(t, l, []string{"a", "b", "c"})
		first := true
		s.on("release", func(_ context.Context, next func() error) error {
			s.mu.Lock()
			fail := first
			first = false
			s.mu.Unlock()
			if fail {
				return locker.ErrUnavailable
			}
			return next()
		})
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		if n := s.count("release"); n != 3 {
			t.Errorf("%d releases", n)
		}
		mustUnlock(t, lease)
		if n := s.count("release"); n != 4 {
			t.Errorf("%d releases after the second call", n)
		}
		mustUnlock(t, mustLockAll(t, l, []string{"a", "b", "c"}))
	})
}

func TestAllLeaseUntilIsTheEarliest(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		b := mustLock(t, l, "b")
		time.AfterFunc(ttl/2, func() { _ = b.Unlock(context.Background()) })
		start := time.Now()
		lease, err := locker.LockAll(t.Context(), plain{l}, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		if until := lease.Until(); until.After(start.Add(ttl)) {
			t.Errorf("Until is %v after a was acquired, with a TTL of %v", until.Sub(start), ttl)
		}
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		if until := lease.Until(); until.Before(start.Add(ttl)) {
			t.Errorf("after Extend, Until is %v after a was acquired", until.Sub(start))
		}
		mustUnlock(t, lease)
	})
}

func TestVerifyAsksAboutAllLocks(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		c := locker.NewClient(b)
		lease := mustLockAll(t, c, []string{"a", "b"})
		if err := locker.Verify(t.Context(), lease); err != nil {
			t.Error(err)
		}
		if _, err := c.ForceRelease(t.Context(), "b", ""); err != nil {
			t.Fatal(err)
		}
		err := locker.Verify(t.Context(), lease)
		wantErr(t, err, locker.ErrLost)
		wantKey(t, err, "b")
		_ = lease.Unlock(t.Context())
		_ = c.Close()
	})
}

// The goroutines that watch the locks end with the lease.
func TestAllLeaseLeavesNoGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b"})
		done := lease.Done()
		synctest.Wait()
		mustUnlock(t, lease)
		<-done
	})
}

// A lock that was not held any more is no lock that a second call finds released, whatever that call does to the
// others.
func TestSecondUnlockOfSeveralLocksRemembersALoss(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b"})
		s.steal(t, one{key: "a", token: s.tokens[0]}, time.Minute)
		s.on("release", func(_ context.Context, next func() error) error {
			if err := next(); err != nil {
				return err
			}
			return locker.ErrUnavailable
		})
		wantErr(t, lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost, locker.ErrUnavailable)
		s.on("release", func(context.Context, func() error) error { return nil })
		err := lease.Unlock(t.Context()) // releases b
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		wantKey(t, err, "a")
		wantErr(t, lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
	})
}

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
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// lostBecause checks why a lease ended.
func lostBecause(t *testing.T, err error, want locker.LostReason) {
	t.Helper()
	var lost *locker.LostError
	if !errors.As(err, &lost) || lost.Reason != want {
		t.Errorf("got %v, want that the lock was lost: %s", err, want)
	}
}

func TestMaxHoldEndsTheLeaseButNotTheLock(t *testing.T) {
	for _, limit := range []time.Duration{locker.MinTTL, ttl / 2, ttl, 5 * ttl} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			s.on("acquire", func(_ context.Context, next func() error) error {
				time.Sleep(time.Millisecond)
				return next()
			})
			start := time.Now()
			l := mustLock(t, c, "k", locker.TTL(ttl), locker.MaxHold(limit))
			if until := l.Until(); until.After(start.Add(limit)) {
				t.Errorf("Until is %v after the request, more than MaxHold %v", until.Sub(start), limit)
			}
			select {
			case <-l.Done():
			case <-time.After(time.Hour):
			}
			held := time.Since(start)
			if early := limit - held; early <= 0 || early > limit/50+2*time.Millisecond {
				t.Errorf("MaxHold %v: ended after %v", limit, held)
			}
			lostBecause(t, l.Err(), locker.LostMaxHold)
			wantErr(t, l.Extend(t.Context()), locker.ErrLost)
			n := s.count("extend")
			_, err := c.TryLock(t.Context(), "k")
			wantErr(t, err, locker.ErrHeld) // the holder may still be at work
			if err := l.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock says %v although nobody else had the lock", err)
			}
			_ = mustLock(t, c, "k").Unlock(t.Context())
			time.Sleep(ttl)
			if s.count("extend") != n {
				t.Error("renewed after MaxHold")
			}
			lostBecause(t, l.Err(), locker.LostMaxHold)
		})
	}
}

func TestMaxHoldThatIsNotReachedChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl), locker.NoRenewal(), locker.MaxHold(2*ttl))
		<-l.Done()
		lostBecause(t, l.Err(), locker.LostExpired)
		l = mustLock(t, c, "other", locker.MaxHold(time.Hour))
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wantErr(t, l.Err(), locker.ErrUnlocked)
	})
}

func TestMaxHoldThatIsOverBeforeTheGrant(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("acquire", func(_ context.Context, next func() error) error {
			defer time.Sleep(time.Second)
			return next()
		})
		lost := 0
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Lost: func(error) { lost++ }})
		_, err := c.Lock(ctx, "k", locker.MaxHold(time.Second))
		wantErr(t, err, locker.ErrUnavailable)
		if !strings.Contains(err.Error(), "MaxHold") || lost != 0 {
			t.Errorf("%v; Lost was called %d times for what was never held", err, lost)
		}
		synctest.Wait()
		if s.count("release") != 1 {
			t.Error("the useless grant was not released")
		}
	})
}

func TestMinHoldKeepsTheLockAfterUnlock(t *testing.T) {
	const hold = time.Minute // longer than the TTL
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		other := locker.NewClient(s)
		defer other.Close()
		start := time.Now()
		l := mustLock(t, c, "k", locker.MinHold(hold))
		time.Sleep(time.Second)
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, l.Err(), locker.ErrUnlocked)
		wantErr(t, l.Unlock(t.Context()), locker.ErrUnlocked)
		_ = c.Close() // the process is gone
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
			t.Fatalf("after Unlock: %v", err)
		}
		next, err := other.Lock(t.Context(), "k", locker.MinHold(hold))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < hold || d > hold+time.Second {
			t.Errorf("free after %v, want %v from the request", d, hold)
		}
		time.Sleep(hold)
		if err := next.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		_ = mustLock(t, other, "k").Unlock(t.Context()) // nothing is left of its MinHold
	})
}

// Unlock applies MinHold to a lease that has ended, as long as the store has its lock. Without Unlock, the TTL ends it.
func TestMinHoldAfterTheEndOfTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		for key, unlock := range map[string]bool{"unlocked": true, "forgotten": false} {
			l := mustLock(t, c, key, locker.TTL(ttl), locker.MaxHold(ttl/2), locker.MinHold(time.Hour))
			<-l.Done()
			if unlock {
				mustUnlock(t, l)
			}
			time.Sleep(2 * ttl)
			if _, err := c.TryLock(t.Context(), key); errors.Is(err, locker.ErrHeld) != unlock {
				t.Errorf("%s: %v", key, err)
			}
		}
	})
}

func TestMinHoldDoesNotKeepALockThatWasNotReturned(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("acquire", func(_ context.Context, next func() error) error {
			defer time.Sleep(ttl)
			return next()
		})
		s.on("release", nil)
		_, err := c.TryLock(t.Context(), "k", locker.TTL(ttl), locker.MinHold(time.Hour))
		wantErr(t, err, locker.ErrUnavailable)
		synctest.Wait()
		s.on("acquire", nil)
		_ = mustLock(t, c, "k").Unlock(t.Context())
	})
}

func TestUntilDoesNotStayInTheFuture(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		unlocked, stolen, expired := mustLock(t, c, "a"), mustLock(t, c, "b"), mustLock(t, c, "c", locker.NoRenewal())
		validUntil := expired.Until()
		_ = unlocked.Unlock(t.Context())
		s.steal(t, stolen, 0)
		<-stolen.Done()
		for _, l := range []locker.Lease{unlocked, stolen} {
			if until := l.Until(); until.After(time.Now()) {
				t.Errorf("%s has ended, but is said to be valid for another %v", l.Key(), time.Until(until))
			}
		}
		time.Sleep(time.Hour)
		if until := expired.Until(); until.After(validUntil) || validUntil.Sub(until) > 100*time.Millisecond {
			t.Errorf("an hour after it expired, Until is %v after what it was", until.Sub(validUntil))
		}
	})
}

// While a machine is suspended, the monotonic clock and all timers stop, but the wall clock goes on.
func TestLeasesEndSoonAfterTheMachineHasSlept(t *testing.T) {
	sleep := locker.SleepMachine(t)
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		const n = 1000
		var ends sync.WaitGroup
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Lost: func(error) { ends.Done() }})
		for i := range n {
			ends.Add(1)
			if _, err := c.TryLock(ctx, strings.Repeat("k", i+1), locker.TTL(time.Minute),
				locker.NoRenewal()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		sleep(time.Hour)
		woken := time.Now()
		ends.Wait()
		if d := time.Since(woken); d > time.Second {
			t.Errorf("all have ended %v after waking", d)
		}
	})
}

func TestSleepOfTheMachineBringsForwardWhatIsDue(t *testing.T) {
	sleep := locker.SleepMachine(t)
	virtual.Test(t, func(t *testing.T) {
		e := watched(newStore())
		c := locker.NewClient(e)
		defer c.Close()
		start := time.Now()
		mustLock(t, c, "renewed", locker.TTL(time.Minute)) // due after 20 s
		l := mustLock(t, c, "k", locker.TTL(time.Minute), locker.NoRenewal())
		time.Sleep(5 * time.Second)
		sleep(10 * time.Second)
		time.Sleep(6 * time.Second)
		if at := e.at(); len(at) != 1 || at[0] < 9*time.Second || at[0] > 10*time.Second {
			t.Errorf("renewed at %v, want 20 s after the request by the wall clock", at)
		}
		<-l.Done()
		if d := time.Since(start); d < 48*time.Second || d > 50*time.Second {
			t.Errorf("ended after %v on the monotonic clock, of a minute of which 10 s were slept", d)
		}
	})
}

// The wall clock is set forward, which brings the end of leases forward, and then back. The timer of a lease has fired
// too early by then. It is set again, and Done is closed in time.
func TestDoneClosesInTimeAfterTheClockWasSetForwardAndBack(t *testing.T) {
	set := locker.SleepMachine(t)
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.NoRenewal())
		time.Sleep(time.Second)
		set(3 * time.Second)
		time.Sleep(2 * time.Second) // the Client has compared the clocks
		set(-3 * time.Second)
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Done():
		case <-time.After(time.Until(l.Until())):
			t.Error("Done was not closed before Until")
		}
		lostBecause(t, l.Err(), locker.LostExpired)
	})
}

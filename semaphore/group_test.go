package semaphore_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// groups runs f in virtual time for a store that has groups.
func groups(t *testing.T, f func(w *world)) {
	stores(t, func(w *world) {
		if w.Groups {
			f(w)
		}
	})
}

// A semaphore of which less than two thirds are used was full once. A second later, callers wait for a round trip
// again.
func TestGroupRecoversFromABurstWithinASecond(t *testing.T) {
	groups(t, func(w *world) {
		for _, rate := range []int{400, 600} { // 40 % and 60 % of the permits
			if took := w.burst(50, rate, 200, 1); took > trip {
				w.Errorf("%d callers a second, a second after the burst: one waited for %v", rate, took)
			}
		}
	})
}

// A caller asks once for each permit, however many there are, and once to wait for one of them.
func TestRequestsForPermitsOfAGroup(t *testing.T) {
	groups(t, func(w *world) {
		const n = semaphore.MaxPermits
		s := semaphore.New(w.Client(), n)
		var held []locker.Lease
		for range n {
			held = append(held, w.Lock(s, key, locker.TTL(time.Hour)))
		}
		if calls := w.Calls.Took(); calls["Queue"] != n || len(calls) > 1 {
			w.Errorf("%v for %d permits", calls, n)
		}
		served := make(chan locker.Lease)
		go func() { served <- w.Lock(semaphore.New(w.Client(), n), key, locker.TTL(time.Hour)) }()
		time.Sleep(2 * time.Second) // no lease is renewed
		w.Unlock(held[7])
		last := <-served
		if calls := w.Calls.Took(); calls["Queue"] != 1 || calls["Release"] != 1 || len(calls) > 2 {
			w.Errorf("%v to wait for a permit and to return one", calls)
		}
		w.Unlock(append(held[:7:7], held[8:]...)...)
		w.Unlock(last)
		w.empty(n)
	})
}

// A weight is one entry: one request acquires, renews and returns all permits, and it is lost as a whole.
func TestWeightIsOneLease(t *testing.T) {
	groups(t, func(w *world) {
		const n = 100
		p := w.lock(semaphore.New(w.Client(), n).Weight(n), locker.TTL(ttl))
		time.Sleep(ttl)
		if calls := w.Calls.Took(); calls["Queue"] != 1 || calls["Extend"] > 3 {
			w.Errorf("%v for %d permits", calls, n)
		}
		if len(p.Slots()) != n || p.Slots()[n-1] != n-1 {
			w.Errorf("numbers %v", p.Slots())
		}
		w.Unlock(p)
		if calls := w.Calls.Took(); calls["Release"] != 1 {
			w.Errorf("%v to return them", calls)
		}
		w.empty(n)
	})
}

// A middleware without Unwrap hides what the store can do. Its callers have permits of the same group nevertheless.
func TestGroupBehindAMiddlewareWithoutUnwrap(t *testing.T) {
	groups(t, func(w *world) {
		p := w.lock(semaphore.New(placestest.Opaque(w.Client()), 1))
		if _, err := semaphore.New(w.Client(), 1).TryLock(w.Context(), key); err == nil {
			w.Error("one permit is held twice")
		}
		w.Unlock(p)
		w.empty(1)
	})
}

// An error of the connection does not say that the store has no groups, whatever it matches. Otherwise a caller would
// have a permit as a lock, beside those of the group.
func TestErrorsOfConnectionsDoNotDenyTheGroup(t *testing.T) {
	groups(t, func(w *world) {
		w.Calls.Fail(fmt.Errorf("write: %w", syscall.EOPNOTSUPP))
		var others []*semaphore.Semaphore
		for _, l := range []locker.Locker{w.Client(), placestest.Opaque(w.Client())} {
			s := semaphore.New(l, 1)
			if lease, err := s.TryLock(w.Context(), key); err == nil {
				w.Errorf("%v of a store that fails", lease)
			}
			others = append(others, s)
		}
		w.Calls.Fail(nil)
		p := w.lock(semaphore.New(w.Client(), 1))
		for _, s := range others {
			if lease, err := s.TryLock(w.Context(), key); !errors.Is(err, locker.ErrHeld) {
				w.Errorf("one permit is held twice: %v, %v", lease, err)
			}
		}
		w.Unlock(p)
		w.empty(1)
	})
}

// A lock with the name of a group would keep all others from it.
func TestLockAllHasNoLockOfAGroup(t *testing.T) {
	groups(t, func(w *world) {
		keys := []string{"{" + key + "}#permits", "other"}
		if lease, err := locker.TryLockAll(w.Context(), w.Client(), keys); !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("%v, %v", lease, err)
		}
		w.empty(1)
	})
}

// Where nobody knows of the group, each permit is a lock, as on stores without groups: a middleware may make other
// names of all, and a Locker below may make locks of its own of each name.
func TestPermitsWhereNobodyKnowsOfTheGroup(t *testing.T) {
	groups(t, func(w *world) {
		for name, below := range map[string]func() locker.Locker{
			"other names":     func() locker.Locker { return placestest.Hashing(w.Client()) },
			"a shared lock":   func() locker.Locker { return rwlock.New(w.Client()).Shared() },
			"another of them": func() locker.Locker { return semaphore.New(w.Client(), 1) },
		} {
			for range 2 {
				one, two := semaphore.New(below(), 2), semaphore.New(below(), 2)
				held := []locker.Lease{w.lock(one), w.lock(two)}
				if lease, err := one.TryLock(w.Context(), key); name == "other names" && err == nil {
					w.Errorf("%s: %v is a third of two permits", name, lease)
					w.Unlock(lease)
				}
				w.Unlock(held...)
			}
		}
		w.empty(2)
	})
}

// The holder of permits of a group learns at once that somebody waits.
func TestHolderOfPermitsOfAGroupIsWanted(t *testing.T) {
	groups(t, func(w *world) {
		p := w.lock(semaphore.New(w.Client(), 2).Weight(2))
		synctest.Wait()
		select {
		case <-locker.Wanted(p):
			w.Error("wanted, and nobody waits")
		default:
		}
		go func() { w.Unlock(w.lock(semaphore.New(w.Client(), 2))) }()
		<-locker.Wanted(p)
		w.Unlock(p)
		w.empty(2)
	})
}

// A middleware may acquire more than it returns. The numbers of a permit are those of the lease that it has returned.
func TestNumbersAreThoseOfTheLease(t *testing.T) {
	groups(t, func(w *world) {
		first := w.lock(semaphore.New(placestest.Hedging(w.Client()), 2))
		second := w.lock(semaphore.New(w.Client(), 2))
		if first.Slot() == second.Slot() {
			w.Errorf("two holders have permit %d", first.Slot())
		}
		w.Unlock(first, second)
		w.empty(2)
	})
}

// A middleware that forgets what its caller wants gives no lock beside those who have the permits.
func TestMiddlewareWithAContextOfItsOwn(t *testing.T) {
	groups(t, func(w *world) {
		s := semaphore.New(placestest.Forgetful(w.Client()), 1)
		if _, err := s.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("%v, want %v", err, locker.ErrInvalid)
		}
		if seen, err := w.Client().Inspect(t.Context(), s.Locks("k")[0]); err != nil || seen.State != inspect.Free {
			t.Errorf("%s, %v", seen.State, err)
		}
	})
}

// A holder waits for permits of others, also if it has as many: those of a greater limit may be beyond the numbers of a
// smaller one.
func TestHolderWithAGreaterLimitThatAsksAgain(t *testing.T) {
	groups(t, func(w *world) {
		c := w.Client()
		low, high := w.lock(semaphore.New(c, 4).Weight(2)), w.lock(semaphore.New(c, 4).Weight(2))
		w.Unlock(low)
		ctx, cancel := locker.WithLease(w.Context(), high)
		defer cancel()
		lease, err := semaphore.New(c, 2).Lock(ctx, key)
		if err != nil {
			w.Fatal(err)
		}
		if _, err := semaphore.New(c, 3).Weight(3).Lock(ctx, key); !errors.Is(err, locker.ErrReentrant) {
			w.Error(err)
		}
		w.Unlock(lease, high)
		w.empty(4)
	})
}

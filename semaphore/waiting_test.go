package semaphore_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// A caller dies while it waits at the front, and all permits are returned. It keeps others waiting for the TTL of the
// gate, and not for its own. The same holds for a caller that has some of the permits that it waits for.
func TestDeadWaiterKeepsOthersForTheTTLOfTheGate(t *testing.T) {
	stores(t, func(w *world) {
		const n = 3
		type kind = func(s *semaphore.Semaphore) *semaphore.Semaphore
		one := func(s *semaphore.Semaphore) *semaphore.Semaphore { return s }
		for name, tt := range map[string]struct {
			held int // permits, while it waits
			opts []locker.Option
			of   kind
		}{
			"one permit":   {n, nil, one},
			"a long TTL":   {n, []locker.Option{locker.TTL(time.Minute)}, one},
			"no renewal":   {n, []locker.Option{locker.NoRenewal()}, one},
			"many permits": {1, nil, func(s *semaphore.Semaphore) *semaphore.Semaphore { return s.Weight(n) }},
			"many, and a long TTL": {1, []locker.Option{locker.TTL(time.Minute), locker.NoRenewal()},
				func(s *semaphore.Semaphore) *semaphore.Semaphore { return s.Weight(n) }},
		} {
			held := w.lock(semaphore.New(w.Client(), n).Weight(tt.held))
			ctx, die := context.WithCancel(w.Context())
			over := make(chan struct{})
			go func() {
				defer close(over)
				opts := slices.Concat(tt.opts, []locker.Option{locker.Label("dies")})
				if lease, err := tt.of(semaphore.New(w.Client(), n)).Lock(ctx, key, opts...); err == nil {
					w.Errorf("%s: the dead caller has %v", name, lease)
				}
			}()
			time.Sleep(10 * time.Second)
			w.Calls.Kill("dies")
			die()
			time.Sleep(time.Millisecond) // the queues of the store forget it
			w.Unlock(held)
			start := time.Now()
			all := w.lock(semaphore.New(w.Client(), n).Weight(n))
			if took := time.Since(start); took > 4*time.Second {
				w.Errorf("%s: a caller died while it waited, and others waited for %v", name, took)
			}
			w.Unlock(all)
			<-over
			w.Calls.Kill("")
			time.Sleep(time.Minute) // so that nothing more is done for it
		}
		w.empty(n)
	})
}

// A caller that needs several permits has some of them long before the last one. MaxHold, MinHold and the TTL without
// renewal count from when it has all, so that it has as much of them as if all had been free, also behind a middleware
// whose leases have no Unwrap.
func TestTimesCountFromTheLastPermit(t *testing.T) {
	stores(t, func(w *world) {
		for _, wrap := range []locker.Middleware{locker.Defaults(), placestest.Opaque} {
			w.timesCountFromTheLastPermit(wrap)
		}
	})
}

func (w *world) timesCountFromTheLastPermit(wrap locker.Middleware) {
	const n, d = 3, 5 * time.Second
	for _, wait := range []time.Duration{d - 200*time.Millisecond, 4 * d} {
		for name, opts := range map[string][]locker.Option{
			"MaxHold": {locker.MaxHold(d)}, "NoRenewal": {locker.NoRenewal(), locker.TTL(d)},
			"MinHold": {locker.MinHold(d)}, "TTL": {locker.TTL(2 * d)},
		} {
			held := w.lock(semaphore.New(w.Client(), n))
			time.AfterFunc(wait, func() { w.Unlock(held) })
			start := time.Now()
			lease := w.Lock(semaphore.New(wrap(w.Client()), n).Weight(n), key, opts...)
			if waited := time.Since(start); waited > wait+2*time.Second {
				w.Errorf("%s: a caller waited for %v, %v of them for nothing", name, waited, waited-wait)
			}
			has := time.Now()
			if left := time.Until(lease.Until()); left < d-time.Second {
				w.Errorf("%s: after a wait of %v, the lease has %v of %v left", name, wait, left, d)
			}
			if name == "MinHold" {
				w.Unlock(lease)
				w.Unlock(w.lock(semaphore.New(w.Client(), n)))
				if kept := time.Since(has); kept < d-100*time.Millisecond {
					w.Errorf("after a wait of %v, a permit was kept for %v of %v", wait, kept, d)
				}
				continue
			}
			time.Sleep(d + time.Second)
			if ended := lease.Err() != nil; ended != (name != "TTL") {
				w.Errorf("%s: the lease has %v after its time", name, lease.Err())
			}
			_ = lease.Unlock(w.Context())
		}
	}
	w.empty(n)
}

// strict is a store that refuses TTLs above a minute, as Redis does with a restart guard.
type strict struct {
	backend.Backend
	mu    sync.Mutex
	keeps time.Duration // the greatest MinHold of a request
}

func (s *strict) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	s.mu.Lock()
	s.keeps = max(s.keeps, req.MinHold)
	s.mu.Unlock()
	if req.TTL > time.Minute {
		return backend.Grant{}, locker.ErrInvalid
	}
	return s.Backend.Acquire(ctx, req)
}

func (s *strict) Extend(ctx context.Context, req backend.Request) error {
	if req.TTL > time.Minute {
		return locker.ErrInvalid
	}
	return s.Backend.Extend(ctx, req)
}

// What a caller asks for holds once it has all permits. The store knows of MinHold before, and a TTL that it refuses
// then fails the call, which does not begin anew for ever.
func TestStoreRefusesWhatHoldsOnceACallerHasAllPermits(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := &strict{Backend: memory.NewBackend()}
		c := locker.NewClient(store)
		s := semaphore.New(c, 3).Weight(2)
		if _, err := s.Lock(t.Context(), key, locker.TTL(time.Hour)); !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("a TTL that the store refuses: %v", err)
		}
		lease, err := s.Lock(t.Context(), key, locker.MinHold(time.Second))
		if err != nil || store.keeps != time.Second {
			t.Fatalf("the store was told a MinHold of %v: %v", store.keeps, err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// withoutGroups is a store that makes a lock of each permit.
type withoutGroups struct{ *lockertest.Store }

func (s withoutGroups) Capabilities() backend.Capabilities {
	can := s.Store.Capabilities()
	can.Groups = false
	return can
}

// A store that hangs for longer than the gate lives: the patience of those that wait counts from when it began to hang,
// and not from when the gate was lost.
func TestPatienceWhenTheStoreHangs(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := lockertest.NewStore()
		s := func() *semaphore.Semaphore {
			c := locker.NewClient(withoutGroups{store})
			t.Cleanup(func() { _ = c.Close() })
			return semaphore.New(c, 1)
		}
		if _, err := s().Lock(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		failed := make(chan time.Time, 2)
		for range cap(failed) {
			waits := s()
			go func() {
				_, err := waits.Lock(t.Context(), key, locker.TTL(ttl), locker.Patience(2*time.Second))
				if !errors.Is(err, locker.ErrUnavailable) {
					t.Error(err)
				}
				failed <- time.Now()
			}()
		}
		time.Sleep(time.Second)
		start := time.Now()
		store.Delay(time.Hour)
		for range cap(failed) {
			if took := (<-failed).Sub(start); took > 12*time.Second { // the gate lives for up to 3 s, and two requests follow
				t.Errorf("failed after %v, with a patience of 2 s and requests that end after 5 s", took)
			}
		}
		store.Delay(0)
	})
}

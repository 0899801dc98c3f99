package record_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// watched returns clients of a store that tells of changes.
func watched(t *testing.T, s *recordstore.Store, hint func() []time.Duration) func() record.Store {
	var all []*recordstore.Watched
	t.Cleanup(func() {
		for _, w := range all {
			if begun, open := w.Watches(); open > 0 {
				t.Errorf("%d of %d watches have not ended", open, begun)
			}
		}
	})
	return func() record.Store {
		all = append(all, &recordstore.Watched{Store: s, Hint: hint})
		return all[len(all)-1]
	}
}

// handOvers has a waiter wait for a lock that is held for hold each time. It returns how long after each release the
// waiter has the lock.
func handOvers(t *testing.T, open func() record.Store, n int, hold, ttl time.Duration) (took []time.Duration) {
	holder, waiter := client(t, open()), client(t, open())
	for range n {
		held, err := holder.Lock(t.Context(), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		released := make(chan time.Time, 1)
		go func() {
			time.Sleep(hold)
			released <- time.Now()
			if err := held.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		got, err := waiter.Lock(t.Context(), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(<-released))
		if err := got.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	return took
}

// A waiter that is told of a release takes the lock after two more trips to the store and back. If hints are lost,
// doubled or late, it takes the lock after ten pauses at most.
func TestWaitersAreTold(t *testing.T) {
	const latency, n = time.Millisecond, 30
	after := func(all ...time.Duration) func() []time.Duration { return func() []time.Duration { return all } }
	for name, c := range map[string]struct {
		hint          func() []time.Duration
		median, worst time.Duration
	}{
		"":        {nil, 7 * latency, 7 * latency},
		"doubled": {after(latency, latency, time.Minute), 7 * latency, time.Second},
		"late":    {after(time.Second), 1010 * time.Millisecond, 2 * time.Second},
		"lost":    {never, 10 * time.Second, 10*time.Second + 7*latency},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				s.Latency = latency
				took := handOvers(t, watched(t, s, c.hint), n, 21*time.Second, 10*time.Second)
				if took[n/2] > c.median || took[n-1] > c.worst {
					t.Errorf("a waiter has got the lock after %v, after %v at most", took[n/2], took[n-1])
				}
			})
		})
	}
}

// A waiter looks seldom if it is told of changes: after each renewal.
func TestLooksOfThoseWhoWatch(t *testing.T) {
	for name, c := range map[string]struct {
		open        func(t *testing.T, s *recordstore.Store) record.Store
		least, most int // looks in an hour
	}{
		"a watch": {
			func(t *testing.T, s *recordstore.Store) record.Store { return watched(t, s, nil)() }, 1_000, 1_200,
		},
		"no watch": {func(t *testing.T, s *recordstore.Store) record.Store { return s }, 4_000, 6_000},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				held, err := client(t, s).Lock(t.Context(), "k", locker.TTL(10*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				before := s.Requests()["get"]
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if _, err := client(t, c.open(t, s)).Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
					t.Error(err)
				}
				n := s.Requests()["get"] - before
				t.Logf("%d looks in an hour", n)
				if n < c.least || n > c.most {
					t.Errorf("expected %d to %d", c.least, c.most)
				}
				if err := held.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func never() []time.Duration { return nil }

// A lock of a holder that has crashed is taken when its time is over, although nothing tells of that.
func TestNothingTellsOfACrash(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		acquire(t, backendOf(t, s), 3*time.Second)
		start := time.Now()
		lease, err := client(t, watched(t, s, nil)()).Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != record.Patience(3*time.Second) {
			t.Errorf("after %v", took)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A hint wakes a waiter, and gives it nothing.
func TestHintsAreNotTrusted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		acquire(t, backendOf(t, s), time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for ctx.Err() == nil {
				s.Put("k", s.Text("k")) // tells of a change, and is none
				time.Sleep(10 * time.Millisecond)
			}
		})
		if _, err := client(t, watched(t, s, nil)()).Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		if n := s.Requests()["get"]; n > 130 {
			t.Errorf("%d looks in a minute, more than without hints", n)
		}
	})
}

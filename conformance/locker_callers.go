package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func callersShareALock(t testing.TB, h Harness) {
	const callers, rounds = 4, 6
	ls, s := clients(t, h, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	var inside atomic.Int32
	var mu sync.Mutex
	g := growing{}
	var wg sync.WaitGroup
	for _, l := range ls {
		for range callers {
			wg.Go(func() {
				for range rounds {
					lease, err := l.Lock(ctx, "k", locker.TTL(longTTL))
					if err != nil {
						t.Errorf("repeated Lock: expected a lease, seen %v", err)
						return
					}
					if n := inside.Add(1); n != 1 {
						t.Errorf("expected one holder, seen %d at once", n)
					}
					if can(l).Tokens {
						mu.Lock()
						g.next(t, "a holder after another", lease.Fence())
						mu.Unlock()
					}
					time.Sleep(time.Millisecond) // so that others wait
					inside.Add(-1)
					unlock(t, lease)
				}
			})
		}
	}
	wg.Wait()
	if s.Left != nil {
		waitUntilEmpty(t, s.Left, "after callers of two clients have shared a lock", slack)
	}
	for _, l := range ls {
		lease, _ := acquireWhenFree(t, l, "k")
		unlock(t, lease)
	}
}

func callersHaveLeasesOfTheirOwn(t testing.TB, h Harness) {
	const callers = 5 // a Client that hands a lock over does so when the first of them have asked the store
	ls, _ := clients(t, h, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	holder := lock(t, ls[1], "k", locker.TTL(longTTL))
	served := make(chan *waiter, callers)
	for range callers {
		w := wait(ctx, ls[0], "k")
		w.settle(unheard)
		go func() {
			<-w.done
			served <- w
		}()
	}
	unlock(t, holder)
	earlier := []locker.Lease{holder}
	for range callers {
		w := <-served
		if w.err != nil {
			t.Fatalf("Lock of one of several callers of a client: expected a lease, seen %v", w.err)
		}
		for _, l := range earlier {
			_ = l.Unlock(t.Context()) // DoubleUnlock checks what it returns
			wantError(t, "Extend of an earlier lease", l.Extend(t.Context()), locker.ErrUnlocked)
			if err := l.Err(); !errors.Is(err, locker.ErrUnlocked) || !isDone(l) {
				t.Errorf("an earlier lease: expected ErrUnlocked and Done closed, seen Err %v, Done closed %v", err,
					isDone(l))
			}
		}
		if w.lease.Err() != nil || isDone(w.lease) {
			t.Errorf("the lease of the holder: expected it to be open, seen Err %v, Done closed %v", w.lease.Err(),
				isDone(w.lease))
		}
		if err := w.lease.Extend(t.Context()); err != nil {
			t.Errorf("Extend of the holder: expected no error, seen %v", err)
		}
		wantHeld(t, ls[1], "k")
		earlier = append(earlier, w.lease)
		unlock(t, w.lease)
	}
}

// callersShareWithOthers needs a queue: among clients that poll, the lock goes to the one that asks at the right
// moment.
func callersShareWithOthers(t testing.TB, h Harness) {
	const callers, times, hold = 64, 10, time.Millisecond
	ls, _ := clients(t, h, 2)
	need(t, can(ls[0]).Order, "Order")
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	var over atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer over.Store(true)
	for range callers {
		wg.Go(func() {
			for !over.Load() {
				lease, err := ls[0].Lock(ctx, "k", locker.TTL(longTTL))
				if err != nil {
					t.Errorf("Lock without a pause: expected a lease, seen %v", err)
					return
				}
				time.Sleep(hold)
				_ = lease.Unlock(ctx)
			}
		})
	}
	late, _ := h.milliseconds()
	limit := 50*time.Millisecond + 2*hold + 2*late // of two hand-overs by the store
	fastest := hangLimit
	for i := range times {
		time.Sleep(50*time.Millisecond + time.Duration(i)*7*time.Millisecond) // at different moments of a hand-over
		start := time.Now()
		lease, err := ls[1].Lock(ctx, "k", locker.TTL(longTTL))
		took := time.Since(start)
		if err != nil {
			t.Fatalf("Lock while callers of another client lock without a pause: expected a lease, seen %v", err)
		}
		unlock(t, lease)
		fastest = min(fastest, took)
		if h.Bubble != nil && took > limit { // in real time the fastest counts
			fastest = took
			break
		}
	}
	if fastest > limit {
		t.Errorf("Lock while callers of another client lock without a pause: expected a lease within %v, seen it after %v",
			limit, fastest)
	}
}

package locker_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

func TestWhenRenewalsAreSent(t *testing.T) {
	const s = time.Second
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		// The first renewal is due a third of the TTL after the request, not after the answer.
		l := mustLock(t, locker.NewClient(late{e, 2 * s}), "k", locker.TTL(30*s))
		e.on(func(_ context.Context, _ backend.Request, next func() error) error {
			time.Sleep(s) // the third is also counted from when this request was sent
			switch len(e.at()) {
			case 3, 4:
				return locker.ErrUnavailable
			}
			return next()
		})
		time.Sleep(60*s - 2*s)
		want := []time.Duration{10 * s, 20 * s, 30 * s, 33 * s, 36 * s, 46 * s, 56 * s}
		if !slices.Equal(e.at(), want) {
			t.Errorf("renewals were sent at %v, want %v", e.at(), want)
		}
		_ = l.Unlock(t.Context())
	})
}

// A renewal that hangs must not end the lease if the next renewals are answered.
func TestRenewalThatHangsLeavesTimeForMore(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		e.on(func(ctx context.Context, _ backend.Request, next func() error) error {
			if len(e.at()) > 3 {
				return next()
			}
			<-ctx.Done()
			return fmt.Errorf("no answer: %w", ctx.Err())
		})
		time.Sleep(2 * ttl)
		synctest.Wait()
		if err := l.Err(); err != nil {
			t.Errorf("%v, after renewals at %v", err, e.at())
		}
		if e.most["k"] != 1 {
			t.Errorf("%d renewals at once", e.most["k"])
		}
		_ = l.Unlock(t.Context())
	})
}

// A connection that hangs must not occupy a slot for hours, even if the TTL is long.
func TestRenewalOfALongTTLIsBounded(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(locker.MaxTTL))
		var took time.Duration
		e.on(func(ctx context.Context, _ backend.Request, _ func() error) error {
			start := time.Now()
			<-ctx.Done()
			took = time.Since(start)
			return ctx.Err()
		})
		time.Sleep(locker.MaxTTL/3 + time.Minute)
		synctest.Wait()
		if took == 0 || took > 10*time.Second {
			t.Errorf("given up after %v", took)
		}
		_ = l.Unlock(t.Context())
	})
}

// There is one renewal of a lease at a time, even if the backend does not return when the context ends.
func TestOneRenewalOfALeaseAtATime(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		for i := range 10 {
			mustLock(t, c, fmt.Sprint(i), locker.TTL(ttl))
		}
		e.on(func(_ context.Context, _ backend.Request, next func() error) error {
			err := next()
			time.Sleep(ttl * 2 / 5)
			return err
		})
		time.Sleep(10 * ttl)
		synctest.Wait()
		if len(e.at()) < 100 {
			t.Errorf("only %d renewals: the test shows nothing", len(e.at()))
		}
		for key, n := range e.most {
			if n != 1 {
				t.Errorf("%d renewals of %s at once", n, key)
			}
		}
	})
}

func TestRenewalsOfAboutTheSameTimeTravelTogether(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		const n = 100
		for i := range n {
			mustLock(t, c, fmt.Sprint(i), locker.TTL(ttl))
			time.Sleep(ttl / 30 / n)
		}
		e.on(func(_ context.Context, req backend.Request, next func() error) error {
			time.Sleep(time.Duration(len(req.Key)) * time.Millisecond) // the answers arrive at different times
			return next()
		})
		time.Sleep(10 * ttl)
		instants := e.together()
		for at, together := range instants {
			if together != n {
				t.Errorf("at %v %d were renewed, not all %d", at, together, n)
			}
		}
		if len(instants) < 29 || len(instants) > 31 {
			t.Errorf("renewed at %d instants in 30 thirds of the TTL", len(instants))
		}
	})
}

// Leases whose renewals are far apart are not renewed together, because that would cause more renewals than necessary.
func TestRenewalsFarApartStayApart(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		for i := range 5 {
			mustLock(t, c, fmt.Sprint(i), locker.TTL(ttl))
			time.Sleep(ttl/30 + time.Millisecond)
		}
		time.Sleep(ttl)
		instants := e.together()
		for at, together := range instants {
			if together != 1 {
				t.Errorf("at %v %d were renewed together", at, together)
			}
		}
	})
}

func TestRenewalsInFlightAreBoundedAndInOrder(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		const n, bound, long = 3000, 1024, 30 * time.Second
		var order []string
		for i := range n {
			order = append(order, fmt.Sprint(i))
			mustLock(t, c, order[i], locker.TTL(long))
			time.Sleep(long / 30 / n)
		}
		e.on(func(_ context.Context, _ backend.Request, next func() error) error {
			err := next()
			time.Sleep(time.Second)
			return err
		})
		time.Sleep(long / 2)
		e.mu.Lock()
		if e.peak != bound {
			t.Errorf("%d renewals in flight at once, want %d", e.peak, bound)
		}
		for first := 0; first < n; first += bound {
			last := min(first+bound, n)
			want, got := slices.Clone(order[first:last]), slices.Clone(e.keys[first:last])
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("the renewals %d to %d are not of the leases that were due then", first, last)
			}
		}
		e.mu.Unlock()
		time.Sleep(2 * long)
		if held := locker.Held(c); held != n {
			t.Errorf("%d of %d leases are left", held, n)
		}
	})
}

func TestHeldLeasesCostNoGoroutine(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		before := runtime.NumGoroutine()
		var leases []locker.Lease
		for i := range 10_000 {
			leases = append(leases, mustLock(t, c, fmt.Sprint(i)))
		}
		time.Sleep(locker.DefaultTTL * 4 / 10)
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 10 { // the runtime may have some of its own
			t.Errorf("%d goroutines more while 10,000 leases are held", n)
		}
		if len(e.at()) < len(leases) {
			t.Errorf("only %d renewals: the test shows nothing", len(e.at()))
		}
		for _, l := range leases {
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		n := len(e.at())
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(e.at()) != n {
			t.Errorf("%d renewals after Unlock", len(e.at())-n)
		}
	})
}

func TestEndedLeasesAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		unlocked := mustLock(t, c, "unlocked")
		mustLock(t, c, "expired", locker.TTL(ttl), locker.NoRenewal())
		mustLock(t, c, "limited", locker.TTL(ttl), locker.MaxHold(ttl/2))
		stolen := mustLock(t, c, "stolen", locker.TTL(ttl))
		mustLock(t, c, "held", locker.TTL(ttl))
		s.steal(t, stolen, time.Hour)
		_ = unlocked.Unlock(t.Context())
		time.Sleep(2 * ttl)
		if n := locker.Held(c); n != 1 {
			t.Errorf("the Client keeps account of %d leases, want the one that is held", n)
		}
	})
}

func TestCloseWaitsForRenewals(t *testing.T) {
	watching(t, func(t *testing.T, e *extensions, c *locker.Client) {
		mustLock(t, c, "k", locker.TTL(ttl))
		returned := false
		e.on(func(ctx context.Context, _ backend.Request, _ func() error) error {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
			returned = true
			return ctx.Err()
		})
		time.Sleep(ttl/3 + time.Millisecond)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if len(e.at()) != 1 || !returned {
			t.Errorf("Close returned while a renewal was in flight (%d sent)", len(e.at()))
		}
	})
}

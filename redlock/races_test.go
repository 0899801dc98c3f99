package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/steady"
)

// Grants of a minority are still in flight, in either direction, when the lock is extended and released. Nothing may be
// left.
func TestUnlockWhileGrantsAreUnderWay(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		l := c.tapped(t, driver, jitter(3*time.Millisecond))
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for n := range 200 {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if n%4 == 3 {
						ctx, cancel = context.WithTimeout(ctx, rand.N(4*time.Millisecond))
					}
					lease, err := l.TryLock(ctx, fmt.Sprint(g, "-", n), locker.TTL(longTTL))
					if err != nil {
						if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) { // a timer may be late
							t.Errorf("Lock: %v", err)
						}
						cancel()
						continue
					}
					if n%3 == 0 {
						if err := lease.Extend(t.Context()); err != nil {
							t.Errorf("Extend: %v", err)
						}
					}
					steady.Unlock(t, lease)
					cancel()
				}
			})
		}
		wg.Wait()
		c.wantNoLocks(t)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if keys := c.locks(t); len(keys) > 0 {
			t.Errorf("left: %q", keys)
		}
	})
}

// Close while attempts, extensions and releases are under way: attempts that failed leave nothing. Only leases that
// were handed out and not released may.
func TestCloseWhileInUse(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		var mu sync.Mutex
		mayStay := map[string]bool{}
		for n := range 15 {
			l := c.tapped(t, driver, jitter(5*time.Millisecond))
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := 0; ; i++ {
						key := fmt.Sprint(n, "-", g, "-", i)
						lease, err := l.TryLock(t.Context(), key, locker.TTL(longTTL))
						if errors.Is(err, locker.ErrClosed) {
							return
						}
						if err != nil {
							t.Errorf("Lock: %v", err)
							return
						}
						if i%2 == 0 {
							_ = lease.Extend(t.Context())
						}
						if err := lease.Unlock(t.Context()); err != nil {
							if !errors.Is(err, locker.ErrClosed) {
								t.Errorf("Unlock: %v", err)
							}
							mu.Lock()
							mayStay["lock:"+key] = true
							mu.Unlock()
						}
					}
				})
			}
			time.Sleep(rand.N(20 * time.Millisecond))
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
		}
		left := map[string]int{}
		for _, s := range c {
			for _, key := range s.Keys(t, "lock:*") {
				if !mayStay[key] {
					left[key]++
				}
			}
		}
		if len(left) > 0 {
			t.Errorf("of attempts that failed or were released, keys and on how many nodes: %v", left)
		}
	})
}

// A lease that renews itself, released at any moment of a renewal, does not come back.
func TestUnlockWhileRenewing(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		l := c.tapped(t, driver, func(_ int, d drivers.Driver) drivers.Driver {
			slow := func([]drivers.Command) { time.Sleep(rand.N(2 * time.Millisecond)) }
			return tap{d, slow, slow}
		})
		defer l.Close()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for n := range 20 {
					lease, err := l.TryLock(t.Context(), fmt.Sprint(g, "-", n), locker.TTL(longTTL))
					if err != nil {
						t.Error(err)
						continue
					}
					extended := make(chan struct{})
					go func() {
						defer close(extended)
						for lease.Extend(t.Context()) == nil {
						}
					}()
					time.Sleep(rand.N(10 * time.Millisecond))
					steady.Unlock(t, lease)
					<-extended
				}
			})
		}
		wg.Wait()
		c.wantNoLocks(t)
	})
}

package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
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

// A program that locks, unlocks, closes and ends leaves nothing, although a minority's grants were under way.
func TestCloseRightAfterUnlock(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		orphans := 0
		for n := range 20 {
			l := c.tapped(t, driver, jitter(5*time.Millisecond))
			if err := steadyCycle(t.Context(), l, fmt.Sprint("k", n)); err != nil {
				t.Error(err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if keys := c.locks(t); len(keys) > orphans {
				orphans = len(keys)
			}
		}
		if orphans > 0 {
			t.Errorf("%d keys are left after 20 times: %q", orphans, c.locks(t))
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

// Late grants become part of the lease: it is extended and released there, too, and lives on them when others fail.
func TestLateGrantsJoinTheLease(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		r := newRig(t, driver, 5, 5*time.Second)
		for _, p := range r.proxies[3:] {
			p.Handle(func(q fault.Request) fault.Action {
				if isAcquire(q.Args) {
					return fault.Delay(20 * time.Millisecond)
				}
				return fault.Pass
			})
		}
		lease := r.lockAll(t, r.client, "k", locker.NoRenewal())
		for _, s := range r.cluster {
			s.Cmd(t, "PEXPIRE", "lock:k", 60000)
		}
		eventually(t, 30*time.Second, "it is extended everywhere", func() bool {
			if err := lease.Extend(t.Context()); err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(r.cluster, func(s *redistest.Server) bool { return s.PTTL(t, "lock:k") <= time.Minute })
		})
		r.cluster[0].Kill()
		r.cluster[1].Kill()
		if err := lease.Extend(t.Context()); err != nil {
			t.Errorf("on one node of the first three and two late ones: %v", err)
		}
		steady.Unlock(t, lease)
		r.cluster[2:].wantNoLocks(t)
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

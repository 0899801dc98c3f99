package redlock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// take locks n keys with that many goroutines, named after prefix.
func take(t *testing.T, l locker.Locker, prefix string, n, goroutines int, opts ...locker.Option) []locker.Lease {
	t.Helper()
	leases := make([]locker.Lease, n)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < n; i += goroutines {
				lease, err := l.Lock(t.Context(), fmt.Sprint(prefix, i), opts...)
				if err != nil {
					t.Errorf("%s%d: %v", prefix, i, err)
					return
				}
				leases[i] = lease
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return leases
}

// everywhere reports whether n locks whose names begin with prefix are on all nodes.
func (c cluster) everywhere(t *testing.T, prefix string, n int) bool {
	t.Helper()
	on := c.reach(t, prefix)
	for _, nodes := range on {
		if nodes < len(c) {
			return false
		}
	}
	return len(on) == n
}

// reach returns on how many nodes each lock is whose name begins with prefix.
func (c cluster) reach(t *testing.T, prefix string) map[string]int {
	t.Helper()
	on := map[string]int{}
	for _, s := range c {
		for _, key := range s.Keys(t, "lock:"+prefix+"*") {
			on[key]++
		}
	}
	return on
}

// LOCKER_MEASURE=1 go test -run TestMeasureReach -v ./redlock
//
// TestMeasureReach takes leases with 1, 8 and 64 goroutines, waits for a renewal, and counts those that are on a bare
// majority only; then it stops two nodes of five, and another two when they are back, and so on, and counts those that
// are lost. It is a measurement: on a machine that stalls for seconds leases are lost for that reason.
func TestMeasureReach(t *testing.T) {
	if _, wanted := measuring(0); !wanted {
		t.Skip("a measurement, for LOCKER_MEASURE=1; TestMinorityFailsUnderALease has the same without a clock")
	}
	const n, ttl = 1000, 3 * time.Second
	var minorities [][2]int
	for j := range 5 {
		for i := range j {
			minorities = append(minorities, [2]int{i, j})
		}
	}
	stopped := 0
	for _, driver := range drivers.Names() {
		t.Run(driver, func(t *testing.T) {
			c := startCluster(t, 5)
			l := c.client(t, driver)
			for round, goroutines := range []int{1, 8, 64} {
				prefix := fmt.Sprintf("%d-", round)
				begun := time.Now()
				leases := take(t, l, prefix, n, goroutines, locker.TTL(ttl))
				took := time.Since(begun)
				time.Sleep(ttl / 2) // all have been renewed once
				early, bare := len(lost(leases)), 0
				on := c.reach(t, prefix)
				for _, nodes := range on {
					if nodes <= len(c)/2+1 {
						bare++
					}
				}
				after := map[string]int{}
				for range 4 { // in turn: over all rounds, each pair more than once
					m := minorities[stopped%len(minorities)]
					stopped++
					for _, i := range m {
						c[i].Pause()
					}
					time.Sleep(ttl)
					for _, i := range m {
						c[i].Resume()
					}
					after[fmt.Sprint(m)] = len(lost(leases))
					within(5*ttl, func() bool { return c.everywhere(t, prefix, n) }) // before others are stopped
				}
				all := lost(leases)
				t.Logf("%d goroutines: %d leases in %v, %d on a bare majority after a renewal; "+
					"lost: %d before a minority was stopped, %d by then (%v)",
					goroutines, len(leases), took.Round(time.Millisecond), bare, early, len(all), after)
				if bare > 0 || len(all) > 0 {
					t.Errorf("%d of %d leases on a bare majority, %d lost: %v", bare, len(leases), len(all), all)
				}
				for _, lease := range leases {
					_ = lease.Unlock(t.Context())
				}
			}
		})
	}
}

// lost returns why leases have ended.
func lost(leases []locker.Lease) (errs []error) {
	for _, lease := range leases {
		if err := lease.Err(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

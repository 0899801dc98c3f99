package redlock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// An acquisition that nobody disputes, of a key that was used before, costs one command per node, and so does its
// release. Only if the nodes' clocks pass into another quantum while they answer, some may have to be raised.
func TestOneCommandPerNode(t *testing.T) {
	t.Parallel()
	const quantum = 65536 * time.Microsecond
	eachDriver(t, func(t *testing.T, driver string) {
		r := newRig(t, driver, 5, 5*time.Second)
		quanta := func() int64 { return time.Now().UnixMicro() / quantum.Microseconds() }
		tries := 0
		for n := 0; n < 5; {
			if tries++; tries > 50 {
				t.Skipf("too slow to do this within one quantum more than %d times", n)
			}
			now := quanta()
			eventually(t, time.Second, "another quantum", func() bool { return quanta() > now })
			now = quanta()
			// The first acquisition of a quantum may find counters that differ, and leaves them equal.
			full := func() (acquires, raises, all int) {
				acquires, raises, all = r.count(isAcquire), r.count(isRaise), r.count(isScript)
				lease, err := r.client.TryLock(t.Context(), "k", locker.TTL(longTTL))
				if err != nil {
					t.Fatal(err)
				}
				for end := time.Now().Add(time.Second); len(r.locks(t)) < 5 && time.Now().Before(end); {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Millisecond) // until the client knows that
				if err := lease.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.wantNoLocks(t)
				return r.count(isAcquire) - acquires, r.count(isRaise) - raises, r.count(isScript) - all
			}
			full()
			acquires, raises, all := full()
			if quanta() != now {
				continue
			}
			if n++; acquires != 5 || raises != 0 || all != 10 {
				t.Errorf("%d commands to acquire, %d to raise, %d in all; want 5, 0, 10", acquires, raises, all)
			}
		}
		if r.count(func(args []string) bool { return args[0] == "EVAL" }) > 5*4 {
			t.Error("scripts are sent in full again and again")
		}
	})
}

// LOCKER_MEASURE=1 go test -run TestMeasureReach -v ./redlock
//
// On how many of five healthy nodes a lease is kept: a node that was not asked when three had answered is not asked
// any more.
func TestMeasureReach(t *testing.T) {
	if _, on := measuring(0); !on {
		t.Skip("a measurement: LOCKER_MEASURE=1")
	}
	for _, driver := range drivers.Names() {
		for _, goroutines := range []int{1, 8, 64} {
			const locks = 960
			c := startCluster(t, 5)
			l := c.client(t, driver)
			cycle(t, l, "warm")
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() {
					for n := range locks / goroutines {
						if _, err := l.TryLock(t.Context(), fmt.Sprint(g, "-", n), locker.TTL(longTTL)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(200 * time.Millisecond)
			on := map[string]int{}
			for _, s := range c {
				for _, key := range s.Keys(t, "lock:*") {
					on[key]++
				}
			}
			var histogram [6]int
			for _, n := range on {
				histogram[n]++
			}
			t.Logf("%s, %d goroutines: of %d leases, on 3, 4, 5 nodes: %v", driver, goroutines, len(on), histogram[3:])
		}
	}
}

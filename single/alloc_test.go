//go:build !race

package single_test

import (
	"context"
	"math"
	"testing"

	"github.com/golocker/locker/internal/redistest"
	"github.com/golocker/locker/single"
)

// What a lock and its release allocate in all, on a real server, with the clients that drivers.Open makes: what
// TestAllocationsOfAnUncontendedLock in internal/node counts, the driver, and the client. Wanted are 8 more than the two bare
// commands make, which are 17, 10 and 1 (BenchmarkCycle in benchmarks). The race detector allocates, too, so this is only
// for builds without it.
func TestAllocationsOfEachDriver(t *testing.T) {
	for driver, want := range map[string]float64{"goredis": 16, "redigo": 10, "rueidis": 8} {
		l := closing(t, single.New(builders[driver](t, redistest.Start(t).Addr())))
		// A stall makes some: a timer that has to be replaced, a connection that is opened. One for each cycle shows in all.
		least := math.Inf(1)
		for range 5 {
			least = min(least, testing.AllocsPerRun(500, func() {
				lease, err := l.Lock(context.Background(), "orders:42")
				if err == nil {
					err = lease.Unlock(context.Background())
				}
				if err != nil {
					t.Fatal(err)
				}
			}))
		}
		if least > want {
			t.Errorf("%s: %v allocations, want %v", driver, least, want)
		}
	}
}

//go:build !race

package single_test

import (
	"context"
	"math"
	"testing"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// maxAllocations is a generous ceiling for a lock and its release, with what the client of the driver allocates: a
// go-redis client with its default settings makes about 105 of them. It catches leaks and growth with the number of
// calls. It is no score: pools that halved the number gained no time.
const maxAllocations = 200

// The race detector allocates, too, so this is only for builds without it.
func TestAllocationsOfEachDriver(t *testing.T) {
	for driver := range builders {
		l := closing(t, single.New(builders[driver](t, redistest.Start(t).Addr())))
		// A stall makes some: a timer that has to be replaced, a connection that is opened. One for each cycle shows in
		// all.
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
		if least > maxAllocations {
			t.Errorf("%s: %v allocations, want %v at most", driver, least, maxAllocations)
		}
	}
}

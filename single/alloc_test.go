//go:build !race

package single_test

import (
	"context"
	"math"
	"testing"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// maxAllocations has a ceiling for a lock and its release with each driver: one and a half times of what was measured,
// which is in the comments. It is not the same for all, because what the client allocates for itself is in it: the
// default settings of go-redis alone make 20 more than those of drivers.Open. It catches leaks and growth with the
// number of calls. It is no score: pools that halved the number gained no time.
var maxAllocations = map[string]float64{
	"goredis":                110, // 74
	"redigo":                 100, // 66
	"rueidis":                95,  // 63
	"goredis, user's client": 140, // 94
	"redigo, user's client":  100, // 66
	"rueidis, user's client": 95,  // 63
}

// The race detector allocates, too, so this is only for builds without it.
func TestAllocationsOfEachDriver(t *testing.T) {
	for driver := range builders {
		l := closing(t, single.New(builders[driver](t, redistest.Start(t).Addr())))
		// A stall makes some: a timer that has to be replaced, a connection that is opened. One for each cycle shows in
		// all.
		least := math.Inf(1)
		for range 5 {
			least = min(least, testing.AllocsPerRun(200, func() {
				lease, err := l.Lock(context.Background(), "orders:42")
				if err == nil {
					err = lease.Unlock(context.Background())
				}
				if err != nil {
					t.Fatal(err)
				}
			}))
		}
		if most, ok := maxAllocations[driver]; !ok || least > most {
			t.Errorf("%s: %v allocations, want %v at most", driver, least, most)
		}
	}
}

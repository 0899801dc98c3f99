package single_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/single"
)

// roundTrips counts the script calls that a server has executed, from INFO commandstats.
func roundTrips(t *testing.T, s *redistest.Server) (n int) {
	t.Helper()
	for line := range strings.Lines(s.Cmd(t, "INFO", "commandstats").(string)) {
		name, stats, _ := strings.Cut(line, ":calls=")
		if name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			calls, _, _ := strings.Cut(stats, ",")
			c, err := strconv.Atoi(calls)
			if err != nil {
				t.Fatal(err)
			}
			n += c
		}
	}
	return n
}

// 16 clients want one key: nobody polls, everybody gets a fair share. LOCKER_MEASURE makes it run longer; how much
// faster a sync.Mutex would be under the same load is reported, not asserted.
func TestContention(t *testing.T) {
	const clients, hold = 16, time.Millisecond
	d := time.Second
	if os.Getenv("LOCKER_MEASURE") != "" {
		d = 5 * time.Second
	}
	for _, name := range short.Part(t, 1, drivers.Names()) {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			lockers := make([]locker.Locker, clients)
			for i := range lockers {
				lockers[i] = closing(t, single.New(opened(name)(t, s.Addr())))
			}
			contention.Run(t, lockers, "k", hold, 300*time.Millisecond) // connections, subscriptions, scripts
			// A busy machine makes a goroutine miss its turn, and a long wait makes a waiter look once more. Neither happens
			// each time.
			var r contention.Result
			var trips, u float64
			fair := false
			for range 8 {
				before := roundTrips(t, s)
				r = contention.Run(t, lockers, "k", hold, d)
				trips, u = float64(roundTrips(t, s)-before)/float64(r.Total()), r.Unfairness()
				// In turn, no client can be more than one hold ahead of another, and one more at either end.
				if fair = u <= 0.05 || slices.Max(r.Holds)-slices.Min(r.Holds) <= 2; fair && trips <= 3.1 {
					break
				}
			}
			m := contention.Mutex(clients, hold, d)
			t.Logf("%v; %.2f round trips per acquisition; %.2f of a mutex (%.0f/s)", r, trips, r.Rate()/m.Rate(), m.Rate())
			if trips > 3.1 {
				t.Errorf("%.2f round trips per acquisition", trips)
			}
			if !fair {
				t.Errorf("one client's share is %.1f %% off: %v", 100*u, r.Holds)
			}
		})
	}
}

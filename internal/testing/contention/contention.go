// Package contention makes clients contend for one key, or for several at once, for tests and measurements.
package contention

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// Result is the measurements of one run.
type Result struct {
	Took     time.Duration
	Holds    []int           // by client
	Waits    []time.Duration // of every acquisition, sorted
	Handoffs []time.Duration // from the start of a release to the next holder, sorted
}

// Run lets each of the lockers lock, hold and unlock key repeatedly for d, and checks mutual exclusion.
func Run(tb testing.TB, lockers []locker.Locker, key string, hold, d time.Duration, opts ...locker.Option) Result {
	tb.Helper()
	r := Result{Holds: make([]int, len(lockers))}
	var mu sync.Mutex
	var released time.Time
	holders := 0
	ctx, cancel := context.WithTimeout(tb.Context(), d+30*time.Second)
	defer cancel()
	start := time.Now()
	var wg sync.WaitGroup
	for i, l := range lockers {
		wg.Go(func() {
			for time.Since(start) < d {
				asked := time.Now()
				lease, err := l.Lock(ctx, key, opts...)
				if err != nil {
					tb.Errorf("client %d: %v", i, err)
					return
				}
				got := time.Now()
				mu.Lock()
				if holders++; holders > 1 {
					tb.Errorf("client %d has the lock while %d others have", i, holders-1)
				}
				r.Holds[i]++
				r.Waits = append(r.Waits, got.Sub(asked))
				if !released.IsZero() {
					r.Handoffs = append(r.Handoffs, got.Sub(released))
				}
				mu.Unlock()
				time.Sleep(hold)
				mu.Lock()
				holders--
				released = time.Now()
				mu.Unlock()
				if err := lease.Unlock(ctx); err != nil {
					tb.Errorf("client %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	r.Took = time.Since(start)
	slices.Sort(r.Waits)
	slices.Sort(r.Handoffs)
	return r
}

// Mutex is the same load on a sync.Mutex, for comparison.
func Mutex(clients int, hold, d time.Duration) Result {
	r := Result{Holds: make([]int, clients)}
	var mu sync.Mutex
	start := time.Now()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for time.Since(start) < d {
				mu.Lock()
				r.Holds[i]++
				time.Sleep(hold)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.Took = time.Since(start)
	return r
}

// Total is the number of acquisitions.
func (r Result) Total() (n int) {
	for _, h := range r.Holds {
		n += h
	}
	return n
}

// Rate is the number of acquisitions per second.
func (r Result) Rate() float64 { return float64(r.Total()) / r.Took.Seconds() }

// Unfairness is the largest deviation of a client's share from the fair share: 0.05 is 5 %.
func (r Result) Unfairness() (u float64) {
	fair := float64(r.Total()) / float64(len(r.Holds))
	for _, h := range r.Holds {
		u = max(u, float64(h)/fair-1, 1-float64(h)/fair)
	}
	return u
}

// FairWait is how long a client waits if all get the lock in turn.
func (r Result) FairWait() time.Duration {
	return time.Duration(float64(r.Took) / float64(r.Total()) * float64(len(r.Holds)))
}

// Quantile returns the q-th quantile of sorted values.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (r Result) String() string {
	return fmt.Sprintf("%.0f/s, unfairness %.1f %%, wait p50 %v p99 %v (fair %v), hand-off p50 %v p99 %v",
		r.Rate(), 100*r.Unfairness(), Quantile(r.Waits, .5).Round(time.Microsecond),
		Quantile(r.Waits, .99).Round(time.Microsecond),
		r.FairWait().Round(time.Microsecond), Quantile(r.Handoffs, .5).Round(time.Microsecond),
		Quantile(r.Handoffs, .99).Round(time.Microsecond))
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/golocker/locker"
)

// benchResult is the measurements with one driver. Times are in µs.
type benchResult struct {
	Driver    string `json:"driver"`
	Lock      spread `json:"lock_us"`
	Unlock    spread `json:"unlock_us"`
	Alone     int    `json:"cycles_per_s_alone"`
	Together  int    `json:"cycles_per_s_of_64"`
	Handovers int    `json:"handovers_per_s_of_8"`
	Wait      spread `json:"wait_us"`    // for a contended lock
	Unfair    int    `json:"uneven_pct"` // the largest deviation from a fair share, in per cent
	histogram []int  // of lock times of one goroutine, by powers of two of µs
}

// spread is a distribution of times.
type spread struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

func spreadOf(times []time.Duration) spread {
	if len(times) == 0 {
		return spread{}
	}
	slices.Sort(times)
	at := func(pct int) int64 { return times[(len(times)-1)*pct/100].Microseconds() }
	return spread{at(50), at(95), at(99), at(100)}
}

// cycle locks and unlocks. note, if not nil, gets the duration of each.
func cycle(ctx context.Context, l locker.Locker, key string, note func(lock, unlock time.Duration)) error {
	start := time.Now()
	lease, err := l.Lock(ctx, key)
	if err != nil {
		return err
	}
	locked := time.Now()
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	if note != nil {
		note(locked.Sub(start), time.Since(locked))
	}
	return nil
}

// alone measures one goroutine.
func (b *bench) alone(ctx context.Context, l locker.Locker, r *benchResult) error {
	var locks, unlocks []time.Duration
	r.histogram = make([]int, 32)
	start := time.Now()
	for time.Since(start) < b.visit {
		err := cycle(ctx, l, b.key(0), func(lock, unlock time.Duration) {
			locks, unlocks = append(locks, lock), append(unlocks, unlock)
			r.histogram[bits.Len64(uint64(max(1, lock.Microseconds())-1))]++
		})
		if err != nil {
			return err
		}
	}
	r.Alone = perSecond(len(locks), time.Since(start))
	r.Lock, r.Unlock = spreadOf(locks), spreadOf(unlocks)
	return nil
}

// together measures many goroutines with keys of their own.
func (b *bench) together(ctx context.Context, l locker.Locker, r *benchResult) error {
	n, took, err := b.crowd(ctx, benchCrowd,
		func(ctx context.Context, i int) error { return cycle(ctx, l, b.key(i), nil) })
	total := 0
	for _, m := range n {
		total += m
	}
	r.Together = perSecond(total, took)
	return err
}

// contended measures clients that want the same lock.
func (b *bench) contended(ctx context.Context, ls []locker.Locker, r *benchResult) error {
	waits := make([][]time.Duration, len(ls))
	n, took, err := b.crowd(ctx, len(ls), func(ctx context.Context, i int) error {
		return cycle(ctx, ls[i], b.key(benchCrowd), func(lock, _ time.Duration) { waits[i] = append(waits[i], lock) })
	})
	if err != nil {
		return err
	}
	all := slices.Concat(waits...)
	r.Handovers, r.Wait = perSecond(len(all), took), spreadOf(all)
	for _, m := range n {
		fair := max(1, len(all)/len(ls))
		r.Unfair = max(r.Unfair, 100*max(m-fair, fair-m)/fair)
	}
	return nil
}

// crowd lets n goroutines repeat f for a while. It returns the number of repetitions of each goroutine and the elapsed
// time. Running repetitions are finished.
func (b *bench) crowd(ctx context.Context, n int, f func(ctx context.Context, i int) error) (done []int,
	took time.Duration, err error) {
	done, errs := make([]int, n), make([]error, n)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			for time.Since(start) < b.visit && ctx.Err() == nil {
				if errs[i] = f(ctx, i); errs[i] != nil {
					cancel()
					return
				}
				done[i]++
			}
		})
	}
	wg.Wait()
	took = time.Since(start)
	for _, err := range errs { // the first error that is not a consequence of another
		if err != nil && !errors.Is(err, context.Canceled) {
			return done, took, err
		}
	}
	return done, took, ctx.Err()
}

func perSecond(n int, d time.Duration) int { return int(float64(n) / d.Seconds()) }

func (a *app) printBench(r benchResult) {
	s := a.style(a.stdout)
	fmt.Fprintf(a.stdout, "%s\n", s.strong(r.Driver))
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	row := func(name string, x spread) {
		us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
		fmt.Fprintf(w, "  %s\tp50 %v\tp95 %v\tp99 %v\tmax %v\n", name, us(x.P50), us(x.P95), us(x.P99), us(x.Max))
	}
	row("lock", r.Lock)
	row("unlock", r.Unlock)
	row("wait, contended", r.Wait)
	_ = w.Flush()
	fmt.Fprintf(a.stdout, "  one at a time      %7d locks/s\n", r.Alone)
	fmt.Fprintf(a.stdout, "  %d at once         %7d locks/s\n", benchCrowd, r.Together)
	fmt.Fprintf(a.stdout, "  one lock, %d clients %6d locks/s, each has its share to within %d %%\n", benchClients,
		r.Handovers, r.Unfair)
	a.printHistogram(r.histogram)
	fmt.Fprintln(a.stdout)
}

// printHistogram prints the lock times of one goroutine.
func (a *app) printHistogram(h []int) {
	const width = 50
	first, last, most := -1, 0, 1
	for i, n := range h {
		if n == 0 {
			continue
		}
		if first < 0 {
			first = i
		}
		last, most = i, max(most, n)
	}
	for i := max(0, first); i <= last && first >= 0; i++ {
		bar := strings.Repeat("█", h[i]*width/most)
		if bar == "" && h[i] > 0 {
			bar = "▏"
		}
		fmt.Fprintf(a.stdout, "  lock ≤ %8v %6d %s\n", time.Duration(1<<i)*time.Microsecond, h[i], bar)
	}
}

package once_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
)

// Package record has the other tests of ticks in one record.

// Whatever happens to requests, and whatever clocks show within the skew, no tick is run twice. Ticks overlap,
// instances are late, and some of them are processes that look once.
func TestTicksInOneRecordUnderFaults(t *testing.T) {
	const instances, ticks = 5, 40
	seeds := uint64(60)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := recordstore.New()
			inStore := func() backend.Backend { return record.NewBackend(s, record.Timeout(time.Second)) }
			withFleet(t, inStore, func(w *fleet) {
				w.Cleanup(s.Wait)
				at := func(n int) time.Time { // ten of them are in one record at a time
					return w.tick.Add(time.Duration(n/10)*time.Minute + time.Duration(n%10)*time.Millisecond)
				}
				rng := rand.New(rand.NewPCG(seed, 1))
				s.Latency = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
				s.Inject(recordstore.Faults(rand.New(rand.NewPCG(seed, 3))))
				for range instances {
					rng, ahead := rand.New(rand.NewPCG(rng.Uint64(), 2)), time.Duration(rng.Int64N(int64(skew)))
					long := w.instance(ahead)
					for n := range ticks {
						i, tick := long, at(n)
						late := time.Duration(rng.Int64N(int64(10 * time.Second)))
						if rng.IntN(4) == 0 {
							late = time.Duration(rng.Int64N(int64(window + 2*skew)))
						}
						patience := time.Duration(rng.Int64N(int64(20 * time.Second)))
						if rng.IntN(3) == 0 {
							c := locker.NewClient(inStore())
							w.Cleanup(func() { _ = c.Close() })
							i = &instance{w, c, c, ahead}
						}
						go func() {
							i.until(tick.Add(late))
							ctx, cancel := context.WithTimeout(w.Context(), patience)
							defer cancel()
							_, _ = once.Do(ctx, i.locker, key, tick, func(context.Context) error { w.runs(tick); return nil },
								once.Window(window), once.Skew(skew), once.Clock(func() time.Time { return time.Now().Add(i.ahead) }))
						}()
					}
				}
				time.Sleep(time.Until(at(ticks).Add(2 * window)))
				ran := 0
				for n := range ticks {
					times := w.times(at(n))
					if ran += times; times > 1 {
						t.Errorf("the tick %d was run %d times", n, times)
					}
				}
				if ran < ticks/2 {
					t.Errorf("%d of %d ticks were run", ran, ticks)
				}
			})
		})
	}
}

// Whoever has a clock that is an hour ahead runs a tick that nobody else would, and the last ticks stay claimed.
func TestWrongClockDropsNoTick(t *testing.T) {
	withFleet(t, inRecords, func(w *fleet) {
		i, wrong := w.instance(0), w.instance(time.Hour)
		i.until(w.tick)
		for n := range 6 {
			w.is(once.Ran)(i.at(w.tick.Add(time.Duration(n)*time.Millisecond), nil))
		}
		w.is(once.Ran)(wrong.at(w.tick.Add(time.Hour), nil))
		for n := range 6 {
			w.is(once.Elsewhere)(i.at(w.tick.Add(time.Duration(n)*time.Millisecond), nil))
		}
	})
}

// The tick is claimed by the instance with the fastest clock, and others have their ticks since. The record has room,
// and the one with the slowest clock, which asks as late as it may, does not run the tick again.
func TestTickStaysForTheSlowestClock(t *testing.T) {
	withFleet(t, inRecords, func(w *fleet) {
		a, b := w.instance(skew), w.instance(0)
		a.until(w.tick)
		w.is(once.Ran)(a.per(nil))
		for n := range 30 {
			w.is(once.Ran)(a.at(w.tick.Add(time.Duration(n+1)*time.Millisecond), nil))
		}
		b.until(w.tick.Add(window))
		w.is(once.Ran)(a.at(w.tick.Add(window), nil))
		w.is(once.Elsewhere)(b.per(nil))
		w.want(1)
	})
}

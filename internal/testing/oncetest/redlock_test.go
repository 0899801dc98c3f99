package oncetest_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/redlock"
)

// On a Redlock, instances that ask at the same moment refuse each other. One of them has the tick in the end.
func TestInstancesOfARedlockAskAtTheSameMoment(t *testing.T) {
	const ticks, instances = 200, 5
	seed := rand.Uint64()
	virtual.Test(t, func(t *testing.T) {
		first := time.Now().Add(time.Hour)
		nodes := simnode.NewNodes(3)
		var mu sync.Mutex
		draw := rand.New(rand.NewPCG(seed, 0))
		late := func() {
			mu.Lock()
			d := time.Duration(draw.IntN(int(5 * time.Millisecond)))
			mu.Unlock()
			time.Sleep(d)
		}
		network := func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			late()
			defer late()
			return execute(), nil
		}
		ran, plain := map[time.Time]int{}, map[time.Time]int{}
		count := func(of map[time.Time]int, tick time.Time) {
			mu.Lock()
			defer mu.Unlock()
			of[tick]++
		}
		var all sync.WaitGroup
		for range instances {
			ds := make([]drivers.Driver, len(nodes))
			for n := range nodes {
				ds[n] = nodes[n].Driver(network)
			}
			c := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
			defer func() { _ = c.Close() }() // not in a Cleanup: the clock of the bubble stands still then
			all.Go(func() {
				for n := range ticks {
					tick := first.Add(time.Duration(n) * time.Minute)
					time.Sleep(time.Until(tick))
					outcome, err := once.Do(t.Context(), c, "report", tick, func(context.Context) error {
						count(ran, tick)
						return nil
					}, once.Window(time.Minute), once.Skew(5*time.Second))
					if err != nil || outcome != once.Ran && outcome != once.Elsewhere {
						t.Errorf("%s, %v", outcome, err)
					}
					time.Sleep(time.Until(tick.Add(30 * time.Second)))
					if lease, err := c.TryLock(t.Context(), "plain"); err == nil {
						count(plain, tick)
						time.Sleep(time.Second)
						_ = lease.Unlock(t.Context())
					}
				}
			})
		}
		all.Wait()
		for n := range ticks {
			if tick := first.Add(time.Duration(n) * time.Minute); ran[tick] != 1 {
				t.Errorf("%v was run %d times", tick, ran[tick])
			}
		}
		t.Logf("at %d of %d ticks, nobody got a plain lock by TryLock", ticks-len(plain), ticks)
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
}

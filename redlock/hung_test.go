package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/steady"
)

// usage samples what the process uses until ctx ends.
type usage struct {
	goroutines int
	heap       uint64 // after a collection
}

func (u *usage) sample(ctx context.Context) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		u.goroutines = max(u.goroutines, runtime.NumGoroutine())
		if n%40 == 0 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			u.heap = max(u.heap, m.HeapAlloc)
		}
		<-tick.C
	}
}

// load runs 64 goroutines on the clients for d, each with a key of its own, one call in eight with a context that soon
// ends. It returns the number of cycles and what was used at most. A key that was left behind would outlive the test.
func load(t *testing.T, clients []*locker.Client, d time.Duration) (cycles, failed int64, u usage) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	var done, errs atomic.Int64
	for g := range 64 {
		l := clients[g%len(clients)]
		wg.Go(func() {
			for ctx.Err() == nil {
				call, stop := t.Context(), func() {}
				if rand.IntN(8) == 0 {
					call, stop = context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
				}
				lease, err := l.TryLock(call, fmt.Sprint("k", g), locker.TTL(longTTL))
				if err == nil {
					err = steady.Release(lease)
				}
				if err == nil {
					done.Add(1)
				} else if call.Err() == nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, locker.ErrHeld) {
					// ErrHeld is due to the attempt that was given up before.
					if errs.Add(1) == 1 {
						t.Errorf("the first that failed: %v", err)
					}
				}
				stop()
			}
		})
	}
	u.sample(ctx)
	wg.Wait()
	return done.Load(), errs.Load(), u
}

// One of five nodes hangs while 64 goroutines work. What is kept for it is bounded. When it goes on, it executes what
// was sent to it, and nothing stays on it. With LOCKER_MEASURE=60s each driver gets a full minute.
func TestHungNodeUnderLoad(t *testing.T) {
	by := 3 * time.Second
	if testing.Short() {
		by = time.Second
	}
	d, measure := measuring(by)
	groups := [][]string{drivers.Names()}
	if measure {
		groups = nil
		for _, driver := range drivers.Names() {
			groups = append(groups, []string{driver})
		}
	}
	for _, group := range groups {
		t.Run(strings.Join(group, " and "), func(t *testing.T) {
			c := startCluster(t, 5)
			var clients []*locker.Client
			for _, driver := range group {
				clients = append(clients, c.client(t, driver))
			}
			healthy, failed, before := load(t, clients, d/8)
			t.Logf("healthy: %.0f cycles/s, %d failed; at most %d goroutines, heap %d KiB",
				float64(healthy)/(d/8).Seconds(), failed, before.goroutines, before.heap>>10)
			c[1].Pause()
			hung, failed, during := load(t, clients, d)
			t.Logf("one hung for %v: %.0f cycles/s, %d failed; at most %d goroutines, heap %d KiB",
				d, float64(hung)/d.Seconds(), failed, during.goroutines, during.heap>>10)
			if hung == 0 {
				t.Error("nothing went on")
			}
			if during.goroutines > before.goroutines+200 {
				t.Errorf("%d goroutines, %d before", during.goroutines, before.goroutines)
			}
			if during.heap > before.heap+64<<20 {
				t.Errorf("heap of %d MiB, %d before", during.heap>>20, before.heap>>20)
			}
			c[1].Resume()
			resumed := time.Now()
			eventually(t, 60*time.Second, "no key is left", func() bool { return len(c.locks(t)) == 0 })
			t.Logf("no key left %v after it went on", time.Since(resumed).Round(time.Millisecond))
			// Without clients, and when the server has noticed that, all that was sent has been executed.
			for _, l := range clients {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
			eventually(t, 30*time.Second, "nobody is connected", func() bool {
				list, _ := c[1].Cmd(t, "CLIENT", "LIST").(string)
				return strings.Count(list, "\n") == 1
			})
			if keys := c.locks(t); len(keys) > 0 {
				t.Errorf("landed later: %q", keys)
			}
			t.Logf("tombstones on it: %d", c[1:2].tombstones(t, "*"))
		})
	}
}

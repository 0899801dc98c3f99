package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/internal/testing/wire"
)

func (c cluster) tombstones(t testing.TB, pattern string) (n int) {
	for _, s := range c {
		n += wire.Tombstones(s.Keys(t, pattern), func(key string) []string { return s.Fields(t, key) })
	}
	return n
}

// contend runs eight clients, the third of them with each driver, on one key for d, and returns how many acquisitions
// and attempts there were, how long that took, and the longest time without any.
func contend(t *testing.T, c cluster, hung int, d time.Duration) (acquired, attempts int, took, gap time.Duration) {
	var mu sync.Mutex
	tokens := map[string]bool{}
	count := func(cmds []drivers.Command) {
		mu.Lock()
		defer mu.Unlock()
		for _, cmd := range cmds {
			for _, token := range wire.Attempts(cmd) {
				tokens[token] = true
			}
		}
	}
	var inside, last atomic.Int64
	var fences []uint64 // guarded by the lock that is tested; the race detector would see
	var wg sync.WaitGroup
	wins := make([]int, 8)
	clients := make([]*locker.Client, len(wins))
	for g := range clients {
		clients[g] = c.tapped(t, drivers.Names()[g%3],
			func(_ int, d drivers.Driver) drivers.Driver { return tap{d, count, nil} })
		t.Cleanup(func() {
			if err := clients[g].Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	for _, s := range c[:hung] {
		s.Pause()
	}
	defer func() {
		for _, s := range c[:hung] {
			s.Resume()
		}
	}()
	last.Store(time.Now().UnixNano())
	// On a busy machine, the first acquisition takes longer than d. Each client makes one.
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), d+time.Minute)
	defer cancel()
	for g, l := range clients {
		wg.Go(func() {
			for time.Since(start) < d {
				lease, err := l.Lock(ctx, "contended", locker.TTL(longTTL))
				if err != nil {
					t.Errorf("client %d: %v", g, err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				mu.Lock()
				now := time.Now()
				gap = max(gap, now.Sub(time.Unix(0, last.Swap(now.UnixNano()))))
				fences = append(fences, lease.Fence())
				mu.Unlock()
				time.Sleep(time.Millisecond)
				wins[g]++
				inside.Add(-1)
				if err := steady.Release(lease); err != nil {
					t.Errorf("client %d: %v", g, err)
				}
			}
		})
	}
	wg.Wait()
	took = time.Since(start)
	mu.Lock() // for count, which late batches still call
	defer mu.Unlock()
	if !slices.IsSorted(fences) || len(slices.Compact(slices.Clone(fences))) != len(fences) {
		t.Errorf("tokens do not grow in the order of holds")
	}
	t.Logf("wins by client: %v", wins)
	return len(fences), len(tokens), took, gap
}

// Somebody always wins.
func TestContention(t *testing.T) {
	t.Parallel()
	d, measure := measuring(2 * time.Second)
	for hung := range 3 {
		if hung == 1 && !measure {
			continue
		}
		t.Run(fmt.Sprint(hung, " of 5 hung"), func(t *testing.T) {
			c := startCluster(t, 5)
			acquired, attempts, took, gap := contend(t, c, hung, d)
			t.Logf("%.0f acquisitions/s, %.2f attempts each, %v without any at most",
				float64(acquired)/took.Seconds(), float64(attempts)/float64(acquired), gap.Round(time.Millisecond))
			if gap > 5*time.Second {
				t.Errorf("nobody acquired the lock for %v", gap)
			}
			c.wantNoLocks(t)
		})
	}
}

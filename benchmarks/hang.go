package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/golocker/locker/internal/testing/redistest"
)

// hang is 64 goroutines that lock and unlock on a Redlock of five while one node hangs.
func hang(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "hang", Title: fmt.Sprintf("Redlock of five, 64 goroutines, one node hangs for %v", p.Hang),
		Note: "No ratio. Goroutines: the most there were, beyond those of the load. Heap: the largest, more than before " +
			"the node hung. Orphans: keys that were unlocked and are still there, a second after the node woke; on the " +
			"right per 1,000 cycles.",
		Columns: []Column{{"rate", "cycles/s", 0}, {"allocs", "allocs", 1}, {"client_us", "client CPU µs", 0},
			{"server_us", "server CPU µs", 0}, {"goroutines", "goroutines", 0}, {"heap_mb", "heap MB", 1},
			{"failed", "failed", 0}, {"orphans", "orphans", 0}, {"orphans_1000", "orphans per 1,000", 2}},
		Primary: "rate", Time: p.Hang, Rounds: 1}
	add := func(name string, open opener) {
		sc.Contestants = append(sc.Contestants, Contestant{Name: name,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return hangUnderLoad(ctx, s.five, open, d)
			}})
	}
	for _, c := range clients {
		add("locker/"+c, oursRedlock(c))
	}
	add("redsync/goredis, FailFast", ofRedsync("goredis", redsync.WithFailFast(true)))
	return sc
}

func hangUnderLoad(ctx context.Context, group []*redistest.Server, open opener, d time.Duration) (Figures, error) {
	if err := flush(group); err != nil {
		return nil, err
	}
	const load = 64
	session, err := open(addrs(group), limits{2 * load, shortTimeout})
	if err != nil {
		return nil, err
	}
	closed := false
	defer func() {
		if !closed {
			session.Close()
		}
	}()
	var next, done, failed atomic.Int64
	// There are enough keys that orphans of one round do not affect the next.
	const keys = 1 << 18
	cycle := func() {
		h, err := session.Lock(context.Background(), fmt.Sprintf("bench:%d", next.Add(1)%keys))
		if err == nil {
			err = h.Unlock(context.Background())
		}
		if err != nil {
			failed.Add(1)
		}
		done.Add(1)
	}
	var wg sync.WaitGroup
	for range load {
		wg.Go(func() {
			for range 3 {
				cycle()
			}
		})
	}
	wg.Wait()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	base, calm := runtime.NumGoroutine(), memory.HeapAlloc
	done.Store(0)
	failed.Store(0)

	mend := failure{hung: 1}.happen(group)
	m := newMeter(failure{hung: 1}.alive(group))
	end := m.start.Add(d)
	for range load {
		wg.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				cycle()
			}
		})
	}
	goroutines, heap := 0, 0.
	for time.Now().Before(end) && ctx.Err() == nil {
		time.Sleep(min(20*time.Millisecond, d/5))
		runtime.ReadMemStats(&memory)
		goroutines = max(goroutines, runtime.NumGoroutine()-base-load)
		heap = max(heap, (float64(memory.HeapAlloc)-float64(calm))/(1<<20))
	}
	wg.Wait()
	figures, _ := m.stop(int(done.Load()))
	if err := mend(); err != nil {
		return nil, err
	}
	time.Sleep(min(d, time.Second))
	left := orphans(group)
	session.Close()
	closed = true
	figures["goroutines"], figures["heap_mb"] = float64(max(0, goroutines)), heap
	figures["failed"], figures["orphans"] = float64(failed.Load()), left
	figures["orphans_1000"] = 1000 * left / max(1, figures["operations"])
	return figures, nil
}

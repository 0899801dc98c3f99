package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
)

// leases holds many locks in one client, which renews them. redsync and redislock do not renew.
func leases(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "leases",
		Title: fmt.Sprintf("%d leases held by one client, TTL %v, renewed every third of it", p.Leases, p.HeldTTL),
		Note: "Ratio: goroutines per lease, at most moments, to rueidislock. redsync and redislock do not renew by " +
			"themselves. Renewals per round trip says how many go out together. CPU is per second of holding.",
		Columns: []Column{{"renewals", "renewals/s", 0}, {"batch", "renewals per round trip", 1},
			{"per_lease", "goroutines per lease", 3}, {"goroutines", "most goroutines", 0},
			{"heap", "heap bytes per lease", 0}, {"acquired", "acquired/s", 0},
			{"client_ms", "client CPU ms/s", 0}, {"server_ms", "server CPU ms/s", 0}, {"lost", "lost", 0}},
		Primary: "per_lease", Time: p.Held, Rounds: 1}
	group := []*redistest.Server{s.one}
	const yardstick = "rueidislock"
	add := func(name, yardstick string, visit func(context.Context, time.Duration) (Figures, error)) {
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: yardstick, Visit: visit})
	}
	for _, c := range clients {
		add("locker/"+c, yardstick, func(ctx context.Context, d time.Duration) (Figures, error) {
			var renewed, lost atomic.Int64
			trace := &lockertrace.Trace{
				Renewed: func(r lockertrace.Renewal) {
					if r.Err == nil {
						renewed.Add(1)
					}
				},
				Lost: func(error) { lost.Add(1) },
			}
			f, _, err := hold10k(lockertrace.With(ctx, trace), group, ours(c, locker.TTL(p.HeldTTL)), p.Leases, d,
				func() float64 { return float64(renewed.Load()) })
			if err == nil {
				f["lost"] = float64(lost.Load())
			}
			return f, err
		})
	}
	add(yardstick, "", func(ctx context.Context, d time.Duration) (Figures, error) {
		// Each renewal is an EVALSHA, and after the acquisitions there is nothing else.
		f, _, err := hold10k(ctx, group, ofRueidislock(p.HeldTTL), p.Leases, d,
			func() float64 { return workOf(group).calls["evalsha"] })
		return f, err
	})
	return sc
}

func hold10k(
	ctx context.Context, group []*redistest.Server, open opener, n int, d time.Duration, renewals func() float64,
) (Figures, work, error) {
	if err := flush(group); err != nil {
		return nil, work{}, err
	}
	before := runtime.NumGoroutine()
	session, err := open(addrs(group), limits{256, longTimeout})
	if err != nil {
		return nil, work{}, err
	}
	defer session.Close()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)

	hs := make([]held, n)
	start := time.Now()
	err = each(n, func(i int) (err error) {
		hs[i], err = session.Lock(ctx, fmt.Sprintf("bench:%d", i))
		return err
	})
	if err != nil {
		return nil, work{}, err
	}
	acquired := float64(n) / time.Since(start).Seconds()

	m := newMeter(group)
	count := renewals()
	heap := (float64(m.memory.HeapAlloc) - float64(memory.HeapAlloc)) / float64(n)
	highest := 0
	var typical []float64
	for end := m.start.Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(min(10*time.Millisecond, d/10))
		now := runtime.NumGoroutine() - before
		highest, typical = max(highest, now), append(typical, float64(now))
	}
	took := time.Since(m.start)
	count = renewals() - count
	f, w := m.stop(1)
	if err := each(n, func(i int) error { return hs[i].Unlock(ctx) }); err != nil {
		return nil, work{}, err
	}
	return Figures{
		"renewals": count / took.Seconds(), "batch": count / max(1, w.reads), "goroutines": float64(highest),
		"per_lease": median(typical) / float64(n), "heap": heap, "acquired": acquired,
		"client_ms": f["client_us"] / 1000 / took.Seconds(), "server_ms": f["server_us"] / 1000 / took.Seconds(),
	}, w, nil
}

// each calls f for 0 to n-1, on 256 goroutines, and returns the last error.
func each(n int, f func(int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range min(n, 256) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

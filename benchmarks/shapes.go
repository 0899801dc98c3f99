package main

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/redistest"
)

// localTime is how long a Client may hand a lock over without the store.
const localTime = 50 * time.Millisecond

// The contestants of the scenarios below. Strict order is without hand-overs within a process.
const (
	lockerLocal  = "locker/rueidis"
	lockerStrict = "locker/rueidis, strict order"
)

// shaped names a contestant with so many goroutines for each of its clients.
func shaped(contestant string, clients, goroutines int, hold time.Duration) string {
	return fmt.Sprintf("%s, %d × %d, hold %d ms", contestant, clients, goroutines, hold.Milliseconds())
}

// contendedShapes has 16 goroutines that share clients.
func contendedShapes(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "contended-shapes", Title: "One contended key, one Redis, clients × goroutines",
		Note: "Ratio: acquisitions per second, to a sync.Mutex. Strict order: with NoLocalHandover. Least and most: " +
			"acquisitions of one goroutine. Clients are goroutines here: " + crowdNote,
		Columns: append([]Column{{"rate", "acquisitions/s", 0}, {"trips", "round trips", 2}, {"commands", "commands", 1},
			{"least", "least/s", 1}, {"most", "most/s", 1}, {"wait_max_us", "longest wait µs", 0}}, crowdColumns[3:]...),
		Primary: "rate", Time: p.Contended, Rounds: p.FewRounds}
	one := []*redistest.Server{s.one}
	for _, hold := range []time.Duration{hold, 0} {
		mutex := shaped("sync.Mutex", 16, 1, hold)
		sc.Contestants = append(sc.Contestants,
			Contestant{Name: mutex, Visit: visitCrowd(nil, shared(), load{evenly(16, 1), hold})})
		for _, shape := range []struct{ clients, goroutines int }{{4, 4}, {1, 16}, {16, 1}} {
			add := func(name string, rounds int, longer time.Duration, open opener) {
				visit := visitCrowd(one, s.via(open), load{evenly(shape.clients, shape.goroutines), hold})
				sc.Contestants = append(sc.Contestants, Contestant{
					Name: shaped(name, shape.clients, shape.goroutines, hold), Yardstick: mutex, Rounds: rounds,
					Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
						return visit(ctx, longer*d)
					}})
			}
			longer := time.Duration(1)
			if shape.clients == 4 && hold > 0 {
				longer = 3 // each client should have its turn often
			}
			add(lockerLocal, 0, longer, ours("rueidis"))
			add(lockerStrict, 0, 1, ours("rueidis", locker.NoLocalHandover()))
			if shape.clients == 4 {
				add("redsync/rueidis, 1–11 ms", p.Rare, 1, ofRedsync("rueidis", tuned()...))
				add("redislock/goredis, 5 ms", p.Rare, 1, ofRedislock(5*time.Millisecond))
				add("rueidislock", p.Rare, 1, ofRueidislock(ttl))
			}
		}
	}
	return sc
}

// contendedLone has a client with one goroutine beside a client with many.
func contendedLone(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "contended-lone",
		Title: "One contended key, one Redis, a client with one goroutine beside one with 64, hold 1 ms",
		Note: "Ratio: the lone goroutine's 99th percentile of waits, to that in strict order (NoLocalHandover). Bound: " +
			"50 ms, two holds and two hand-overs between the clients (medians). Clients are goroutines here: " + crowdNote,
		Columns: append([]Column{{"first_p99_us", "lone wait p99 µs", 0}, {"first_of_bound", "of the bound", 2},
			{"between_p50_us", "between clients p50 µs", 0}, {"rate", "acquisitions/s", 0}}, crowdColumns[1:]...),
		Primary: "first_p99_us", Time: 3 * p.Contended, Rounds: p.FewRounds}
	one, l := []*redistest.Server{s.one}, load{[]int{1, 64}, hold}
	sc.Contestants = []Contestant{
		{Name: lockerStrict, Visit: visitCrowd(one, s.via(ours("rueidis", locker.NoLocalHandover())), l)},
		{Name: lockerLocal, Yardstick: lockerStrict, Visit: visitCrowd(one, s.via(ours("rueidis")), l)},
	}
	return sc
}

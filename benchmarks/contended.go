package main

import (
	"context"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// contendedYardstick hands locks over in three round trips: see raw_queue.go.
const contendedYardstick = "bare queue/rueidis"

// contended has 16 clients, with connections of their own, that want one key of one Redis.
func contended(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "contended", Title: "One contended key, one Redis, 16 clients, hold 1 ms",
		Note:    "Ratio: acquisitions per second, to the bare queue. sync.Mutex: of this process. " + crowdNote,
		Columns: crowdColumns, Primary: "rate", Time: p.Contended, Rounds: p.FewRounds}
	add := func(name string, rounds int, open func() opener) {
		y := contendedYardstick
		if name == y {
			y = ""
		}
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: y, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				f, _, err := crowd(ctx, []*redistest.Server{s.one}, open(), 16, longTimeout, d)
				if name == "sync.Mutex" {
					delete(f, "trips")
					delete(f, "commands")
					delete(f, "server_us")
				}
				return f, err
			}})
	}
	as := func(o opener) func() opener { return func() opener { return o } }
	add("sync.Mutex", p.Rare, shared)
	add(contendedYardstick, 0, as(rawQueue))
	for _, c := range clients {
		add("locker/"+c, 0, as(ours(c)))
	}
	// With these waits redsync sleeps nearly always, so the client makes no difference.
	add("redsync/goredis, 50–250 ms", p.Rare, as(ofRedsync("goredis")))
	for _, c := range clients {
		add("redsync/"+c+", 1–11 ms", p.Rare, as(ofRedsync(c, tuned()...)))
	}
	for _, c := range redsyncOnly {
		add("redsync/"+c.name+", 1–11 ms", p.Rare, as(ofRedsync(c.name, tuned()...)))
	}
	add("redislock/goredis, 100 ms", p.Rare, as(ofRedislock(100*time.Millisecond)))
	add("redislock/goredis, 5 ms", p.Rare, as(ofRedislock(5*time.Millisecond)))
	add("rueidislock", p.Rare, as(ofRueidislock(ttl)))
	return sc
}

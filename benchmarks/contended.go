package main

import (
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
	add := func(name string, rounds int, open opener) {
		y := contendedYardstick
		if name == y {
			y = ""
		}
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: y, Rounds: rounds,
			Visit: visitCrowd([]*redistest.Server{s.one}, s.via(open), load{evenly(16, 1), hold})})
	}
	sc.Contestants = append(sc.Contestants, Contestant{Name: "sync.Mutex", Yardstick: contendedYardstick, Rounds: p.Rare,
		Visit: visitCrowd(nil, shared(), load{evenly(16, 1), hold})})
	add(contendedYardstick, 0, rawQueue)
	for _, c := range clients {
		add("locker/"+c, 0, ours(c))
	}
	// With these waits redsync sleeps nearly always, so the client makes no difference.
	add("redsync/goredis, 50–250 ms", p.Rare, ofRedsync("goredis"))
	for _, c := range clients {
		add("redsync/"+c+", 1–11 ms", p.Rare, ofRedsync(c, tuned()...))
	}
	for _, c := range redsyncOnly {
		add("redsync/"+c.name+", 1–11 ms", p.Rare, ofRedsync(c.name, tuned()...))
	}
	add("redislock/goredis, 100 ms", p.Rare, ofRedislock(100*time.Millisecond))
	add("redislock/goredis, 5 ms", p.Rare, ofRedislock(5*time.Millisecond))
	add("rueidislock", p.Rare, ofRueidislock(ttl))
	return sc
}

package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/lockertrace"
)

// crowdYardstick is redsync over the same client, with short waits.
func crowdYardstick(client string) string { return "redsync/" + client + ", 1–11 ms" }

// contendedRedlock has 8 clients that want one key of a Redlock.
func contendedRedlock(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "redlock-contended", Title: "One contended key, Redlock of five, 8 clients, hold 1 ms",
		Note: "Ratio: acquisitions per second, to redsync over the same client with waits of 1–11 ms. Attempts: how " +
			"often a quorum was asked per acquisition; for locker as its Trace tells, for redsync as the nodes count " +
			"SET. Told: how often a waiter of locker was told, per acquisition, that it is its turn. Looks: how often " +
			"it looked without being told. " + crowdNote,
		Columns: append([]Column{{"attempts", "attempts", 3}, {"told", "told", 2}, {"looks", "looks", 2}}, crowdColumns...),
		Primary: "rate", Time: p.Crowd, Rounds: p.FewRounds}
	for _, c := range clients {
		sc.Contestants = append(sc.Contestants, Contestant{Name: "locker/" + c, Yardstick: crowdYardstick(c),
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				var attempts, votes, told, looks atomic.Int64
				traced := lockertrace.With(ctx, &lockertrace.Trace{
					Attempted: func(lockertrace.Attempt) { attempts.Add(1) },
					Woken: func(w lockertrace.Wake) {
						switch w.Reason {
						case lockertrace.WakeHandover:
							told.Add(1)
						case lockertrace.WakePoll:
							looks.Add(1)
						}
					},
					Voted: func(v lockertrace.Vote) {
						if v.Op == "acquire" && !v.Late { // a late vote was counted before, when it was pending
							votes.Add(1)
						}
					},
				})
				f, _, err := crowd(traced, s.five, s.via(oursRedlock(c)), load{evenly(8, 1), hold}, shortTimeout, d)
				if err != nil {
					return nil, err
				}
				n := f["operations"]
				f["attempts"] = max(float64(attempts.Load()), float64(votes.Load())/5) / n
				f["told"], f["looks"] = float64(told.Load())/n, float64(looks.Load())/n
				return f, nil
			}})
	}
	add := func(name, yardstick string, rounds int, open opener) {
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: yardstick, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				f, w, err := crowd(ctx, s.five, s.via(open), load{evenly(8, 1), hold}, shortTimeout, d)
				if err == nil {
					f["attempts"] = w.calls["set"] / 5 / f["operations"]
				}
				return f, err
			}})
	}
	for _, c := range clients {
		add(crowdYardstick(c), "", 0, ofRedsync(c, tuned()...))
	}
	for _, c := range redsyncOnly {
		add(crowdYardstick(c.name), crowdYardstick(c.kin), p.Rare, ofRedsync(c.name, tuned()...))
	}
	add("redsync/goredis, 50–250 ms", crowdYardstick("goredis"), p.Rare, ofRedsync("goredis"))
	return sc
}

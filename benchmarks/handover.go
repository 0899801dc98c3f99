package main

import (
	"context"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// settle is how long a waiter waits before the lock is released. By then it has its place in the queue, and nothing
// else happens.
const settle = 5 * time.Millisecond

// handover has two clients pass one lock back and forth, on a machine that does nothing else meanwhile.
func handover(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "hand-over", Title: "Hand-over between two clients, one Redis, nothing else going on",
		Note: "From the start of an unlock to the return of the waiter's lock. The waiter has been waiting for 5 ms. " +
			"Ratio: median, to the bare queue. Commands, round trips and processor time are per hand-over. Two PINGs, " +
			"one after the other and after 5 ms of quiet: as many messages as a hand-over takes at least.",
		Columns: []Column{{"handoff_p50_us", "p50 µs", 0}, {"handoff_p99_us", "p99 µs", 0},
			{"operations", "hand-overs", 0}, {"trips", "round trips", 2}, {"commands", "commands", 1},
			{"client_us", "client CPU µs", 0}, {"server_us", "server CPU µs", 0}},
		Primary: "handoff_p50_us", Time: p.Handover, Rounds: p.FewRounds}
	const yardstick = contendedYardstick
	add := func(name string, rounds int, open opener) {
		y := yardstick
		if name == y {
			y = ""
		}
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: y, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return backAndForth(ctx, []*redistest.Server{s.one}, s.via(open), d)
			}})
	}
	sc.Contestants = append(sc.Contestants, Contestant{Name: "two PINGs/rueidis", Yardstick: yardstick,
		Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
			return pings(ctx, s, d)
		}})
	add(yardstick, 0, rawQueue)
	for _, c := range clients {
		add("locker/"+c, 0, ours(c))
	}
	for _, c := range clients {
		add("redsync/"+c+", 1–11 ms", p.Rare, ofRedsync(c, tuned()...))
	}
	for _, c := range redsyncOnly {
		add("redsync/"+c.name+", 1–11 ms", p.Rare, ofRedsync(c.name, tuned()...))
	}
	add("redislock/goredis, 5 ms", p.Rare, ofRedislock(5*time.Millisecond))
	add("rueidislock", p.Rare, ofRueidislock(ttl))
	return sc
}

func backAndForth(ctx context.Context, group []*redistest.Server, open opener, d time.Duration) (Figures, error) {
	if err := flush(group); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d+10*time.Second)
	defer cancel()
	sessions, closeAll, err := open.sessions(2, addrs(group), limits{2, longTimeout})
	if err != nil {
		return nil, err
	}
	defer closeAll()
	if err := meet(ctx, sessions); err != nil {
		return nil, err
	}
	const key = "back and forth"
	mine, err := sessions[0].Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	type grant struct {
		h   held
		at  time.Time
		err error
	}
	took := newSamples(1 << 14)
	m := newMeter(group)
	for end := m.start.Add(d); time.Now().Before(end); {
		other := sessions[(len(took)+1)%2]
		granted := make(chan grant, 1)
		go func() {
			h, err := other.Lock(ctx, key)
			granted <- grant{h, time.Now(), err}
		}()
		time.Sleep(settle)
		start := time.Now()
		if err := mine.Unlock(ctx); err != nil {
			return nil, err
		}
		g := <-granted
		if g.err != nil {
			return nil, g.err
		}
		mine = g.h
		took.add(g.at.Sub(start))
	}
	f, _ := m.stop(len(took))
	f["handoff_p50_us"], f["handoff_p99_us"] = took.quantile(.5), took.quantile(.99)
	return f, mine.Unlock(ctx)
}

// pings is the time of a hand-over's messages on this machine: to the server, to the waiter, and there and back.
func pings(ctx context.Context, s *servers, d time.Duration) (Figures, error) {
	addr := s.one.Addr()
	if s.network != nil {
		addr = s.network.route[addr]
	}
	c, err := newRueidis(addr, limits{2, longTimeout})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	took := newSamples(1 << 14)
	m := newMeter([]*redistest.Server{s.one})
	for end := m.start.Add(d); time.Now().Before(end); {
		time.Sleep(settle)
		start := time.Now()
		for range 2 {
			if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
				return nil, err
			}
		}
		took.add(time.Since(start))
	}
	f, _ := m.stop(len(took))
	f["handoff_p50_us"], f["handoff_p99_us"] = took.quantile(.5), took.quantile(.99)
	return f, nil
}

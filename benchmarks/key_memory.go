package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// keyMemory is what many different keys that were locked once leave in the server's memory.
func keyMemory(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "key-memory", Title: fmt.Sprintf("Memory of the server after %d keys were locked once", p.Keys),
		Note: "No ratio. Memory: used_memory without connections, after and before. 256 goroutines lock and unlock, each " +
			"a new key every time.",
		Columns: []Column{{"grown_mb", "memory MB", 2}, {"per_key", "bytes per key", 1}, {"left", "keys left", 0},
			{"rate", "cycles/s", 0}},
		Primary: "grown_mb", Rounds: 1}
	sc.Contestants = []Contestant{{Name: keyMemoryLocker,
		Visit: func(ctx context.Context, _ time.Duration) (Figures, error) {
			return lockOnce(ctx, s.one, ours("rueidis"), p.Keys)
		}}}
	return sc
}

const keyMemoryLocker = "locker/rueidis"

// lockOnce locks and unlocks n keys, and returns how much more memory the server uses afterwards.
func lockOnce(ctx context.Context, server *redistest.Server, open opener, n int) (Figures, error) {
	group := []*redistest.Server{server}
	visit := func(prefix string, n int) error {
		session, err := open(addrs(group), limits{256, longTimeout})
		if err != nil {
			return err
		}
		defer session.Close()
		return each(n, func(i int) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			h, err := session.Lock(context.Background(), fmt.Sprintf("%s:%d", prefix, i))
			if err != nil {
				return err
			}
			return h.Unlock(context.Background())
		})
	}
	if err := visit("warm-up", 256); err != nil { // loads scripts
		return nil, err
	}
	if err := flush(group); err != nil {
		return nil, err
	}
	before, err := memoryAlone(server)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := visit("bench", n); err != nil {
		return nil, err
	}
	took := time.Since(start)
	after, err := memoryAlone(server)
	if err != nil {
		return nil, err
	}
	left, err := server.Do("DBSIZE")
	if err != nil {
		return nil, err
	}
	keys, _ := left.(int64)
	return Figures{
		"grown_mb": (after - before) / (1 << 20), "per_key": (after - before) / float64(n), "left": float64(keys),
		"rate": float64(n) / took.Seconds(),
	}, nil
}

// memoryAlone is used_memory when no client is connected but the one that asks.
func memoryAlone(server *redistest.Server) (float64, error) {
	for range 500 {
		if fields := info(server, "everything"); fields["connected_clients"] == "1" {
			return strconv.ParseFloat(fields["used_memory"], 64)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s: clients stay connected", server.Addr())
}

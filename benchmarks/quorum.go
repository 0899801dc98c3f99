package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/golocker/locker/internal/testing/redistest"
)

// failure is a fault of the nodes of a Redlock.
type failure struct {
	name, title string
	hung, dead  int
}

var failures = []failure{
	{"healthy", "all healthy", 0, 0}, {"1-hung", "1 hung", 1, 0}, {"2-hung", "2 hung", 2, 0}, {"1-dead", "1 dead", 0, 1},
}

// happen hangs (SIGSTOP) or kills the last nodes of group, and returns a function that repairs them.
func (f failure) happen(group []*redistest.Server) (mend func() error) {
	last := group[len(group)-f.hung-f.dead:]
	for _, s := range last {
		if f.dead > 0 {
			s.Kill()
		} else {
			s.Pause()
		}
	}
	return func() (err error) {
		defer func() { // Restart may try to fail a test, and there is none
			if f, ok := recover().(fatal); ok {
				err = fmt.Errorf("%s", string(f))
			}
		}()
		for _, s := range last {
			if f.dead > 0 {
				s.Restart()
			} else {
				s.Resume()
				if _, err := s.Do("PING"); err != nil { // the node executes what has arrived meanwhile
					return err
				}
			}
		}
		return nil
	}
}

func (f failure) alive(group []*redistest.Server) []*redistest.Server {
	return group[:len(group)-f.hung-f.dead]
}

var quorumColumns = []Column{
	{"lock_p50_us", "lock p50 µs", 1}, {"unlock_p50_us", "unlock p50 µs", 1}, {"lock_p99_us", "lock p99 µs", 0},
	{"unlock_p99_us", "unlock p99 µs", 0}, {"rate", "cycles/s", 0}, {"allocs", "allocs", 1},
	{"client_us", "client CPU µs", 0}, {"server_us", "server CPU µs", 0}, {"trips", "round trips", 1},
	{"failed", "failed", 0}, {"goroutines", "goroutines", 0}, {"orphans", "orphans", 0},
}

const quorumYardstick = "raw/rueidis, third answer"

// quorum is one goroutine that locks and unlocks on a Redlock of five, a new key each time.
func quorum(s *servers, p plan, f failure) *Scenario {
	sc := &Scenario{Name: "redlock-" + f.name, Title: "Redlock of five, one goroutine, " + f.title,
		Note: "Ratio: median time to lock, to one multiplexed connection per node and the third answer. Each cycle has " +
			"a new key. Round trips are those at the nodes that answer, all together, per cycle. Goroutines: when the " +
			"visit ended, more than before it began. Orphans: keys that were unlocked and are still there when the " +
			"nodes are back.",
		Columns: quorumColumns, Primary: "lock_p50_us", Time: p.Quorum}
	if f.hung+f.dead > 0 {
		sc.Rounds = p.FewRounds
	}
	const ahead = 10
	add := func(name string, rounds, ahead int, open opener) {
		y := quorumYardstick
		if name == y {
			y = ""
		}
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: y, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return quorumCycles(ctx, s.five, f, s.via(open), ahead, d)
			}})
	}
	add(quorumYardstick, 0, ahead, openThirdAnswer)
	if f.hung+f.dead == 0 {
		add(quorumYardstick+", fenced", 0, ahead, openFencedThirdAnswer)
	}
	for _, c := range clients {
		add("locker/"+c, 0, ahead, oursRedlock(c))
	}
	for _, c := range clients {
		switch { // redsync waits for nodes that hang, for a second a cycle, so one cycle is enough
		case f.hung == 0:
			add("redsync/"+c, p.FewRounds, ahead, ofRedsync(c))
		case f.hung == 1 || c == "goredis":
			add("redsync/"+c, 1, 0, ofRedsync(c))
		}
	}
	if f.hung == 0 {
		for _, c := range redsyncOnly {
			add("redsync/"+c.name, p.Rare, ahead, ofRedsync(c.name))
		}
	}
	add("redsync/goredis, FailFast", p.FewRounds, ahead, ofRedsync("goredis", redsync.WithFailFast(true)))
	return sc
}

// quorumKeys is the largest number of cycles of one visit. It is enough for a second.
const quorumKeys = 1 << 15

// quorumNames are made only once, because making them takes a tenth of the time of a visit.
var quorumNames = sync.OnceValue(func() []string {
	names := make([]string, quorumKeys)
	for i := range names {
		names[i] = fmt.Sprintf("bench:%d", i)
	}
	return names
})

// quorumCycles makes that many cycles before those that count, and after the failure, so that the failure is known.
func quorumCycles(
	ctx context.Context, group []*redistest.Server, f failure, open opener, ahead int, d time.Duration,
) (figures Figures, err error) {
	if err := flush(group); err != nil {
		return nil, err
	}
	before := runtime.NumGoroutine()
	session, err := open(addrs(group), limits{64, shortTimeout})
	if err != nil {
		return nil, err
	}
	closed := false
	defer func() {
		if !closed {
			session.Close()
		}
	}()
	keys, locks, unlocks := quorumNames(), newSamples(quorumKeys), newSamples(quorumKeys)
	used, failed := 0, 0
	call := context.Background() // no deadline, because the time is to be measured
	cycle := func() {
		key := keys[used%len(keys)]
		used++
		start := time.Now()
		h, err := session.Lock(call, key)
		if err != nil {
			failed++
			return
		}
		got := time.Now()
		if err := h.Unlock(call); err != nil {
			failed++
			return
		}
		unlocks.add(time.Since(got))
		locks.add(got.Sub(start))
	}
	const warmUp = 20
	for range warmUp {
		cycle()
	}
	if failed > 0 {
		return nil, fmt.Errorf("%d of %d cycles failed on healthy nodes", failed, warmUp)
	}
	mend := f.happen(group)
	mended := false
	defer func() {
		if !mended {
			_ = mend()
		}
	}()
	for start := time.Now(); ahead > 0 && time.Since(start) < time.Second; ahead-- {
		cycle()
	}
	locks, unlocks, failed = locks[:0], unlocks[:0], 0
	n := used
	m := newMeter(f.alive(group))
	end := m.start.Add(d)
	for time.Now().Before(end) && ctx.Err() == nil {
		cycle()
	}
	figures, _ = m.stop(used - n)
	figures["goroutines"] = float64(runtime.NumGoroutine() - before)
	figures["failed"] = float64(failed)
	figures["lock_p50_us"], figures["lock_p99_us"] = locks.quantile(.5), locks.quantile(.99)
	figures["unlock_p50_us"], figures["unlock_p99_us"] = unlocks.quantile(.5), unlocks.quantile(.99)
	mended = true
	if err := mend(); err != nil {
		return nil, err
	}
	if f.hung > 0 {
		time.Sleep(50 * time.Millisecond) // late commands and clean-ups arrive
	}
	session.Close()
	closed = true
	figures["orphans"] = orphans(group)
	return figures, nil
}

// orphans counts locks of the benchmark that are still there, whatever prefix the library gives them.
func orphans(group []*redistest.Server) float64 {
	n := 0.
	for _, s := range group {
		for cursor := "0"; ; {
			reply, err := s.Do("SCAN", cursor, "COUNT", 10_000, "TYPE", "string")
			page, _ := reply.([]any)
			if err != nil || len(page) != 2 {
				break
			}
			for _, key := range page[1].([]any) {
				if isLock(key.(string)) {
					n++
				}
			}
			if cursor = page[0].(string); cursor == "0" {
				break
			}
		}
	}
	return n
}

// isLock reports whether a key is a lock. The other keys of this library begin with a brace.
func isLock(key string) bool {
	return strings.HasPrefix(key, "bench:") || strings.HasPrefix(key, "lock:bench:")
}

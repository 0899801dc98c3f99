package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

var cycleColumns = []Column{
	{"rate", "cycles/s", 0}, {"mean_us", "µs/cycle", 1}, {"p50_us", "p50 µs", 1}, {"p99_us", "p99 µs", 1},
	{"allocs", "allocs", 1}, {"bytes", "bytes", 0}, {"client_us", "client CPU µs", 1}, {"server_us", "server CPU µs", 1},
	{"trips", "round trips", 2}, {"scripts", "scripts", 2}, {"script_p999_us", "script p99.9 µs", 0},
}

const scriptNote = "Scripts: calls of EVALSHA per cycle. Script p99.9: how long a script kept the server, including " +
	"waits for the processor."

// oneGoroutine locks and unlocks one key again and again.
func oneGoroutine(s *servers, p plan, cancellable bool) *Scenario {
	sc := &Scenario{Name: "one-goroutine", Title: "Lock and unlock, one goroutine",
		Note: "Ratio: time per cycle, to the two bare commands on the same client. “raw” calls the client itself, " +
			"“Driver.Do” this library's driver. " + scriptNote,
		Columns: cycleColumns, Primary: "mean_us", Time: p.Cycles}
	if cancellable {
		sc.Name += "-cancellable"
		sc.Title += ", with a context that can be cancelled"
		sc.Note += " raw has a plain context here, too."
	}
	add := func(name, yardstick string, rounds int, open opener) {
		cancellable := cancellable && yardstick != ""
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: yardstick, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return cycles(ctx, s, open, 1, cancellable, d)
			}})
	}
	for _, c := range clients {
		add("raw/"+c, "", p.Rounds, raw(c))
		add("Driver.Do/"+c, "raw/"+c, p.FewRounds, rawDriver(c))
		add("locker/"+c, "raw/"+c, p.Rounds, ours(c))
		add("redsync/"+c, "raw/"+c, p.Rounds, ofRedsync(c))
	}
	for _, c := range redsyncOnly {
		add("redsync/"+c.name, "raw/"+c.kin, p.Rare, ofRedsync(c.name))
	}
	add("redislock/goredis", "raw/goredis", p.Rounds, ofRedislock(0))
	add("rueidislock", "raw/rueidis", p.FewRounds, ofRueidislock(ttl))
	return sc
}

const ownKeysYardstick = "raw/rueidis"

func ownKeysName(n int) string { return fmt.Sprintf("own-keys-%d", n) }

// ownKeys has n goroutines, each with a key of its own.
func ownKeys(s *servers, p plan, n int) *Scenario {
	sc := &Scenario{Name: ownKeysName(n), Title: fmt.Sprintf("Lock and unlock, %d goroutines, each its own key", n),
		Note:    "Ratio: cycles per second, to rueidis with its automatic pipelining. " + scriptNote,
		Columns: cycleColumns, Primary: "rate", Time: p.Cycles}
	others := p.FewRounds
	if n > 200 {
		sc.Time *= 2 // enough cycles for each
	}
	if n > 1000 {
		others = p.Rare // to open a connection for each goroutine takes a second
	}
	add := func(name string, rounds int, open opener) {
		y := ownKeysYardstick
		if name == y {
			y = ""
		}
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: y, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return cycles(ctx, s, open, n, false, d)
			}})
	}
	add(ownKeysYardstick, p.Rounds, raw("rueidis"))
	for _, c := range clients {
		add("locker/"+c, p.Rounds, ours(c))
	}
	for _, c := range clients[:2] {
		add("raw/"+c, others, raw(c))
		add("redsync/"+c, others, ofRedsync(c))
	}
	add("redsync/rueidis", p.FewRounds, ofRedsync("rueidis"))
	if n <= 1000 {
		for _, c := range redsyncOnly {
			add("redsync/"+c.name, p.Rare, ofRedsync(c.name))
		}
	}
	add("redislock/goredis", p.FewRounds, ofRedislock(0))
	add("rueidislock", others, ofRueidislock(ttl))
	return sc
}

// ownKey is the key of goroutine i.
func ownKey(i int) string { return fmt.Sprintf("bench:%d", i) }

// warmUp is how many cycles each of n goroutines makes before cycles count. They open connections and load scripts.
func warmUp(n int) int { return max(2, 64/n) }

// cycles lets n goroutines lock and unlock for d.
func cycles(ctx context.Context, s *servers, open opener, n int, cancellable bool, d time.Duration) (Figures, error) {
	group := []*redistest.Server{s.one}
	if err := flush(group); err != nil {
		return nil, err
	}
	session, err := s.via(open)(addrs(group), limits{n, longTimeout})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	calls := context.Background() // of the calls; it has a Done channel only if that is measured
	if cancellable {
		var cancel context.CancelFunc
		calls, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	type worker struct {
		key   string
		taken samples
		count int
		err   error
	}
	workers := make([]worker, n)
	for i := range workers {
		workers[i] = worker{key: ownKey(i), taken: newSamples((1 << 20) / n)}
	}
	cycle := func(w *worker) bool {
		h, err := session.Lock(calls, w.key)
		if err == nil {
			err = h.Unlock(calls)
		}
		w.err = err
		return err == nil
	}
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	var end time.Time
	for i := range workers {
		w := &workers[i]
		ready.Add(1)
		done.Go(func() {
			ok := true
			for range warmUp(n) {
				ok = ok && cycle(w)
			}
			ready.Done()
			<-begin
			for last := time.Now(); ok && last.Before(end); w.count++ {
				ok = cycle(w)
				now := time.Now()
				w.taken.add(now.Sub(last))
				last = now
			}
		})
	}
	ready.Wait()
	m := newMeter(group)
	end = time.Now().Add(d)
	close(begin)
	done.Wait()
	total := 0
	for i := range workers {
		total += workers[i].count
	}
	figures, _ := m.stop(total)
	all := newSamples(1 << 20)
	for i := range workers {
		if workers[i].err != nil {
			return nil, workers[i].err
		}
		all = append(all, workers[i].taken...)
	}
	figures["p50_us"], figures["p99_us"] = all.quantile(.5), all.quantile(.99)
	return figures, nil
}

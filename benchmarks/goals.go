package main

import (
	"fmt"
	"time"
)

// goals has the results of a plan, and compares them with the goals. Goals of scenarios that were not run stay open.
type goals struct {
	plan    plan
	native  bool // the server can compare and delete by one command
	rtt     time.Duration
	results map[string]*Result
	list    []Budget
}

func budgets(p plan, native bool, rtt time.Duration, results map[string]*Result) []Budget {
	g := &goals{plan: p, native: native, rtt: rtt, results: results}
	g.oneGoroutine()
	g.ownKeys()
	g.contended()
	g.shared()
	if rtt == 0 {
		g.serverCPU()
		g.others()
		g.readers()
	}
	return g.list
}

// limit chooses a goal. On loopback the processor time of both sides decides, and over a network the round trips.
func (g *goals) limit(loopback, network float64) float64 {
	if g.rtt == 0 {
		return loopback
	}
	return network
}

// most returns a function that compares a figure with its largest value.
func (g *goals) most(limit float64, unit, what string, args ...any) func(float64, bool) {
	return func(got float64, known bool) {
		g.list = append(g.list, Budget{fmt.Sprintf(what, args...) + inWords(g.rtt), limit, false, got, known, unit})
	}
}

// least returns a function that compares a figure with its smallest value.
func (g *goals) least(limit float64, unit, what string, args ...any) func(float64, bool) {
	return func(got float64, known bool) {
		g.list = append(g.list, Budget{fmt.Sprintf(what, args...) + inWords(g.rtt), limit, true, got, known, unit})
	}
}

func (g *goals) serverCPU() {
	r, oneByOne := g.results["server-cpu"], 3.2
	release := "release by script"
	if g.native {
		oneByOne, release = 2.4, "native release"
	}
	for _, c := range cpuContestants {
		g.most(oneByOne, "×", "server CPU, %s, one at a time, %s: to raw", c.name, release)(
			r.ratio(c.name+", one at a time", cpuYardstick, "server_us"))
		g.most(1.8, "×", "server CPU, %s, 128 at once: to raw", c.name)(
			r.ratio(c.name+", 128 at once", cpuYardstick, "server_us"))
		g.most(500, " µs", "time of a script, %s, 512 at once: p99.9", c.name)(
			r.figure(c.name+", 512 at once", "script_p999_us"))
		g.most(1.5, "×", "time of a script, %s, 512 at once: p99.9, to that of a script that counts", c.name)(
			r.ratio(c.name+", 512 at once", cpuCounting, "script_p999_us"))
		g.most(1.05, "×", "server CPU, %s, guard, 512 at once: to that without", c.name)(
			r.ratio(c.name+", guard, 512 at once", c.name+", 512 at once", "server_us"))
	}
}

func (g *goals) oneGoroutine() {
	for _, kind := range []struct {
		name, title string
		limit       float64 // 0: none
	}{{"one-goroutine", "", 1.3}, {"one-goroutine-cancellable", ", cancellable", 0}} {
		r := g.results[kind.name]
		for _, c := range clients {
			me, bare := "locker/"+c, "raw/"+c
			what := "1 goroutine, " + c + kind.title
			if kind.limit > 0 {
				g.most(kind.limit, "×", "%s: time, to raw with a plain context", what)(r.ratio(me, bare, "mean_us"))
			}
			g.most(g.limit(1, 1.02), "×", "%s: time, to redsync", what)(r.ratio(me, "redsync/"+c, "mean_us"))
		}
	}
}

// ownKeysGoals are cycles per second to bare rueidis, by the number of goroutines.
var ownKeysGoals = map[int]float64{16: 0.7, 128: 1.05}

func (g *goals) ownKeys() {
	for _, n := range g.plan.Sizes {
		r := g.results[ownKeysName(n)]
		for _, c := range clients {
			me, what := "locker/"+c, fmt.Sprintf("%d goroutines, %s", n, c)
			if limit, ok := ownKeysGoals[n]; ok {
				g.least(limit, "×", "%s: cycles/s, to raw/rueidis", what)(r.ratio(me, ownKeysYardstick, "rate"))
			}
			if n >= 128 {
				for _, other := range []string{"redsync", "redislock"} {
					g.least(1, "×", "%s: cycles/s, to %s on its best client", what, other)(
						r.ratio(me, r.best(other, "rate"), "rate"))
				}
			}
			if n == 512 {
				g.most(1, "×", "%s: server CPU, to raw/rueidis", what)(r.ratio(me, ownKeysYardstick, "server_us"))
			}
		}
	}
}

func (g *goals) contended() {
	for _, c := range clients {
		r, me := g.results["contended"], "locker/"+c
		what := "contended, " + c
		g.least(0.9, "×", "%s: acquisitions/s, to the bare queue", what)(
			r.ratio(me, contendedYardstick, "rate"))
		g.most(3.1, "", "%s: round trips per acquisition", what)(r.figure(me, "trips"))
		g.most(5, " %", "%s: unfairness", what)(r.figure(me, "unfairness"))
		g.most(2, "", "%s: longest wait, fair shares", what)(r.figure(me, "wait_shares"))
		g.most(g.limit(1.4, 1.1), "×", "hand-over, %s: p50, to the bare queue", c)(
			g.results["hand-over"].ratio(me, contendedYardstick, "handoff_p50_us"))
	}
	for _, c := range clients {
		r, me := g.results["redlock-contended"], "locker/"+c
		what := "contended Redlock, " + c
		g.least(1.15, "×", "%s: acquisitions/s, to redsync", what)(r.ratio(me, crowdYardstick(c), "rate"))
		g.most(5, " %", "%s: unfairness", what)(r.figure(me, "unfairness"))
		g.most(2, "", "%s: longest wait, fair shares", what)(r.figure(me, "wait_shares"))
		g.most(1.1, "", "%s: quorum attempts per acquisition", what)(r.figure(me, "attempts"))
	}
}

// shared are goals of goroutines that share clients.
func (g *goals) shared() {
	r := g.results["contended-shapes"]
	me, what := shaped(lockerLocal, 4, 4, hold), "contended, 4 clients × 4 goroutines"
	g.least(0.9, "×", "%s: acquisitions/s, to a mutex", what)(r.ratio(me, shaped("sync.Mutex", 16, 1, hold), "rate"))
	g.most(0.2, "", "%s: round trips per acquisition", what)(r.figure(me, "trips"))
	g.most(10, " %", "%s: unfairness", what)(r.figure(me, "unfairness"))
	g.most(200, " ms", "%s: longest wait, beyond a fair share", what)(r.figure(me, "wait_over_ms"))
	me, what = shaped(lockerLocal, 16, 1, hold), "contended, 16 clients"
	g.least(0.97, "×", "%s: acquisitions/s, to those in strict order", what)(
		r.ratio(me, shaped(lockerStrict, 16, 1, hold), "rate"))
	if g.rtt == 0 { // over a network, round trips for more tokens take most of the time
		g.least(200_000, "/s", "contended, 1 client × 16 goroutines, hold 0: acquisitions")(
			r.figure(shaped(lockerLocal, 1, 16, 0), "rate"))
	}
	g.most(1, "×", "contended, 1 goroutine beside 64: wait p99, to its bound")(
		g.results["contended-lone"].figure(lockerLocal, "first_of_bound"))
}

// readers are goals of an RWLock of processes, beside one in memory.
func (g *goals) readers() {
	r, me := g.results["readers"], "locker/rueidis"
	g.least(0.77, "×", "300 readers beside 2 writers: acquisitions/s, to a sync.RWMutex")(
		r.ratio(me, readersYardstick, "reads"))
	g.least(0.86, "×", "2 writers beside 300 readers: acquisitions/s, to a sync.RWMutex")(
		r.ratio(me, readersYardstick, "writes"))
	g.most(0, "", "300 readers and 2 writers: a process beside another one's writer")(r.figure(me, "overlaps"))
}

func (g *goals) others() {
	for _, c := range clients {
		r, me := g.results["leases"], "locker/"+c
		g.most(0.01, "", "leases, %s: goroutines per lease, at most moments", c)(r.figure(me, "per_lease"))
		g.least(2, "", "leases, %s: renewals per round trip", c)(r.figure(me, "batch"))
		g.most(0, "", "leases, %s: lost", c)(r.figure(me, "lost"))
	}
}

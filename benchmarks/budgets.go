package main

import "fmt"

// Budget is a goal for one figure, and the result. README.md has all of them, under Figures.
type Budget struct {
	What    string  `json:"what"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // the goal is a minimum; otherwise it is a maximum
	Got     float64 `json:"got"`
	Known   bool    `json:"measured"`
	Unit    string  `json:"unit,omitempty"`
}

func (b Budget) met() bool {
	if b.AtLeast {
		return b.Known && b.Got >= b.Limit
	}
	return b.Known && b.Got <= b.Limit
}

// verdict says whether the goal was met, and by how much.
func (b Budget) verdict() string {
	if !b.Known {
		return "not measured"
	}
	by := ""
	switch gap := max(b.Got, b.Limit) - min(b.Got, b.Limit); {
	case gap == 0:
	case b.Limit != 0:
		by = fmt.Sprintf(" by %.0f %%", 100*gap/b.Limit)
	default:
		by = fmt.Sprintf(" by %.4g", gap)
	}
	if b.met() {
		return "met" + by
	}
	return "MISSED" + by
}

func (b Budget) want() string {
	if b.AtLeast {
		return fmt.Sprintf("≥ %.4g%s", b.Limit, b.Unit)
	}
	return fmt.Sprintf("≤ %.4g%s", b.Limit, b.Unit)
}

func (b Budget) got() string {
	if !b.Known {
		return "–"
	}
	return fmt.Sprintf("%.4g%s", b.Got, b.Unit)
}

// budgets compares the results of a plan with the goals. Goals of scenarios that were not run stay open.
func budgets(p plan, results map[string]*Result) (list []Budget) {
	most := func(what string, limit float64, unit string) func(float64, bool) {
		return func(got float64, known bool) { list = append(list, Budget{what, limit, false, got, known, unit}) }
	}
	least := func(what string, limit float64, unit string) func(float64, bool) {
		return func(got float64, known bool) { list = append(list, Budget{what, limit, true, got, known, unit}) }
	}
	for _, c := range clients {
		me, bare := "locker/"+c, "raw/"+c
		one, cancellable := results["one-goroutine"], results["one-goroutine-cancellable"]
		most("1 goroutine, "+c+": time, to raw", 1.10, "×")(one.ratio(me, bare, "mean_us"))
		most("1 goroutine, "+c+", cancellable: time, to raw with a plain context", 1.25, "×")(cancellable.ratio(me, bare, "mean_us"))
		for _, r := range []struct {
			kind string
			*Result
		}{{"", one}, {", cancellable", cancellable}} {
			mine, ok1 := r.figure(me, "allocs")
			theirs, ok2 := r.figure(bare, "allocs")
			most("1 goroutine, "+c+r.kind+": allocations more than raw", 8, "")(mine-theirs, ok1 && ok2)
		}
	}
	for _, c := range clients {
		r := results["own-keys-512"]
		least("512 goroutines, "+c+": cycles/s, to raw rueidis", 1, "×")(r.ratio("locker/"+c, "raw/rueidis", "rate"))
	}
	for _, c := range clients {
		r, me := results["contended"], "locker/"+c
		least("contended, "+c+": acquisitions/s, to sync.Mutex", 0.8, "×")(r.ratio(me, "sync.Mutex", "rate"))
		most("contended, "+c+": unfairness", 5, " %")(r.figure(me, "unfairness"))
		most("contended, "+c+": round trips per acquisition", 3.1, "")(r.figure(me, "trips"))
		most("contended, "+c+": longest wait, fair shares", 2, "")(r.figure(me, "wait_shares"))
		most("hand-over between two, "+c+": p50", 200, " µs")(results["hand-over"].figure(me, "handoff_p50_us"))
	}
	for _, c := range clients {
		r, me := results["redlock-contended"], "locker/"+c
		least("contended Redlock, "+c+": acquisitions/s, to redsync 1–11 ms", 1.15, "×")(r.ratio(me, crowdYardstick, "rate"))
		most("contended Redlock, "+c+": unfairness", 5, " %")(r.figure(me, "unfairness"))
		most("contended Redlock, "+c+": longest wait, fair shares", 2, "")(r.figure(me, "wait_shares"))
		most("contended Redlock, "+c+": quorum attempts per acquisition", 1.1, "")(r.figure(me, "attempts"))
	}
	for _, c := range clients {
		me := "locker/" + c
		for _, f := range failures {
			r := results["redlock-"+f.name]
			most("Redlock, "+c+", "+f.title+": lock p50, to third answer", 1.25, "×")(r.ratio(me, quorumYardstick, "lock_p50_us"))
			most("Redlock, "+c+", "+f.title+": unlock p50, to third answer", 1.25, "×")(r.ratio(me, quorumYardstick, "unlock_p50_us"))
			most("Redlock, "+c+", "+f.title+": allocations per cycle", 40, "")(r.figure(me, "allocs"))
		}
	}
	for _, c := range clients {
		r, me := results["leases"], "locker/"+c
		most("leases, "+c+": goroutines per lease, at most moments", 0.01, "")(r.figure(me, "per_lease"))
		least("leases, "+c+": renewals per round trip", 2, "")(r.figure(me, "batch"))
		most("leases, "+c+": lost", 0, "")(r.figure(me, "lost"))
	}
	for _, c := range clients {
		r, me := results["hang"], "locker/"+c
		what := fmt.Sprintf("a node hangs for %v, %s: ", p.Hang, c)
		most(what+"goroutines beyond the load", 64, "")(r.figure(me, "goroutines"))
		most(what+"heap", 64, " MB")(r.figure(me, "heap_mb"))
		most(what+"orphan keys", 0, "")(r.figure(me, "orphans"))
	}
	return list
}

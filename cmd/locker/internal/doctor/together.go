package doctor

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/redis/settings"
)

// together runs the checks that compare nodes.
func (e *examination) together(ctx context.Context) {
	e.count()
	if len(e.checkups) < 2 {
		return
	}
	e.identity()
	e.mirrors(ctx)
	e.clocks()
}

func (e *examination) count() {
	const check = "nodes"
	if !e.Redlock {
		return
	}
	n, up := len(e.checkups), 0
	for _, p := range e.checkups {
		if p.reached {
			up++
		}
	}
	const odd = "use three or five servers on machines that do not fail together"
	switch {
	case up < n/2+1:
		e.add(check, Fail, "see the nodes that cannot be reached", "%d of %d can be reached: no majority, so no locks",
			up, n)
	case n < 3:
		e.add(check, Warn, odd, "%d: it survives no failure", n)
	case n%2 == 0:
		e.add(check, Warn, odd, "%d: an even number survives no more failures than one fewer", n)
	case up < n:
		e.add(check, Warn, "see the nodes that cannot be reached", "%d of %d can be reached: %d more may fail", up, n,
			up-(n/2+1))
	default:
		e.add(check, OK, "", "%d, of which %d may fail", n, n-(n/2+1))
	}
}

// identity finds servers that are configured twice. Such a server has only one vote, so fewer servers may fail.
func (e *examination) identity() {
	const check = "identity"
	byID, known, doubles := map[string]string{}, 0, false
	for _, p := range e.checkups {
		id := p.settings.Info["run_id"]
		if id == "" {
			continue
		}
		known++
		if first, again := byID[id]; again {
			doubles = true
			e.add(check, Fail,
				"give each server once, by one address, and another server instead of the second address",
				"%s and %s are the same server (run_id %.8s…): it has one vote", first, p.Name, id)
		} else {
			byID[id] = p.Name
		}
	}
	switch {
	case doubles:
	case known < e.reached():
		e.add(check, Warn, "see what the check info says of these nodes", "%d of %d nodes have shown their run_id, so "+
			"one server may be there twice", known, e.reached())
	case known > 0:
		e.add(check, OK, "", "%d nodes, %d servers", known, known)
	}
}

func (e *examination) reached() (n int) {
	for _, p := range e.checkups {
		if p.reached {
			n++
		}
	}
	return n
}

// mirrors writes a key to every node and looks for it on the others. With a proxy, a virtual address or a replica, the
// key appears on another node, even if the run ids differ.
func (e *examination) mirrors(ctx context.Context) {
	const check = "independence"
	keys := make([]string, len(e.checkups))
	written := make([]bool, len(e.checkups))
	for i := range keys {
		keys[i] = node.NamesOf(e.Prefix, e.checkups[i].probe("mirror")).Keys[0]
	}
	e.all(func(i int, p *checkup) {
		cmds := []drivers.Command{{"SET", keys[i], e.id, "PX", "60000"}}
		if n := p.number("connected_slaves"); n > 0 { // one of them may be among the nodes
			wait := min(p.e.Timeout, askLimit) / 2
			cmds = append(cmds, drivers.Command{"WAIT", strconv.FormatInt(n, 10), strconv.FormatInt(wait.Milliseconds(), 10)})
		}
		replies, err := p.ask(ctx, cmds...)
		written[i] = err == nil && replies[0] == "OK"
	})
	defer e.all(func(i int, p *checkup) {
		_, _ = p.ask(context.WithoutCancel(ctx), append(drivers.Command{"DEL"}, keys[i]))
	})
	if !sleep(ctx, 100*time.Millisecond) { // for replicas of a server that has not told of them
		return
	}
	seen := make([][]string, len(e.checkups))
	var mu sync.Mutex
	looked := 0
	e.all(func(i int, p *checkup) {
		replies, err := p.ask(ctx, append(drivers.Command{"MGET"}, keys...))
		values, _ := first(replies).([]drivers.Reply)
		if err != nil || len(values) != len(keys) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		looked++
		for j, v := range values {
			if j != i && written[j] && v == e.id {
				seen[i] = append(seen[i], e.checkups[j].Name)
			}
		}
	})
	found := false
	for i, from := range seen {
		if len(from) > 0 {
			found = true
			e.add(check, Fail,
				"use independent servers: no replicas of each other, and not two behind one proxy or virtual address",
				"what is written to %s shows on %s", list(from), e.checkups[i].Name)
		}
	}
	if !found && looked > 1 {
		e.add(check, OK, "", "what is written to one of %d nodes shows on no other", looked)
	}
}

// all calls f for all reachable nodes concurrently.
func (e *examination) all(f func(i int, p *checkup)) {
	var wg sync.WaitGroup
	for i, p := range e.checkups {
		if p.reached {
			wg.Go(func() { f(i, p) })
		}
	}
	wg.Wait()
}

func first(replies []drivers.Reply) drivers.Reply {
	if len(replies) == 0 {
		return nil
	}
	return replies[0]
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// clocks compares the nodes' clocks.
func (e *examination) clocks() {
	var readings []settings.Clock
	for _, p := range e.checkups {
		if p.clock.Node != "" {
			readings = append(readings, p.clock)
		}
	}
	if f, ok := settings.Clocks(readings); ok {
		e.findings = append(e.findings, Finding{"", f})
	}
}

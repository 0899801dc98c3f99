package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/middleware/audit"
)

// Result is what came of an episode.
type Result struct {
	Counts     map[string]int // of faults and other things, by name
	Violations []history.Violation
	Hash       uint64        // of its history
	Virtual    time.Duration // how long it took there
	Told       []string      // with Trace: what happened
	history    *history.History
	linger     time.Duration
}

// Play plays one episode. It must be called in a bubble of its own.
func Play(t testing.TB, o Options) *Result {
	start := time.Now()
	w := newWorld(t, o)
	var workers sync.WaitGroup
	for i, c := range w.clients {
		for j := range o.Workers {
			workers.Go(func() { c.work(newDice(o.Seed, 300+10*uint64(i)+uint64(j))) })
		}
	}
	w.nemesis()
	time.Sleep(o.Length)
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	workers.Wait()
	w.underWay.Wait() // what hangs goes on by itself, soon
	w.settle()
	w.alive()
	var closing sync.WaitGroup
	for _, c := range w.clients {
		closing.Go(func() {
			if err := c.client.Close(); err != nil {
				w.violated("CLOSE", err.Error())
			}
		})
	}
	closing.Wait()
	w.underWay.Wait()
	w.history.Wait()
	synctest.Wait()
	return w.judge(time.Since(start))
}

// Cleaning up takes no longer than this after the last fault: an exchange that hangs, the pause before the next try,
// and messages that are late.
const cleanupBound = 3 * time.Second

// deadWaiters is the longest that dead waiters keep others from a lock: docs/safety.md, Waiting.
const deadWaiters = 8 * time.Second

// settle lets clean-ups come to an end, and looks for what they have left.
func (w *world) settle() {
	bound := max(cleanupBound, w.MaxTTL+time.Second)
	dead := len(w.living()) < w.Clients
	if dead {
		bound += deadWaiters
	}
	time.Sleep(bound)
	for _, s := range w.nodes {
		for _, key := range slices.Sorted(slices.Values(s.Left())) {
			// Redlock's queues are advice. A place in any that was asked for twice stays until it expires.
			// So does one that an older state of the node had.
			if (dead || w.quorum() || w.recovers() || w.Factors[twice] > 0) && queues.MatchString(key) {
				continue
			}
			w.violated("ORPHAN", fmt.Sprintf("node %d still has %s, %v after the last fault", s.id, key, bound))
		}
	}
}

var queues = regexp.MustCompile(`:lock(wait|queue|turn)(:[ts])?$`)

// alive (LIVE) has every client that lives lock everything once.
func (w *world) alive() {
	w.rested()
	bound := w.MaxTTL + time.Second
	// A waiter that left a queue may have been put into it once more. On one node tombstones are against that; turns have
	// none.
	if w.Factors[twice] > 0 || w.recovers() || w.quorum() && w.Factors[late] > 0 {
		bound += deadWaiters
	}
	for _, key := range w.keys {
		for _, c := range w.living() {
			ctx, cancel := context.WithTimeout(w.Context(), bound)
			lease, err := c.Lock(ctx, key, locker.TTL(w.MinTTL.Round(time.Millisecond)))
			if err != nil {
				w.violated("LIVE", fmt.Sprintf("client %d, with no faults any more: %v", c.id, err))
			} else if err := lease.Unlock(ctx); err != nil {
				w.violated("LIVE", fmt.Sprintf("client %d, with no faults any more: %v", c.id, err))
			}
			cancel()
		}
	}
}

// rested returns when all nodes have rested. A node begins to rest when it is asked, for each slot on a cluster.
func (w *world) rested() {
	if w.guard() == 0 {
		return
	}
	for _, key := range w.keys {
		if lease, err := w.living()[0].TryLock(w.Context(), key, locker.TTL(w.guard())); err == nil {
			_ = lease.Unlock(w.Context())
		}
	}
	time.Sleep(w.rest() * 102 / 100) // its clock may be slow
}

func (w *world) judge(took time.Duration) *Result {
	rules := judge.Options{Prompt: promptly}
	needed := 1
	if w.quorum() {
		needed = w.Nodes/2 + 1
	}
	found := slices.Concat(w.violations, w.log.Found, w.log.CheckTokens(w.history, needed), w.history.Check(rules))
	for _, key := range w.keys {
		r, twin := w.registers[key], w.twins[key]
		if r.Lost > 0 {
			found = append(found,
				history.Violation{Rule: "FENCE",
					Text: fmt.Sprintf("key %s: %d of %d updates were lost", key, r.Lost, r.Writes)})
		}
		w.counts["updates lost without tokens"] += twin.Lost
		w.counts["stale accesses refused"] += r.Refused
	}
	for _, e := range w.history.Events() {
		switch {
		case e.Op == history.Lock || e.Op == history.TryLock:
			w.counts["attempts"]++
			if e.Outcome == audit.OK {
				w.counts["acquisitions"]++
			}
		case e.Op == history.Until:
			w.counts["renewals"]++
		case e.Op == history.Done && (e.Outcome == history.Lost || e.Outcome == history.Taken):
			w.counts["leases lost"]++
		}
	}
	for what, n := range w.log.Counts {
		w.counts[what] += n
	}
	w.tellEvents()
	return &Result{
		Told:   w.told,
		Counts: maps.Clone(w.counts), Violations: found, Hash: w.history.Hash(), Virtual: took, history: w.history,
		linger: max(w.MaxTTL, longTTL*btoi(slices.Contains(w.keys, longKey)))*51/50 + w.Timeout + maxLate + 2*w.MaxTTL,
	}
}

// tellEvents adds what the clients saw to what happened on the nodes.
func (w *world) tellEvents() {
	if !w.Trace {
		return
	}
	for _, e := range w.history.Events() {
		w.told = append(w.told,
			fmt.Sprintf("%12v client %d %s %s %.8s token %d from %v until %v: %s", e.Return, e.Client, e.Op, e.Key,
				e.Grant, e.Fence, e.Call, e.Until, e.Outcome))
	}
	at := func(line string) time.Duration {
		d, _ := time.ParseDuration(strings.Fields(line)[0])
		return d
	}
	slices.SortStableFunc(w.told, func(a, b string) int { return cmp.Compare(at(a), at(b)) })
}

func btoi(b bool) time.Duration {
	if b {
		return 1
	}
	return 0
}

// Model asks the model, outside the bubble. Where exclusion is not promised there is nothing to ask.
func (r *Result) Model(o Options) {
	if o.Profile == Model || o.Profile == Guard {
		r.Violations = append(r.Violations, r.history.CheckModel(r.linger)...)
	}
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// quorum is a store under test, with clients of it.
type quorum struct {
	QuorumStore
	QuorumHarness
	ls []locker.Locker
	// minority is how many nodes may fail: one more, and there is no majority.
	minority int
	keys     int // that have been used
}

func newQuorum(t testing.TB, h QuorumHarness, n int) *quorum {
	t.Helper()
	q := &quorum{QuorumHarness: h}
	q.ls, _ = clients(t, Harness{Store: func(t testing.TB) Store {
		q.QuorumStore = h.Store(t)
		if q.Client == nil || len(q.Nodes) < 3 || !q.all(func(n QuorumNode) bool { return n.Locked != nil }) {
			t.Fatal("conformance: QuorumStore needs Client and three Nodes, and each of them Locked")
		}
		return Store{Client: q.Client}
	}}, n)
	q.minority = (len(q.Nodes) - 1) / 2
	if q.Budget == 0 {
		q.Budget = time.Second
	}
	return q
}

// need skips the property unless all nodes can do what it is about.
func (q *quorum) need(t testing.TB, what string, can func(n QuorumNode) bool) {
	t.Helper()
	if !q.all(can) {
		t.Skip("the nodes of the harness have no " + what)
	}
}

func (q *quorum) all(can func(n QuorumNode) bool) bool {
	return !slices.ContainsFunc(q.Nodes, func(n QuorumNode) bool { return !can(n) })
}

func canFail(n QuorumNode) bool   { return n.Down != nil }
func canHang(n QuorumNode) bool   { return n.Hang != nil }
func canDelete(n QuorumNode) bool { return n.Delete != nil }

// outage is a way for nodes to fail.
type outage struct {
	name  string
	begin func(n QuorumNode) (end func())
}

var (
	down    = outage{"are down", func(n QuorumNode) func() { return n.Down() }}
	hanging = outage{"hang", func(n QuorumNode) func() { return n.Hang() }}
)

// outages are the ways in which the harness can make nodes fail. Without any the property is skipped.
func (q *quorum) outages(t testing.TB) (ways []outage) {
	t.Helper()
	if q.all(canFail) {
		ways = append(ways, down)
	}
	if q.all(canHang) {
		ways = append(ways, hanging)
	}
	if ways == nil {
		t.Skip("the nodes of the harness have neither Down nor Hang")
	}
	return ways
}

// each calls f for every way in which n nodes in a row can fail: those that do, and the others.
func (q *quorum) each(t testing.TB, n int, f func(way outage, failing, others []QuorumNode)) {
	t.Helper()
	for i, way := range q.outages(t) {
		for _, first := range q.firsts(n) {
			failing, others := q.split((first+i)%len(q.Nodes), n)
			q.ready(t)
			f(way, failing, others)
			if t.Failed() {
				return
			}
		}
	}
}

// firsts are where n nodes in a row can begin. In real time, of which each may cost a budget or a TTL, every node is among
// them once at most.
func (q *quorum) firsts(n int) (firsts []int) {
	for i := range q.Nodes {
		if q.Bubble != nil || i%n == 0 && i+n <= len(q.Nodes) {
			firsts = append(firsts, i)
		}
	}
	return firsts
}

// split returns n nodes from first on, and the others.
func (q *quorum) split(first, n int) (some, others []QuorumNode) {
	turned := slices.Concat(q.Nodes[first:], q.Nodes[:first])
	return turned[:n], turned[n:]
}

// strike lets nodes fail until end is called, or the check is over.
func (w outage) strike(t testing.TB, nodes []QuorumNode) (end func()) {
	t.Helper()
	return failing(t, func() func() {
		var ends []func()
		for _, n := range nodes {
			ends = append(ends, w.begin(n))
		}
		return func() {
			for _, end := range ends {
				end()
			}
		}
	})
}

// promptly is how late "at once" may be.
func (q *quorum) promptly() time.Duration {
	if q.Bubble != nil {
		return 50 * time.Millisecond
	}
	return slack
}

func (q *quorum) short() time.Duration { return Harness{Bubble: q.Bubble}.short() }

// calm is how long nothing has to happen for it to be certain that nothing will.
const calm = 100 * time.Millisecond

// until polls for limit at most, and reports whether cond held.
func until(limit time.Duration, cond func() bool) bool {
	for end := time.Now().Add(limit); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func lockedOn(nodes []QuorumNode, key string) (n int) {
	for _, node := range nodes {
		if node.Locked(key) {
			n++
		}
	}
	return n
}

// wantFree waits until key is on none of the nodes.
func wantFree(t testing.TB, what string, nodes []QuorumNode, key string) {
	t.Helper()
	left := 0
	if !until(patience, func() bool { left = lockedOn(nodes, key); return left == 0 }) {
		t.Errorf("%s: expected a lock on none of %d nodes, seen it on %d after %v", what, len(nodes), left, patience)
	}
}

// regain acquires key when the nodes are back: what was left is undone, clients find out that there is somebody again.
func regain(t testing.TB, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recovery)
	defer cancel()
	for {
		lease, err := l.Lock(ctx, key, append([]locker.Option{locker.TTL(longTTL)}, opts...)...)
		if err == nil {
			return lease
		}
		if ctx.Err() != nil || !errors.Is(err, locker.ErrUnavailable) {
			t.Fatalf("Lock with all nodes in order: expected a lease, seen %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// everywhere acquires key on all nodes: one that has not been asked when a majority has granted may not be asked any more,
// and one that has just failed may not be for a while. during, which may be nil, is done to the nodes for the time of the call.
func (q *quorum) everywhere(t testing.TB, l locker.Locker, key string, during func() (end func()), opts ...locker.Option) locker.Lease {
	t.Helper()
	on := 0
	for limit := time.Now().Add(recovery); time.Now().Before(limit); {
		end := func() {}
		if during != nil {
			end = during()
		}
		lease := regain(t, l, key, opts...)
		end()
		if until(calm, func() bool { on = lockedOn(q.Nodes, key); return on == len(q.Nodes) }) {
			return lease
		}
		_ = lease.Unlock(t.Context())
		wantFree(t, "after Unlock", q.Nodes, key)
	}
	t.Fatalf("expected a lease to be on all of %d nodes sooner or later, seen it on %d", len(q.Nodes), on)
	return nil
}

// ready waits until all clients work with all nodes: connections exist, and what failed before is forgotten.
func (q *quorum) ready(t testing.TB) {
	t.Helper()
	for _, l := range q.ls {
		_ = q.everywhere(t, l, q.key(), nil).Unlock(t.Context())
	}
}

// key returns one that was not used before: what a fault has left under another is not what a check is about.
func (q *quorum) key() string {
	q.keys++
	return fmt.Sprint("k", q.keys)
}

// patiently calls f with a context that outlasts any budget.
func patiently(t testing.TB, what string, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return within(t, what, patience, func() error { return f(ctx) })
}

// noQuorum calls f, which is to fail for want of a majority, in time.
func (q *quorum) noQuorum(t testing.TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	start := time.Now()
	err := patiently(t, what, f)
	if took := time.Since(start); took > q.Budget+q.promptly() {
		t.Errorf("%s: expected an answer within the budget of %v, seen one after %v", what, q.Budget, took)
	}
	wantError(t, what, err, locker.ErrNoQuorum, locker.ErrUnavailable)
}

// while describes a call during an outage.
func (q *quorum) while(call string, w outage, failing []QuorumNode) string {
	return fmt.Sprintf("%s while %d of %d nodes %s", call, len(failing), len(q.Nodes), w.name)
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// asking is a way to request a lock: Lock or TryLock.
type asking struct {
	name string
	lock func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error)
}

func askings(l locker.Locker) []asking { return []asking{{"TryLock", l.TryLock}, {"Lock", l.Lock}} }

// refused returns a call that requests key and should fail.
func (a asking) refused(key string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		_, err := a.lock(ctx, key, locker.TTL(longTTL))
		return err
	}
}

func survivesAMinority(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 2)
	q.each(t, q.minority, func(way outage, out, _ []quorumNode) {
		key := q.key()
		lease := q.everywhere(t, q.ls[0], key, nil, locker.NoRenewal())
		end := way.inject(t, out)
		extended(t, q.while("Extend", way, out), lease)
		wantHeld(t, q.ls[1], key)
		unlock(t, lease)
		for i, l := range q.ls {
			ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
			next, err := l.Lock(ctx, key, locker.TTL(longTTL))
			cancel()
			if err != nil {
				t.Fatalf("%s: expected a lease, seen %v", q.while("Lock", way, out), err)
			}
			wantHeld(t, q.ls[1-i], key)
			unlock(t, next)
		}
		end()
	})
}

// extended checks that lease can be extended. A client may have received only some of the grants when nodes fail, so
// the first attempt may fail.
func extended(t testing.TB, what string, lease locker.Lease) {
	t.Helper()
	var err error
	if !until(hangLimit, func() bool { err = lease.Extend(t.Context()); return err == nil || lease.Err() != nil }) ||
		err != nil {
		t.Fatalf("%s: expected no error, seen %v", what, err)
	}
}

func slowNodeDelaysNobody(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	bound, tries := budget/4, 1
	if h.Bubble == nil {
		tries = 5 // the machine may stall: the best try counts
	}
	for first := range q.Nodes {
		slow, _ := q.split(first, q.minority)
		best := map[string]time.Duration{}
		for n := range tries {
			q.ready(t)
			end := hanging.inject(t, slow)
			timed := func(call string, f func()) {
				start := time.Now()
				f()
				if took := time.Since(start); n == 0 || took < best[call] {
					best[call] = took
				}
			}
			var lease locker.Lease
			timed("TryLock", func() { lease = lock(t, q.ls[0], q.key(), locker.TTL(longTTL), locker.NoRenewal()) })
			timed("Extend", func() {
				if err := lease.Extend(t.Context()); err != nil {
					t.Errorf("%s: expected no error, seen %v", q.while("Extend", hanging, slow), err)
				}
			})
			timed("Unlock", func() { unlock(t, lease) })
			end()
		}
		for call, took := range best {
			if took > bound {
				t.Errorf("%s: expected an answer long before the budget of %v is spent, seen one after %v at best",
					q.while(call, hanging, slow), budget, took)
			}
		}
	}
}

func lateGrantJoins(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	for _, way := range outages {
		for first := range q.Nodes {
			late, prompt := q.split(first, q.minority)
			q.ready(t)
			lease := q.everywhere(t, q.ls[0], q.key(), func() func() { return hangingForAWhile(t, late) },
				locker.NoRenewal())
			end := way.inject(t, prompt[:q.minority])
			extended(t, q.while("Extend", way, prompt[:q.minority])+", and others granted late", lease)
			unlock(t, lease)
			end()
		}
	}
}

// hangingForAWhile makes nodes hang until some time after end is called.
func hangingForAWhile(t testing.TB, nodes []quorumNode) (end func()) {
	resume := hanging.inject(t, nodes)
	return func() {
		time.Sleep(calm / 2)
		resume()
	}
}

func refusesWithoutAMajority(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []quorumNode) {
		end := way.inject(t, out)
		for _, a := range askings(q.ls[0]) {
			q.noQuorum(t, q.while(a.name, way, out), a.refused(q.key()))
		}
		end()
		unlock(t, regain(t, q.ls[0], q.key()))
	})
}

func errorsNameTheNodes(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []quorumNode) {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.NoRenewal())
		end := way.inject(t, out)
		named := func(call string, f func(ctx context.Context) error) {
			call = q.while(call, way, out)
			err := patiently(t, call, f)
			for _, n := range out {
				if err != nil && !strings.Contains(err.Error(), n.Name) {
					t.Errorf("%s: expected an error that names %q, seen %q", call, n.Name, err)
				}
			}
		}
		named("Extend", func(ctx context.Context) error { return lease.Extend(ctx) })
		named("Lock", asking{lock: q.ls[0].Lock}.refused(q.key()))
		end()
	})
}

func refusalLeavesNothing(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, up []quorumNode) {
		end := way.inject(t, out)
		for _, a := range askings(q.ls[0]) {
			key := q.key()
			_ = patiently(t, q.while(a.name, way, out), a.refused(key))
			wantFree(t, q.while("after "+a.name, way, out), up, key)
		}
		end()
	})
}

func silentNodesAreReleased(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	for _, n := range []int{q.minority, q.minority + 1} {
		for _, first := range q.firsts(n) {
			silent, _ := q.split(first, n)
			key := q.key()
			q.ready(t)
			end := hangingForAWhile(t, silent)
			lease, err := q.ls[0].TryLock(t.Context(), key, locker.TTL(longTTL), locker.NoRenewal())
			if err == nil {
				_ = lease.Unlock(t.Context())
			}
			end()
			wantFree(t, q.while("when they go on after TryLock and Unlock", hanging, silent), silent, key)
			time.Sleep(calm) // for requests that are executed only now
			wantFree(t, q.while("a little later, after TryLock and Unlock", hanging, silent), silent, key)
		}
	}
}

func majoritiesOverlap(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 2)
	q.each(t, q.minority, func(way outage, out, up []quorumNode) {
		key := q.key()
		end := way.inject(t, out)
		lock(t, q.ls[0], key, locker.TTL(longTTL), locker.NoRenewal())
		end()
		q.ready(t)
		out = up[len(up)-q.minority:]
		end = way.inject(t, out)
		for range 3 {
			if _, err := q.ls[1].TryLock(t.Context(), key, locker.TTL(longTTL)); err == nil {
				t.Errorf("%s, after other nodes had failed when it was granted: expected an error, seen a second lease",
					q.while("TryLock of a held lock", way, out))
			}
		}
		end()
	})
}

// budget is how long one operation of a Locker may wait for a majority.
const budget = time.Second

// quorum is a store under test, with its clients.
type quorum struct {
	quorumStore
	quorumHarness
	ls []locker.Locker
	// minority is the number of nodes that may fail while a majority remains.
	minority int
	keys     int // number of keys used so far
}

func newQuorum(t testing.TB, h quorumHarness, n int) *quorum {
	t.Helper()
	q := &quorum{quorumHarness: h}
	q.ls, _ = clients(t, Harness{Store: func(t testing.TB) Store {
		q.quorumStore = h.Store(t)
		return Store{Client: q.Client}
	}}, n)
	q.minority = (len(q.Nodes) - 1) / 2
	return q
}

// outage is a way for nodes to fail.
type outage struct {
	name  string
	begin func(n quorumNode) (end func())
}

var (
	down    = outage{"are down", func(n quorumNode) func() { return n.Down() }}
	hanging = outage{"hang", func(n quorumNode) func() { return n.Hang() }}
)

// outages are the ways in which nodes fail.
var outages = []outage{down, hanging}

// each calls f for every outage of n consecutive nodes.
func (q *quorum) each(t testing.TB, n int, f func(way outage, failing, others []quorumNode)) {
	t.Helper()
	for i, way := range outages {
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

// firsts returns the first indexes of the groups of n consecutive nodes. In real time each group costs a budget or a
// TTL, so the groups do not overlap.
func (q *quorum) firsts(n int) (firsts []int) {
	for i := range q.Nodes {
		if q.Bubble != nil || i%n == 0 && i+n <= len(q.Nodes) {
			firsts = append(firsts, i)
		}
	}
	return firsts
}

// split returns n consecutive nodes from first on, and the other nodes.
func (q *quorum) split(first, n int) (some, others []quorumNode) {
	turned := slices.Concat(q.Nodes[first:], q.Nodes[:first])
	return turned[:n], turned[n:]
}

// inject makes nodes fail until end is called or the check ends.
func (w outage) inject(t testing.TB, nodes []quorumNode) (end func()) {
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

// atOnce is the limit for "at once".
func (q *quorum) atOnce() time.Duration {
	if q.Bubble != nil {
		return 50 * time.Millisecond
	}
	return slack
}

func (q *quorum) short() time.Duration { return Harness{Bubble: q.Bubble}.short() }

// calm is how long a check waits for events that must not happen.
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

func lockedOn(nodes []quorumNode, key string) (n int) {
	for _, node := range nodes {
		if node.Locked(key) {
			n++
		}
	}
	return n
}

// wantFree waits until none of the nodes has a lock under key.
func wantFree(t testing.TB, what string, nodes []quorumNode, key string) {
	t.Helper()
	left := 0
	if !until(hangLimit, func() bool { left = lockedOn(nodes, key); return left == 0 }) {
		t.Errorf("%s: expected a lock on none of %d nodes, seen it on %d after %v", what, len(nodes), left, hangLimit)
	}
}

// regain acquires key when the nodes are back. Until then clean-up and reconnection may take some attempts.
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

// everywhere acquires key on all nodes. It may need several attempts: a Locker may skip a node once a majority has
// granted the lock, or for a while after a failure. during, which may be nil, injects a fault for the duration of each
// attempt.
func (q *quorum) everywhere(t testing.TB, l locker.Locker, key string, during func() (end func()),
	opts ...locker.Option) locker.Lease {
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
	t.Fatalf("expected a lease to be on all of %d nodes eventually, seen it on %d", len(q.Nodes), on)
	return nil
}

// ready waits until all clients work with all nodes again.
func (q *quorum) ready(t testing.TB) {
	t.Helper()
	for _, l := range q.ls {
		_ = q.everywhere(t, l, q.key(), nil).Unlock(t.Context())
	}
}

// key returns a new key, which is not affected by leftovers of earlier faults.
func (q *quorum) key() string {
	q.keys++
	return fmt.Sprint("k", q.keys)
}

// patiently calls f with a context that lasts longer than any budget.
func patiently(t testing.TB, what string, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	return within(t, what, hangLimit, func() error { return f(ctx) })
}

// noQuorum calls f, and checks that it fails within the budget because there is no majority.
func (q *quorum) noQuorum(t testing.TB, what string, f func(ctx context.Context) error) {
	t.Helper()
	start := time.Now()
	err := patiently(t, what, f)
	if took := time.Since(start); took > budget+q.atOnce() {
		t.Errorf("%s: expected an answer within the budget of %v, seen one after %v", what, budget, took)
	}
	wantError(t, what, err, locker.ErrNoQuorum, locker.ErrUnavailable)
}

// while describes a call during an outage.
func (q *quorum) while(call string, w outage, failing []quorumNode) string {
	return fmt.Sprintf("%s while %d of %d nodes %s", call, len(failing), len(q.Nodes), w.name)
}

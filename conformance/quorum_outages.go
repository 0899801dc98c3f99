package conformance

import (
	"context"
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

func survivesAMinority(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 2)
	q.each(t, q.minority, func(way outage, out, _ []QuorumNode) {
		key := q.key()
		lease := q.everywhere(t, q.ls[0], key, nil, locker.NoRenewal())
		end := way.strike(t, out)
		extended(t, q.while("Extend", way, out), lease)
		wantHeld(t, q.ls[1], key)
		unlock(t, lease)
		for i, l := range q.ls {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	if !until(patience, func() bool { err = lease.Extend(t.Context()); return err == nil || lease.Err() != nil }) ||
		err != nil {
		t.Fatalf("%s: expected no error, seen %v", what, err)
	}
}

func slowNodeDelaysNobody(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Hang", canHang)
	bound, tries := q.Budget/4, 1
	if h.Bubble == nil {
		tries = 5 // the machine may stall: the best try counts
	}
	for first := range q.Nodes {
		slow, _ := q.split(first, q.minority)
		best := map[string]time.Duration{}
		for n := range tries {
			q.ready(t)
			end := hanging.strike(t, slow)
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
					q.while(call, hanging, slow), q.Budget, took)
			}
		}
	}
}

func lateGrantJoins(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Hang", canHang)
	for _, way := range q.outages(t) {
		for first := range q.Nodes {
			late, prompt := q.split(first, q.minority)
			q.ready(t)
			lease := q.everywhere(t, q.ls[0], q.key(), func() func() { return hangingForAWhile(t, late) },
				locker.NoRenewal())
			end := way.strike(t, prompt[:q.minority])
			extended(t, q.while("Extend", way, prompt[:q.minority])+", and others granted late", lease)
			unlock(t, lease)
			end()
		}
	}
}

// hangingForAWhile makes nodes hang until some time after end is called.
func hangingForAWhile(t testing.TB, nodes []QuorumNode) (end func()) {
	resume := hanging.strike(t, nodes)
	return func() {
		time.Sleep(calm / 2)
		resume()
	}
}

func refusesWithoutAMajority(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []QuorumNode) {
		end := way.strike(t, out)
		for _, a := range askings(q.ls[0]) {
			q.noQuorum(t, q.while(a.name, way, out), a.refused(q.key()))
		}
		end()
		unlock(t, regain(t, q.ls[0], q.key()))
	})
}

func errorsNameTheNodes(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Name", func(n QuorumNode) bool { return n.Name != "" })
	q.each(t, q.minority+1, func(way outage, out, _ []QuorumNode) {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.NoRenewal())
		end := way.strike(t, out)
		named := func(call string, f func(ctx context.Context) error) {
			call = q.while(call, way, out)
			err := patiently(t, call, f)
			for _, n := range out {
				if err != nil && !strings.Contains(err.Error(), n.Name) {
					t.Errorf("%s: expected an error that names %q, seen %q", call, n.Name, err)
				}
			}
		}
		named("Extend", lease.Extend)
		named("Lock", asking{lock: q.ls[0].Lock}.refused(q.key()))
		end()
	})
}

func refusalLeavesNothing(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, up []QuorumNode) {
		end := way.strike(t, out)
		for _, a := range askings(q.ls[0]) {
			key := q.key()
			_ = patiently(t, q.while(a.name, way, out), a.refused(key))
			wantFree(t, q.while("after "+a.name, way, out), up, key)
		}
		end()
	})
}

func silentNodesAreReleased(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Hang", canHang)
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

func majoritiesOverlap(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 2)
	q.each(t, q.minority, func(way outage, out, up []QuorumNode) {
		key := q.key()
		end := way.strike(t, out)
		lock(t, q.ls[0], key, locker.TTL(longTTL), locker.NoRenewal())
		end()
		q.ready(t)
		out = up[len(up)-q.minority:]
		end = way.strike(t, out)
		for range 3 {
			if _, err := q.ls[1].TryLock(t.Context(), key, locker.TTL(longTTL)); err == nil {
				t.Errorf("%s, after other nodes had failed when it was granted: expected an error, seen a second lease",
					q.while("TryLock of a held lock", way, out))
			}
		}
		end()
	})
}

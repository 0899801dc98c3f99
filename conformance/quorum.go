package conformance

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/quorumtest"
)

type (
	quorumHarness = quorumtest.Harness
	quorumStore   = quorumtest.Store
	quorumNode    = quorumtest.Node
)

func init() {
	quorumtest.Run = func(t *testing.T, h quorumtest.Harness) { run(t, h, h.Bubble, quorumProperties) }
}

var quorumProperties = []property[quorumHarness]{
	{
		"SurvivesAMinority",
		"While any minority of the nodes is down or hangs, clients can acquire, extend and release locks, and the " +
			"locks still exclude each other.",
		"Tolerating failed nodes is the reason to have several nodes.",
		survivesAMinority,
	},
	{
		"SlowNodeDelaysNobody",
		"Lock, Extend and Unlock take as long as a majority of the nodes does, and do not wait for a silent " +
			"minority.",
		"Otherwise one hung machine would slow down every lock of every program.",
		slowNodeDelaysNobody,
	},
	{
		"LateGrantJoins",
		"If a node grants the lock after Lock has returned, it becomes part of the lease: it replaces a node that " +
			"fails later, and it is released.",
		"Otherwise every slightly late answer would reduce the number of failures that the lease survives.",
		lateGrantJoins,
	},
	{
		"RefusesWithoutAMajority",
		"While a majority of the nodes is down or hangs, Lock and TryLock fail within the budget with an error that " +
			"matches ErrNoQuorum and ErrUnavailable, and they succeed again when the majority is back.",
		"A lock that a minority grants can be granted twice; without a time limit, callers hang with the nodes.",
		refusesWithoutAMajority,
	},
	{
		"ErrorsNameTheNodes",
		"If there is no majority, the error names the nodes that did not answer.",
		"Operators have to know which machines to look at.",
		errorsNameTheNodes,
	},
	{
		"RefusalLeavesNothing",
		"An attempt that finds no majority is undone on the nodes that granted it, while the other nodes are still " +
			"unavailable.",
		"Otherwise the leftovers block everybody for a whole TTL when the majority is back.",
		refusalLeavesNothing,
	},
	{
		"SilentNodesAreReleased",
		"A node that did not answer an attempt is released as well, whatever the result of the attempt.",
		"The node may have executed the attempt, or may execute it later: its lock would belong to nobody for a " +
			"whole TTL.",
		silentNodesAreReleased,
	},
	{
		"MajoritiesOverlap",
		"Nobody else acquires a lock that a majority of all nodes has granted, whichever nodes fail later.",
		"A majority of only the nodes that answer is not enough: the other nodes may have granted the lock to " +
			"somebody else.",
		majoritiesOverlap,
	},
	{
		"MinorityExtendsNothing",
		"If Extend reaches only a minority of the nodes, it fails with ErrNoQuorum and leaves Until unchanged.",
		"The lock ends as planned on the majority, and then another client can acquire it.",
		minorityExtendsNothing,
	},
	{
		"MinorityLossKeeps",
		"If a minority of the nodes loses the lock, the lease stays valid and is renewed as before.",
		"Otherwise one machine that lost its data would end every lease.",
		minorityLossKeeps,
	},
	{
		"SplitVotesEnd",
		"If contenders start at the same moment, one of them soon acquires the lock, and each of them acquires it " +
			"eventually.",
		"A free lock that nobody can acquire is as bad as one that is never released.",
		splitVotesEnd,
	},
	{
		"OneCommandPerNode",
		"An uncontended acquisition of a key that was used before costs one command per node, and so does its " +
			"release.",
		"A second round trip doubles the time of every lock.",
		oneCommandPerNode,
	},
}

func minorityExtendsNothing(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []quorumNode) {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.NoRenewal())
		end := way.inject(t, out)
		before := lease.Until()
		q.noQuorum(t, q.while("Extend", way, out), func(ctx context.Context) error { return lease.Extend(ctx) })
		if after := lease.Until(); !after.Equal(before) {
			t.Errorf("%s: expected Until to stay, seen it move by %v", q.while("Extend", way, out), after.Sub(before))
		}
		end()
	})
}

func minorityLossKeeps(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 2)
	leases := make([]locker.Lease, len(q.Nodes))
	for first := range leases { // each key is lost by different nodes
		key := q.key()
		leases[first] = q.everywhere(t, q.ls[0], key, nil, locker.TTL(q.short()))
		forgetful, _ := q.split(first, q.minority)
		for _, n := range forgetful {
			n.Delete(key)
		}
	}
	for start := time.Now(); time.Since(start) < 2*q.short() && !t.Failed(); time.Sleep(q.short() / 5) {
		for _, lease := range leases {
			if err := lease.Err(); err != nil {
				t.Errorf("%d of %d nodes have lost the lock: expected the lease to last, seen %v after %v", q.minority,
					len(q.Nodes), err, time.Since(start))
			}
			wantHeld(t, q.ls[1], lease.Key())
		}
	}
	for _, lease := range leases {
		unlock(t, lease)
	}
}

func splitVotesEnd(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 6)
	q.ready(t)
	for range 5 {
		key := q.key()
		ctx, cancel := context.WithTimeout(t.Context(), 2*hangLimit)
		begin := make(chan struct{})
		var start time.Time
		var first atomic.Int64
		var wg sync.WaitGroup
		for _, l := range q.ls {
			wg.Go(func() {
				<-begin
				lease, err := l.Lock(ctx, key, locker.TTL(longTTL))
				if err != nil {
					t.Errorf("Lock, %d contenders at once: expected a lease, seen %v after %v", len(q.ls), err,
						time.Since(start))
					return
				}
				first.CompareAndSwap(0, int64(time.Since(start)))
				time.Sleep(time.Millisecond)
				unlock(t, lease)
			})
		}
		start = time.Now()
		close(begin)
		wg.Wait()
		cancel()
		if took := time.Duration(first.Load()); took > budget+q.atOnce() {
			t.Errorf("%d contenders at once: expected one to have the lock within %v, seen it after %v", len(q.ls),
				budget, took)
		}
		if t.Failed() {
			return
		}
	}
}

func oneCommandPerNode(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	key := q.key()
	for range 3 { // so that counters agree, connections exist and scripts are loaded
		unlock(t, q.everywhere(t, q.ls[0], key, nil))
	}
	commands := func() (counts []int) {
		for _, n := range q.Nodes {
			counts = append(counts, n.Commands())
		}
		return counts
	}
	// If counters follow clocks, the clocks may pass into another tick while the nodes answer. The best try counts.
	const tries = 20
	var toLock, inAll []int
	for range tries {
		before := commands()
		lease := lock(t, q.ls[0], key, locker.TTL(longTTL), locker.NoRenewal())
		toLock = commands()
		unlock(t, lease)
		wantFree(t, "after Unlock", q.Nodes, key)
		inAll = commands()
		for i, n := range before {
			toLock[i] -= n
			inAll[i] -= n
		}
		if slices.Max(inAll) == 0 {
			t.Fatal("conformance: Commands counts nothing")
		}
		if slices.Max(toLock) <= 1 && slices.Max(inAll) <= 2 {
			return
		}
	}
	t.Errorf("expected each node to execute one command to lock and one to unlock, seen %v and %v in all at the last "+
		"of %d tries", toLock, inAll, tries)
}

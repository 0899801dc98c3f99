package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/quorumtest"
	"github.com/golocker/locker/lockertrace"
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
		"LateExtendIsNoValidity",
		"An extension is counted from the time when it was sent, however late the nodes confirm it, and a " +
			"confirmation after the end of the lease does not revive it.",
		"By then another client can have the lock.",
		lateExtendIsNoValidity,
	},
	{
		"MinorityLossKeeps",
		"If a minority of the nodes loses the lock, the lease stays valid and is renewed as before.",
		"Otherwise one machine that lost its data would end every lease.",
		minorityLossKeeps,
	},
	{
		"LeasesHeal",
		"If a node lacks the lock of a lease, because it was unavailable or lost it, later extensions restore the " +
			"lock there until Unlock.",
		"Otherwise every passing fault would leave the lease on fewer nodes, until the failure of a minority ends " +
			"it.",
		leasesHeal,
	},
	{
		"MajorityLossEnds",
		"If a majority of the nodes loses the lock, its lease ends within one TTL and Unlock reports ErrNotHeld.",
		"A holder that does not notice the loss continues to work while another client has the lock.",
		majorityLossEnds,
	},
	{
		"MajorityOutageEnds",
		"While a majority of the nodes is down or hangs, leases end no later than their Until, although they are " +
			"renewed.",
		"Without confirmation the lock ends on the nodes, and when they are back another client can acquire it.",
		majorityOutageEnds,
	},
	{
		"SplitVotesEnd",
		"If contenders start at the same moment, one of them soon acquires the lock, and each of them acquires it " +
			"eventually.",
		"A free lock that nobody can acquire is as bad as one that is never released.",
		splitVotesEnd,
	},
	{
		"CleanupWakesNobody",
		"Undoing a failed attempt on the nodes that granted it does not wake the waiters.",
		"All woken waiters would ask in vain, and would split the votes of the next holder.",
		cleanupWakesNobody,
	},
	{
		"OneCommandPerNode",
		"An uncontended acquisition of a key that was used before costs one command per node, and so does its " +
			"release.",
		"A second round trip doubles the time of every lock.",
		oneCommandPerNode,
	},
	{
		"DuplicateVotesOnce",
		"A node that is configured twice is refused, or has one vote.",
		"If it had two votes, a majority of the votes would not be a majority of the nodes.",
		duplicateVotesOnce,
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

func lateExtendIsNoValidity(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	ttl := q.short()
	for _, first := range q.firsts(q.minority + 1) {
		late, _ := q.split(first, q.minority+1)
		for _, delay := range []time.Duration{ttl / 4, ttl * 3 / 2} {
			lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.TTL(ttl), locker.NoRenewal())
			ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
			before := lease.Until()
			end := hanging.inject(t, late)
			var start time.Time
			extended := make(chan error, 1)
			go func() {
				start = time.Now()
				extended <- lease.Extend(ctx)
			}()
			time.Sleep(delay)
			end()
			err := <-extended
			cancel()
			what := fmt.Sprintf("Extend of a lease with %v left that a majority answers after %v", before.Sub(start),
				delay)
			limit := before
			if err == nil {
				limit = start.Add(ttl)
				if h.Bubble == nil {
					limit = limit.Add(delay / 2) // the machine may have stalled before Extend was sent
				}
			}
			if after := lease.Until(); after.After(limit) {
				t.Errorf("%s: expected Until no later than %v from its start, seen %v (error %v)", what,
					limit.Sub(start), after.Sub(start), err)
			}
			if time.Since(limit) > 0 && !errors.Is(lease.Err(), locker.ErrLost) {
				t.Errorf("%s: expected the lease to be lost, seen Err %v (error %v)", what, lease.Err(), err)
			}
		}
	}
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

func leasesHeal(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	// heals extends lease until it is on all nodes. Other properties check that the lease stays valid.
	heals := func(what string, lease locker.Lease) bool {
		t.Helper()
		on := 0
		if until(hangLimit, func() bool {
			if err := lease.Extend(t.Context()); errors.Is(err, locker.ErrLost) {
				return true
			}
			time.Sleep(calm)
			on = lockedOn(q.Nodes, lease.Key())
			return on == len(q.Nodes)
		}) {
			return lease.Err() == nil
		}
		t.Errorf("%s: expected extensions to restore the lock on all of %d nodes, seen it on %d", what, len(q.Nodes),
			on)
		return false
	}
	over := func(lease locker.Lease) {
		t.Helper()
		unlock(t, lease)
		wantFree(t, "after Unlock of a lease that has healed", q.Nodes, lease.Key())
	}
	lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.NoRenewal())
	for first := range q.Nodes { // one minority after the other, in total more nodes than a majority
		forgetful, _ := q.split(first, q.minority)
		for _, n := range forgetful {
			n.Delete(lease.Key())
		}
		if !heals(fmt.Sprintf("%d of %d nodes have lost the lock", q.minority, len(q.Nodes)), lease) {
			return
		}
	}
	over(lease)
	out, _ := q.split(0, q.minority)
	end := down.inject(t, out)
	lease = regain(t, q.ls[0], q.key(), locker.NoRenewal())
	end()
	if heals(fmt.Sprintf("%d of %d nodes were down when it was locked", q.minority, len(q.Nodes)), lease) {
		over(lease)
	}
}

// wantLoss waits for the end of a lost lease.
func (q *quorum) wantLoss(t testing.TB, what string, lease locker.Lease) {
	t.Helper()
	await(t, "Done to be closed: "+what, lease.Done(), q.short()+slack)
	late := time.Since(lease.Until())
	if q.Bubble == nil {
		late -= slack / 4 // real machines stall at times
	}
	if late > 0 {
		t.Errorf("%s: expected Done to be closed before Until, seen it %v late", what, late)
	}
	if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
		t.Errorf("%s: expected Err to match ErrLost, seen %v", what, err)
	}
}

func majorityLossEnds(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	for first := range q.Nodes {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.TTL(q.short()))
		forgetful, _ := q.split(first, q.minority+1)
		// A renewal in between restores the lock on nodes that have already lost it. The lock is therefore deleted
		// until the loss is noticed.
		for end := time.Now().Add(q.short()); lease.Err() == nil && time.Now().Before(end); {
			for _, n := range forgetful {
				n.Delete(lease.Key())
			}
			select {
			case <-lease.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		q.wantLoss(t, fmt.Sprintf("%d of %d nodes have lost the lock", len(forgetful), len(q.Nodes)), lease)
		wantError(t, "Unlock of a lock that a majority has lost", lease.Unlock(t.Context()), locker.ErrNotHeld,
			locker.ErrLost)
	}
}

func majorityOutageEnds(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []quorumNode) {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.TTL(q.short()))
		end := way.inject(t, out)
		q.wantLoss(t, fmt.Sprintf("%d of %d nodes %s", len(out), len(q.Nodes), way.name), lease)
		end()
	})
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

func cleanupWakesNobody(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 3)
	const attempts = 8
	for first := range q.Nodes {
		key := q.key()
		holder := q.everywhere(t, q.ls[0], key, nil, locker.NoRenewal())
		ctx, cancel := context.WithTimeout(t.Context(), 2*hangLimit)
		defer cancel()
		var told atomic.Int32 // notifications, as opposed to polls
		waiter := wait(lockertrace.With(ctx, &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
			if w.Reason != lockertrace.WakePoll {
				told.Add(1)
			}
		}}), q.ls[1], key)
		waiter.mustWait(t)
		time.Sleep(calm) // a Notifier calls wake once when its subscription is active
		forgetful, _ := q.split(first, q.minority)
		for _, n := range forgetful {
			n.Delete(key) // these nodes grant the lock to others, whose attempts must then be undone
		}
		before := told.Load()
		for range attempts {
			wantHeld(t, q.ls[2], key)
			until(calm, func() bool { return lockedOn(forgetful, key) == 0 })
		}
		time.Sleep(calm) // messages may still arrive
		// A few notifications are accepted: a client that reconnects also wakes its waiters.
		if n := told.Load() - before; n > attempts/2 {
			t.Errorf("%d failed attempts of others: expected no notification of waiters, seen %d", attempts, n)
		}
		unlock(t, holder)
		waiter.serve(t, "of a waiter")
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

func duplicateVotesOnce(t testing.TB, h quorumHarness) {
	q := newQuorum(t, h, 1)
	q.ready(t)
	l, err := q.Duplicate()
	if err != nil {
		return // refused
	}
	if c, ok := locker.As[io.Closer](l); ok {
		defer func() { _ = c.Close() }()
	}
	one := len(q.Nodes) / 2 // less than a majority, unless the first node counts twice
	end := down.inject(t, q.Nodes[one:])
	err = patiently(t, "TryLock", func(ctx context.Context) error {
		_, err := l.TryLock(ctx, q.key())
		return err
	})
	if err == nil {
		t.Errorf("%d of %d nodes, one of them configured twice: expected no majority, seen a lock", one, len(q.Nodes))
	}
	end()
}

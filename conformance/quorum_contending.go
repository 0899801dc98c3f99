package conformance

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

func splitVotesEnd(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 6)
	q.ready(t)
	for range 5 {
		key := q.key()
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
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
		if took := time.Duration(first.Load()); took > q.Budget+q.atOnce() {
			t.Errorf("%d contenders at once: expected one to have the lock within %v, seen it after %v", len(q.ls),
				q.Budget, took)
		}
		if t.Failed() {
			return
		}
	}
}

func cleanupWakesNobody(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 3)
	q.need(t, "Delete", canDelete)
	const attempts = 8
	for first := range q.Nodes {
		key := q.key()
		holder := q.everywhere(t, q.ls[0], key, nil, locker.NoRenewal())
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
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

func oneCommandPerNode(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Commands", func(n QuorumNode) bool { return n.Commands != nil })
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

func duplicateVotesOnce(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	if q.Duplicate == nil {
		t.Skip("the harness has no Duplicate")
	}
	way := q.outages(t)[0]
	q.ready(t)
	l, err := q.Duplicate()
	if err != nil {
		return // refused
	}
	if c, ok := locker.As[io.Closer](l); ok {
		defer func() { _ = c.Close() }()
	}
	one := len(q.Nodes) / 2 // less than a majority, unless the first node counts twice
	end := way.strike(t, q.Nodes[one:])
	err = patiently(t, "TryLock", func(ctx context.Context) error {
		_, err := l.TryLock(ctx, q.key())
		return err
	})
	if err == nil {
		t.Errorf("%d of %d nodes, one of them configured twice: expected no majority, seen a lock", one, len(q.Nodes))
	}
	end()
}

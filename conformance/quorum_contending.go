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
					t.Errorf("Lock, %d contenders at once: expected a lease, seen %v after %v", len(q.ls), err, time.Since(start))
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
		if took := time.Duration(first.Load()); took > q.Budget+q.promptly() {
			t.Errorf("%d contenders at once: expected one to have the lock within %v, seen it after %v", len(q.ls), q.Budget, took)
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
		var told atomic.Int32 // instead of waking to look by itself
		waiter := wait(lockertrace.With(ctx, &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
			if w.Reason != lockertrace.WakePoll {
				told.Add(1)
			}
		}}), q.ls[1], key)
		waiter.mustWait(t)
		time.Sleep(calm) // a Notifier calls once when it is sure to be told
		forgetful, _ := q.split(first, q.minority)
		for _, n := range forgetful {
			n.Delete(key) // what others are granted there is to be undone
		}
		before := told.Load()
		for range attempts {
			wantHeld(t, q.ls[2], key)
			until(calm, func() bool { return lockedOn(forgetful, key) == 0 })
		}
		time.Sleep(calm) // messages may be under way
		// Once is no herd: connections are made again.
		if n := told.Load() - before; n > attempts/2 {
			t.Errorf("%d attempts of others that failed: expected nobody who waits to be told, seen it told %d times", attempts, n)
		}
		unlock(t, holder)
		waiter.serve(t, "of one who waits")
	}
}

func oneCommandPerNode(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Commands", func(n QuorumNode) bool { return n.Commands != nil })
	key := q.key()
	for range 3 { // counters may differ before, connections be made, scripts be loaded
		unlock(t, q.everywhere(t, q.ls[0], key, nil))
	}
	commands := func() (counts []int) {
		for _, n := range q.Nodes {
			counts = append(counts, n.Commands())
		}
		return counts
	}
	// Where counters follow clocks, those may pass into another tick while the nodes answer: the best one counts.
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
	t.Errorf("expected each node to execute one command to lock and one to unlock, seen %v and %v in all at the last of %d tries", toLock, inAll, tries)
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
	one := len(q.Nodes) / 2 // fewer than a majority, and the first of them twice
	end := way.strike(t, q.Nodes[one:])
	err = patiently(t, "TryLock", func(ctx context.Context) error {
		_, err := l.TryLock(ctx, q.key())
		return err
	})
	if err == nil {
		t.Errorf("%d of %d nodes, one of them given twice: expected no majority, seen a lock", one, len(q.Nodes))
	}
	end()
}

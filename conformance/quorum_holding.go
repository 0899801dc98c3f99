package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func minorityExtendsNothing(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []QuorumNode) {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.NoRenewal())
		end := way.strike(t, out)
		before := lease.Until()
		q.noQuorum(t, q.while("Extend", way, out), lease.Extend)
		if after := lease.Until(); !after.Equal(before) {
			t.Errorf("%s: expected Until to stay, seen it move by %v", q.while("Extend", way, out), after.Sub(before))
		}
		end()
	})
}

func lateExtendIsNoValidity(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Hang", canHang)
	ttl := q.short()
	for _, first := range q.firsts(q.minority + 1) {
		late, _ := q.split(first, q.minority+1)
		for _, delay := range []time.Duration{ttl / 4, ttl * 3 / 2} {
			lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.TTL(ttl), locker.NoRenewal())
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			before := lease.Until()
			end := hanging.strike(t, late)
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

func minorityLossKeeps(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 2)
	q.need(t, "Delete", canDelete)
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

func leasesHeal(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Delete", canDelete)
	// heals extends lease until it is on all nodes. Other properties check that the lease stays valid.
	heals := func(what string, lease locker.Lease) bool {
		t.Helper()
		on := 0
		if until(patience, func() bool {
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
	if !q.all(canFail) {
		return
	}
	out, _ := q.split(0, q.minority)
	end := down.strike(t, out)
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

func majorityLossEnds(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.need(t, "Delete", canDelete)
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

func majorityOutageEnds(t testing.TB, h QuorumHarness) {
	q := newQuorum(t, h, 1)
	q.each(t, q.minority+1, func(way outage, out, _ []QuorumNode) {
		lease := q.everywhere(t, q.ls[0], q.key(), nil, locker.TTL(q.short()))
		end := way.strike(t, out)
		q.wantLoss(t, fmt.Sprintf("%d of %d nodes %s", len(out), len(q.Nodes), way.name), lease)
		end()
	})
}

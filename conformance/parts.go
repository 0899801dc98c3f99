package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// Semaphores, and locks for readers and writers, are made of locks of a store. The functions of this file check what
// holds for both.

// madeOf returns the keys of the locks that a lease is made of.
func madeOf(t testing.TB, lease locker.Lease) []string {
	t.Helper()
	if all, ok := locker.LeaseAs[*locker.AllLease](lease); ok {
		return all.Keys()
	}
	inner := lease
	for next := lease; next != nil; {
		inner = next
		l, ok := inner.(interface{ Unwrap() locker.Lease })
		if !ok {
			break
		}
		next = l.Unwrap()
	}
	if inner.Key() == lease.Key() {
		t.Skip("the leases do not show which locks they are made of")
	}
	return []string{inner.Key()}
}

// work is what a holder does: it takes some time in a bubble, and otherwise a round trip. Others that must not be in
// meanwhile are seen.
func (h Harness) work(t testing.TB, lease locker.Lease) {
	t.Helper()
	if h.Bubble != nil {
		time.Sleep(time.Millisecond)
		return
	}
	if err := lease.Extend(t.Context()); err != nil {
		t.Errorf("Extend by a holder: expected nil, seen %v", err)
	}
}

// wantLoss deletes one of the locks that a lease is made of, and checks that the lease ends within its TTL.
func (h Harness) wantLoss(t testing.TB, s Store, lease locker.Lease, ttl time.Duration) {
	t.Helper()
	defer func() { _ = lease.Unlock(t.Context()) }() // ends its goroutines if the check fails
	keys := madeOf(t, lease)
	deleted := time.Now()
	s.Delete(keys[len(keys)-1])
	prompt(t, deleted) // see LossIsNoticed
	if h.Bubble == nil {
		ttl += slack
	}
	await(t, "the loss of one of the locks to be noticed", lease.Done(), ttl)
	if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Err: expected a match of ErrLost, seen %v", err)
	}
	wantError(t, "Unlock of a lease that has lost a lock", lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
}

// wantExpired checks when the next holder had what a holder that has crashed had before. Its TTL was over at ends.
func (h Harness) wantExpired(t testing.TB, what string, until, ends, at time.Time) {
	t.Helper()
	if early := until.Sub(at); early > 0 {
		t.Errorf("%s: expected nobody to have it before Until, seen it taken %v earlier", what, early)
	}
	if late := at.Sub(ends); late > slack+h.late() {
		t.Errorf("%s: expected it to be free when its TTL is over, seen it free %v later", what, late)
	}
}

// cancelledCall makes a call whose context is cancelled after d, and unlocks what it acquires.
func cancelledCall(
	t testing.TB, what string, d time.Duration, call func(ctx context.Context) (locker.Lease, error),
) {
	t.Helper()
	ctx, cancel := endingAfter(t, d)
	defer cancel()
	var lease locker.Lease
	err := within(t, what+" with a context that ends", d, func() (err error) {
		lease, err = call(ctx)
		return err
	})
	if err == nil {
		unlock(t, lease)
	} else if !errors.Is(err, context.Canceled) && !errors.Is(err, locker.ErrHeld) {
		t.Errorf("%s with a context that is cancelled: expected a lease or context.Canceled, seen %v", what, err)
	}
}

// sweep calls Lock and TryLock of each of ls, one after the other, with contexts that end before, during and after the
// call.
func sweep(t testing.TB, times int, ls ...locker.Locker) {
	t.Helper()
	for i := range times {
		for _, l := range ls {
			call := l.Lock
			if i%2 > 0 {
				call = l.TryLock
			}
			cancelledCall(t, "Lock or TryLock", time.Duration(i*i)*10*time.Microsecond,
				func(ctx context.Context) (locker.Lease, error) { return call(ctx, "k", locker.TTL(longTTL)) })
		}
	}
}

// waitInVain has callers of ls wait for what somebody holds, at the same time, until their contexts end.
func waitInVain(t testing.TB, ls ...locker.Locker) {
	t.Helper()
	for i := range 8 {
		ctx, cancel := endingAfter(t, time.Duration(i*i)*200*time.Microsecond)
		var ws []*waiter
		for _, l := range ls {
			ws = append(ws, wait(ctx, l, "k", locker.MinHold(longTTL))) // which applies to what was acquired
		}
		for _, w := range ws {
			await(t, "Lock to return when its context has ended", w.done, hangLimit)
			if !errors.Is(w.err, context.Canceled) {
				t.Errorf("Lock of what is held, with a context that is cancelled: expected context.Canceled, seen %v", w.err)
			}
		}
		cancel()
	}
}

// wantNothingLeft checks that the key is free, or soon will be, for TryLock and for Lock of l.
func wantNothingLeft(t testing.TB, s Store, l locker.Locker) {
	t.Helper()
	if s.Left != nil {
		waitUntilEmpty(t, s.Left, "after callers have left", hangLimit)
	}
	wantAllFree(t, l, "k")
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	wait(ctx, l, "k").serve(t, "after callers have left")
}

// wantWanted checks that each of the leases of a key learns that it is wanted when l waits for the key, and not before.
// It unlocks them.
func wantWanted(t testing.TB, what string, held []locker.Lease, l locker.Locker, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for _, lease := range held {
		if toldBy(t, lease, 2*stall) {
			t.Errorf("%s, and nobody waits: expected the channel to be open, seen it closed", what)
		}
	}
	w := wait(ctx, l, key)
	w.settle(unheard)
	for _, lease := range held {
		if !toldBy(t, lease, hangLimit) {
			t.Errorf("%s, and another client waits: expected the channel to be closed, seen it open", what)
		}
	}
	for _, lease := range held {
		unlock(t, lease)
	}
	w.serve(t, "of what others had")
}

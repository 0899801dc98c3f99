package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// await waits for ch, for limit at most, and fails the check after that.
func await(t testing.TB, what string, ch <-chan struct{}, limit time.Duration) {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ch:
	case <-timer.C:
		t.Fatalf("expected %s within %v, seen no sign of it", what, limit)
	}
}

// acquireWhenFree polls until it acquires key, with longTTL unless opts say otherwise. It returns the time after the
// successful attempt.
func acquireWhenFree(t testing.TB, l locker.Locker, key string, opts ...locker.Option) (locker.Lease, time.Time) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		asked := time.Now()
		lease, err := l.TryLock(t.Context(), key, append([]locker.Option{locker.TTL(longTTL)}, opts...)...)
		prompt(t, asked)
		if err == nil {
			return lease, time.Now()
		}
		if !errors.Is(err, locker.ErrHeld) {
			t.Fatalf("TryLock: expected a lease or ErrHeld, seen %v", err)
		}
	}
	t.Fatalf("TryLock: expected the lock to become free within %v, seen ErrHeld for the whole time", patience)
	return nil, time.Time{}
}

func expiryFrees(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	for i, l := range ls[:2] { // including the client that held it
		start := time.Now()
		key := fmt.Sprint("k", i) // on several nodes, a lock may be held for a moment after its release
		lock(t, ls[0], key, locker.TTL(h.short()), locker.NoRenewal())
		lease, at := acquireWhenFree(t, l, key)
		if late := at.Sub(start.Add(h.short())); late > h.late() {
			t.Errorf("expected the lock to be free after %v, seen it free %v later", h.short(), late)
		}
		unlock(t, lease)
	}
	lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	for _, l := range ls[1:] { // the first waiter crashes as well
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		w := wait(ctx, l, "k", locker.TTL(h.short()), locker.NoRenewal())
		await(t, "the lock to go to the waiter when its holder's TTL is over", w.done, h.short()+h.late()+slack)
		cancel()
		if w.err != nil {
			if errors.Is(w.err, locker.ErrUnavailable) {
				prompt(t, w.at.Add(-h.short())) // the answer took longer than the TTL, as that of a store that stalls
			}
			t.Fatalf("Lock of a lock whose holder has crashed: expected a lease, seen %v", w.err)
		}
	}
}

func untilIsConservative(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for _, waits := range []bool{false, true} {
		first := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
		until := first.Until()
		var second locker.Lease
		var at time.Time
		if waits {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			w := wait(ctx, ls[1], "k")
			<-w.done
			cancel()
			if w.err != nil {
				t.Fatalf("Lock of a lock that expires: expected a lease, seen %v", w.err)
			}
			second, at = w.lease, w.at
		} else {
			second, at = acquireWhenFree(t, ls[1], "k")
		}
		if at.Before(until) {
			t.Errorf("expected nobody to get the lock before Until, seen it %v earlier (by a waiter: %v)",
				until.Sub(at), waits)
		}
		unlock(t, second)
	}
}

func latencyCounts(t testing.TB, h Harness) {
	if h.Retries {
		t.Skip("the harness declares Retries")
	}
	ls, s := clients(t, h, 2)
	if s.Hang == nil {
		t.Skip("the harness has no Hang")
	}
	ttl := h.short()
	for _, delay := range []time.Duration{ttl / 4, ttl * 3 / 2} {
		// A connection exists then, and has just been used. A client that first opens or tests one sends its request later.
		unlock(t, lock(t, ls[0], "other", locker.TTL(longTTL)))
		resumed := make(chan struct{})
		resume := s.Hang()
		time.AfterFunc(delay, func() {
			defer close(resumed)
			resume()
		})
		start := time.Now()
		lease, err := ls[0].TryLock(t.Context(), "k", locker.TTL(ttl), locker.NoRenewal())
		if err != nil { // it may have failed before the answer arrived
			wantError(t, "TryLock whose answer comes late", err, locker.ErrUnavailable)
		} else {
			if late := lease.Until().Sub(start.Add(ttl)); late > 0 {
				t.Errorf("an answer after %v: expected Until within the TTL from the request, seen it %v later", delay,
					late)
			}
			_ = lease.Unlock(t.Context())
		}
		await(t, "the store to answer again", resumed, delay+slack)
		next, _ := acquireWhenFree(t, ls[1], "k")
		unlock(t, next)
	}
}

func doneBeforeUntil(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	await(t, "Done to be closed", lease.Done(), h.short()+slack)
	// On a real machine a timer may fire late without a fault of the locker.
	late := time.Since(lease.Until())
	if h.Bubble == nil {
		late -= slack / 4
	}
	if late > 0 {
		t.Errorf("expected Done to be closed before Until, seen it %v late", late)
	}
	if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Err: expected a match of ErrLost, seen %v", err)
	}
	if lost := (*locker.LostError)(nil); !errors.As(lease.Err(), &lost) || lost.Reason != locker.LostExpired {
		t.Errorf("Err: expected a *LostError with the reason %q, seen %v", locker.LostExpired, lease.Err())
	}
}

func renewalKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(h.short()))
	many := 15
	if h.Bubble == nil {
		many = 3 // seconds
	}
	for start := time.Now(); time.Since(start) < time.Duration(many)*h.short(); time.Sleep(h.short() / 20) {
		wantHeld(t, ls[1], "k")
		if err := lease.Err(); err != nil {
			t.Fatalf("expected the lease to last, seen %v after %v", err, time.Since(start))
		}
	}
	unlock(t, lease)
	next := lock(t, ls[1], "k", locker.TTL(h.short()), locker.NoRenewal())
	await(t, "the end of the next lease, which nobody renews", next.Done(), h.short()+slack)
	if err := lease.Err(); !errors.Is(err, locker.ErrUnlocked) || errors.Is(err, locker.ErrLost) {
		t.Errorf("Err of a lease that was unlocked, when its TTL is over: expected ErrUnlocked, seen %v", err)
	}
	third, _ := acquireWhenFree(t, ls[0], "k")
	unlock(t, third)
}

func extendKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	for range 4 {
		time.Sleep(h.short() / 2)
		before, start := lease.Until(), time.Now()
		err := lease.Extend(t.Context())
		prompt(t, start)
		if err != nil {
			t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
		}
		if !lease.Until().After(before) {
			t.Errorf("expected Extend to move Until, seen %v before and after", before)
		}
		wantHeld(t, ls[1], "k")
	}
	next, at := acquireWhenFree(t, ls[1], "k")
	if early := lease.Until().Sub(at); early > 0 {
		t.Errorf("expected nobody to get the lock before the extended Until, seen it %v earlier", early)
	}
	unlock(t, next)
}

// successor lets a lease on k end and then lets another client acquire k.
func successor(t testing.TB, h Harness) (stale locker.Lease, check func()) {
	t.Helper()
	ls, _ := clients(t, h, 2)
	stale = lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	next, _ := acquireWhenFree(t, ls[1], "k")
	return stale, func() {
		t.Helper()
		wantHeld(t, ls[0], "k")
		if err := next.Extend(t.Context()); err != nil {
			t.Errorf("Extend by the next holder: expected no error, seen %v", err)
		}
		unlock(t, next)
		third, _ := acquireWhenFree(t, ls[0], "k")
		unlock(t, third)
	}
}

func extendSparesSuccessor(t testing.TB, h Harness) {
	stale, check := successor(t, h)
	wantError(t, "Extend of a lease that has ended", stale.Extend(t.Context()), locker.ErrLost)
	check()
}

func unlockSparesSuccessor(t testing.TB, h Harness) {
	stale, check := successor(t, h)
	wantError(t, "Unlock of a lease that has ended", stale.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
	check()
	stale, check = successor(t, h)
	check() // and the lock is free
	wantError(t, "Unlock of a lease that has ended, of a free lock", stale.Unlock(t.Context()), locker.ErrNotHeld,
		locker.ErrLost)
}

func doubleUnlock(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(longTTL))
	unlock(t, lease)
	wantError(t, "a second Unlock", lease.Unlock(t.Context()), locker.ErrUnlocked)
	wantError(t, "Extend after Unlock", lease.Extend(t.Context()), locker.ErrUnlocked)
	next := lock(t, ls[1], "k", locker.TTL(longTTL))
	wantError(t, "a third Unlock", lease.Unlock(t.Context()), locker.ErrUnlocked)
	wantHeld(t, ls[0], "k")
	unlock(t, next)
}

func lossIsNoticed(t testing.TB, h Harness) {
	ls, s := clients(t, h, 2)
	if s.Delete == nil {
		t.Skip("the harness has no Delete")
	}
	limit := h.short()
	if h.Bubble == nil {
		limit += slack
	}
	for _, taken := range []bool{false, true} {
		lease := lock(t, ls[0], "k", locker.TTL(h.short()))
		deleted := time.Now()
		s.Delete("k")
		prompt(t, deleted) // a store of several nodes may heal the first of them before the last is deleted
		var thief locker.Lease
		if taken {
			thief = lock(t, ls[1], "k", locker.TTL(longTTL))
		}
		await(t, "the loss to be noticed", lease.Done(), limit)
		if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
			t.Errorf("Err: expected a match of ErrLost, seen %v", err)
		}
		wantError(t, "Extend of a lost lock", lease.Extend(t.Context()), locker.ErrLost)
		wantError(t, "Unlock of a lost lock", lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
		if taken {
			if err := thief.Extend(t.Context()); err != nil {
				t.Errorf("Extend by the new holder: expected no error, seen %v", err)
			}
			unlock(t, thief)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		next, err := ls[1].Lock(ctx, "k", locker.TTL(longTTL))
		cancel()
		if err != nil {
			t.Fatalf("Lock after a loss: expected a lease, seen %v", err)
		}
		unlock(t, next)
	}
}

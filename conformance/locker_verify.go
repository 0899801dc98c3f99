package conformance

import (
	"testing"
	"time"

	"github.com/golocker/locker"
)

func needVerify(t testing.TB, h Harness) {
	t.Helper()
	if !h.Verifies {
		t.Skip("the harness does not declare Verifies")
	}
}

func verifyProves(t testing.TB, h Harness) {
	needVerify(t, h)
	ls, s := clients(t, h, 2)
	proves := func(what string, lease locker.Lease) {
		t.Helper()
		if err := locker.Verify(t.Context(), lease); err != nil {
			t.Errorf("Verify of %s: expected no error, seen %v", what, err)
		}
	}
	fails := func(what string, lease locker.Lease, want error) {
		t.Helper()
		wantError(t, "Verify of "+what, locker.Verify(t.Context(), lease), want)
	}

	lease := lock(t, ls[0], "k", locker.TTL(longTTL))
	for range 2 {
		proves("a lease that is held", lease)
	}
	if err := lease.Extend(t.Context()); err != nil {
		t.Errorf("Extend: expected no error, seen %v", err)
	}
	proves("a lease that was extended", lease)
	unlock(t, lease)
	fails("a lease that was unlocked", lease, locker.ErrUnlocked)

	lease, _ = acquireWhenFree(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	next, _ := acquireWhenFree(t, ls[1], "k")
	fails("a lease that has ended", lease, locker.ErrLost)
	proves("the next lease", next)
	unlock(t, next)

	if s.Delete != nil {
		lease, _ = acquireWhenFree(t, ls[0], "k", locker.NoRenewal())
		s.Delete("k")
		fails("a lease whose lock was deleted", lease, locker.ErrLost)
		lease, _ = acquireWhenFree(t, ls[0], "k", locker.NoRenewal())
		s.Delete("k")
		next, _ = acquireWhenFree(t, ls[1], "k")
		fails("a lease whose lock has another owner", lease, locker.ErrLost)
		proves("that owner's lease", next)
		unlock(t, next)
	}
	if s.Down != nil {
		lease, _ = acquireWhenFree(t, ls[0], "k", locker.NoRenewal())
		defer failing(t, s.Down)()
		fails("a lease whose store is unreachable", lease, locker.ErrUnavailable)
	}
}

func verifyChangesNothing(t testing.TB, h Harness) {
	needVerify(t, h)
	ls, _ := clients(t, h, 2)
	// The TTL is so long that a lock that was prolonged differs from one that the store removes late.
	ttl := h.ttl(2 * slack)
	start := time.Now()
	lease := lock(t, ls[0], "k", locker.TTL(ttl), locker.NoRenewal())
	until := lease.Until()
	for time.Since(start) < ttl*9/10 && !t.Failed() {
		asked := time.Now()
		_ = locker.Verify(t.Context(), lease)
		prompt(t, asked)
		if now := lease.Until(); now.After(until) {
			t.Errorf("Verify: expected Until to stay, seen it move by %v", now.Sub(until))
		}
		time.Sleep(ttl / 20)
	}
	next, at := acquireWhenFree(t, ls[1], "k")
	if late := at.Sub(start.Add(ttl)); late > h.late()+slack/2 {
		t.Errorf("expected a lock that was verified to be free after its TTL of %v, seen it free %v later", ttl, late)
	}
	unlock(t, next)
}

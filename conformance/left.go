package conformance

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// waitUntilEmpty waits until the store keeps nothing, for limit at most: a store may clean up after it has answered.
func waitUntilEmpty(t testing.TB, left func() []string, what string, limit time.Duration) {
	t.Helper()
	var seen []string
	pause := time.Millisecond
	for end := time.Now().Add(limit); ; pause = min(2*pause, 50*time.Millisecond) {
		if seen = left(); len(seen) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
		time.Sleep(pause)
	}
	slices.Sort(seen)
	t.Errorf("%s: expected the store to keep nothing, seen %d left after %v: %.400q", what, len(seen), limit, seen)
}

func nothingIsLeft(t testing.TB, h Harness) {
	ls, s := clients(t, h, 3)
	if s.Left == nil {
		t.Skip("the harness has no Left")
	}
	for _, key := range []string{"a", "b", "a:b"} {
		for _, l := range ls {
			lease := lock(t, l, key, locker.TTL(longTTL))
			wantHeld(t, ls[0], key)
			unlock(t, lease)
		}
	}
	waitUntilEmpty(t, s.Left, "after locks were unlocked", slack)
	contend(t, ls, 2, func(lease locker.Lease, _ time.Time) {
		time.Sleep(time.Millisecond) // so that others wait
		_ = lease.Unlock(t.Context())
	})
	waitUntilEmpty(t, s.Left, "after many have contended for a lock", slack)
	holder := lock(t, ls[0], "k", locker.TTL(longTTL))
	for _, l := range ls[1:] {
		ctx, leave := context.WithCancel(t.Context())
		w := wait(ctx, l, "k")
		w.settle(stall)
		leave()
		await(t, "Lock to return when its context has ended", w.done, slack)
	}
	unlock(t, holder)
	waitUntilEmpty(t, s.Left, "after waiters have left", patience)
	lock(t, ls[0], "expired", locker.TTL(h.short()), locker.NoRenewal())
	unlock(t, lock(t, ls[0], "kept", locker.TTL(longTTL), locker.MinHold(h.short())))
	waitUntilEmpty(t, s.Left, "after the time of locks was over", h.short()+patience)
}

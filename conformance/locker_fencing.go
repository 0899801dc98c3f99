package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func fenceGrows(t testing.TB, h LockerHarness) {
	ls, _ := clients(t, h, 3)
	g := growing{unfenced: h.Unfenced}
	for i := range often(h.Bubble != nil) {
		lease := lock(t, ls[i%len(ls)], "k", locker.TTL(longTTL))
		g.next(t, fmt.Sprintf("acquisition %d", i+1), lease.Fence())
		unlock(t, lease)
		if t.Failed() {
			return // the others would be wrong as well
		}
	}
}

// fenceIsUniqueToLeases looks at the leases around attempts that fail.
func fenceIsUniqueToLeases(t testing.TB, h LockerHarness) {
	needFencing(t, h.Unfenced)
	ls, s := clients(t, h, 3)
	g := growing{}
	attempt := func(l locker.Locker, limit time.Duration) uint64 {
		ctx, cancel := endingAfter(t, limit)
		defer cancel()
		lease, err := l.TryLock(ctx, "k", locker.TTL(short(h)))
		if err != nil {
			return 0
		}
		_ = lease.Unlock(t.Context())
		return lease.Fence()
	}
	around := func(what string, trouble func(turn int)) {
		t.Helper()
		for _, held := range []bool{false, true} {
			for turn, l := range ls {
				next := func() locker.Lease {
					ctx, cancel := context.WithTimeout(t.Context(), recovery)
					defer cancel()
					lease, err := lockPatiently(ctx, l, "k")
					if err != nil {
						t.Fatalf("Lock after attempts %s: expected a lease, seen %v", what, err)
					}
					g.next(t, "a lease after attempts "+what, lease.Fence())
					return lease
				}
				if held {
					holder := next()
					trouble(turn)
					unlock(t, holder)
				} else {
					trouble(turn)
				}
				unlock(t, next())
				unlock(t, next())
			}
		}
	}
	around("whose contexts ended", func(turn int) {
		for _, moment := range fewMoments(turn) {
			if fence := attempt(ls[turn], moment); fence > 0 {
				g.next(t, "a lease of one whose context ends", fence)
			}
		}
	})
	if s.Hang == nil {
		return
	}
	around("while the store hung", func(int) {
		mend := failing(t, s.Hang)
		var wg sync.WaitGroup
		for _, l := range ls {
			wg.Go(func() { attempt(l, stall) })
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(2 * stall):
		}
		mend() // also those who do not look at their contexts return now
		<-done
	})
}

func fenceOutlivesTheLease(t testing.TB, h LockerHarness) {
	needFencing(t, h.Unfenced)
	ls, s := clients(t, h, 2)
	g := growing{}
	for i := range 2 {
		lease, _ := acquireWhenFree(t, ls[i], "k", locker.TTL(short(h)), locker.NoRenewal())
		g.next(t, "the first lease", lease.Fence())
		lease, _ = acquireWhenFree(t, ls[1-i], "k", locker.TTL(longTTL), locker.MinHold(short(h)/2))
		g.next(t, "a lease after the lock has expired", lease.Fence())
		unlock(t, lease)
		lease, _ = acquireWhenFree(t, ls[i], "k")
		g.next(t, "a lease after the lock was kept", lease.Fence())
		if s.Delete == nil {
			unlock(t, lease)
			continue
		}
		s.Delete("k")
		next, _ := acquireWhenFree(t, ls[1-i], "k")
		g.next(t, "a lease after the lock was deleted", next.Fence())
		_ = next.Unlock(t.Context())
	}
}

func fenceSurvivesRestartToo(t testing.TB, h LockerHarness) {
	needFencing(t, h.Unfenced)
	ls, s := clients(t, h, 2)
	if s.Restart == nil {
		t.Skip("the harness has no Restart")
	}
	g := growing{}
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), recovery)
		lease, err := lockPatiently(ctx, ls[i%2], "k")
		cancel()
		if err != nil {
			t.Fatalf("Lock after a restart: expected a lease, seen %v", err)
		}
		g.next(t, "a lease after a restart", lease.Fence())
		if i%2 == 0 { // or it ends with the store
			unlock(t, lease)
		}
		s.Restart()
		_ = lease.Unlock(t.Context())
	}
}

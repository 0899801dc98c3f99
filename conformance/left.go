package conformance

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// nothing waits until nothing is left, for limit at most: a store may do its tidying after it has answered.
func nothing(t testing.TB, left func() []string, what string, limit time.Duration) {
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

func nothingIsLeft(t testing.TB, h BackendHarness) {
	bs, s := backends(t, h, 3)
	if s.Left == nil {
		t.Skip("the harness has no Left")
	}
	for _, key := range []string{"a", "b", "a:b"} {
		for _, b := range bs {
			o := grab(t, b, key, longTTL)
			_, _ = acquire(t.Context(), bs[0], key, longTTL) // in vain
			o.must(t)
		}
	}
	nothing(t, s.Left, "after locks were released", slack)
	contend(t, bs, 2, func(o *holding) { _ = o.release(t.Context()) })
	nothing(t, s.Left, "after many have contended for a lock", slack)
	if _, ok := bs[0].(locker.Queuer); ok {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		owner := grab(t, bs[0], "k", longTTL)
		var wg sync.WaitGroup
		for _, b := range bs[1:] {
			q := queue(ctx, b, "k", longTTL, nil)
			q.waits(t)
			wg.Go(func() {
				if <-q.done; q.err == nil {
					_ = q.o.release(ctx)
				}
			})
		}
		owner.must(t)
		wg.Wait()
		nothing(t, s.Left, "after those who waited were served", slack)
	}
	grab(t, bs[0], "expired", h.brief())
	if err := grab(t, bs[0], "kept", longTTL).releaseKeeping(t.Context(), h.brief()); err != nil {
		t.Errorf("Release with Keep: expected no error, seen %v", err)
	}
	nothing(t, s.Left, "after the time of locks was over", h.brief()+patience)
}

func nothingIsLeftOfLeases(t testing.TB, h LockerHarness) {
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
	nothing(t, s.Left, "after locks were unlocked", slack)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	holder := lock(t, ls[0], "k", locker.TTL(longTTL))
	var wg sync.WaitGroup
	for _, l := range ls {
		w := wait(ctx, l, "k")
		w.settle()
		wg.Go(func() {
			if <-w.done; w.err == nil {
				_ = w.lease.Unlock(ctx)
			}
		})
	}
	unlock(t, holder)
	wg.Wait()
	nothing(t, s.Left, "after those who waited were served", slack)
	lock(t, ls[0], "expired", locker.TTL(short(h)), locker.NoRenewal())
	unlock(t, lock(t, ls[0], "kept", locker.TTL(longTTL), locker.MinHold(short(h))))
	nothing(t, s.Left, "after the time of locks was over", short(h)+patience)
}

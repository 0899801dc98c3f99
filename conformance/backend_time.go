package conformance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func ttlIsKept(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	// Some stores count in milliseconds: what is cut off is missing at the end.
	for i, ttl := range []time.Duration{h.brief(), h.brief()/3 + 999*time.Microsecond} {
		first := grab(t, bs[i], "k", ttl)
		second, at := grabWhenFree(t, bs[1-i], "k", longTTL, ttl+patience)
		if early := first.sent.Add(ttl).Sub(at); early > 0 {
			t.Errorf("expected nobody to be granted the lock for %v, seen it granted %v earlier", ttl, early)
		}
		second.must(t)
	}
}

func expiryFreesByItself(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	for i := range bs {
		first := grab(t, bs[0], "k", h.brief())
		second, at := grabWhenFree(t, bs[i], "k", longTTL, h.brief()+slack)
		if late := at.Sub(first.sent.Add(h.brief())); late > slack {
			t.Errorf("expected the lock to be free after %v, seen it free %v later", h.brief(), late)
		}
		second.must(t)
	}
}

func extendKeepsTheLock(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	o := grab(t, bs[0], "k", h.brief())
	for range 3 {
		time.Sleep(h.brief() / 2)
		extended := time.Now()
		if err := o.extend(t.Context(), h.brief()); err == nil {
			o.sent = extended
		} else if o.sure(h.brief()) {
			t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
		} else {
			o, _ = grabWhenFree(t, bs[0], "k", h.brief(), patience)
		}
	}
	extended := o.sent
	next, at := grabWhenFree(t, bs[1], "k", longTTL, h.brief()+patience)
	if early := extended.Add(h.brief()).Sub(at); early > 0 {
		t.Errorf("expected nobody to be granted the lock for %v from Extend, seen it granted %v earlier", h.brief(), early)
	}
	next.must(t)
}

func extendNeverShortens(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	o := grab(t, bs[0], "k", longTTL)
	if err := o.extend(t.Context(), h.brief()); err != nil {
		t.Errorf("Extend by less than is left: expected no error, seen %v", err)
	}
	time.Sleep(h.brief() * 3 / 2)
	o.undisturbed(t, "after an Extend by less than was left", bs[1])
	o.must(t)
}

// losses are the ways in which a lock is lost to its owner. Each leaves it free; k is the key.
func losses(t testing.TB, h BackendHarness, s BackendStore, f func(what string, lose func(o *holding), ttl time.Duration)) {
	f("expired", func(o *holding) { time.Sleep(time.Until(o.sent.Add(h.brief() + h.brief()/4))) }, h.brief())
	if s.Delete != nil {
		f("deleted", func(*holding) { s.Delete("k") }, longTTL)
	}
}

func extendNeverCreates(t testing.TB, h BackendHarness) {
	bs, s := backends(t, h, 2)
	check := func(what string, lose func(*holding), ttl time.Duration) {
		o := grab(t, bs[0], "k", ttl)
		lose(o)
		_ = o.extend(t.Context(), longTTL)
		next, err := acquire(t.Context(), bs[1], "k", longTTL)
		// An expired lock that is not free at once is another property's affair; one that was created stays.
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
			next, err = acquire(t.Context(), bs[1], "k", longTTL)
		}
		if err != nil {
			t.Fatalf("a lock that was %s, after an Extend by its old owner: expected it to be free, seen %v", what, err)
		}
		next.must(t)
	}
	losses(t, h, s, check)
	check("released", func(o *holding) { o.must(t) }, longTTL)
}

// tellsLoss checks what the old owner of a lock is answered, with and without a new one.
func tellsLoss(t testing.TB, h BackendHarness, op string, call func(o *holding) error) {
	bs, s := backends(t, h, 2)
	losses(t, h, s, func(what string, lose func(*holding), ttl time.Duration) {
		for _, taken := range []bool{false, true} {
			o, _ := grabWhenFree(t, bs[0], "k", ttl, patience)
			lose(o)
			var next *holding
			if taken {
				next, _ = grabWhenFree(t, bs[1], "k", longTTL, patience)
				what += " and taken by another"
			}
			wantKind(t, op+" of a lock that was "+what, call(o), locker.ErrNotHeld)
			if taken {
				_ = next.release(t.Context())
			}
			if s.Delete != nil {
				s.Delete("k") // whatever the call has done
			}
		}
	})
}

func extendTellsLoss(t testing.TB, h BackendHarness) {
	tellsLoss(t, h, "Extend", func(o *holding) error { return o.extend(t.Context(), h.brief()/4) })
}

func releaseTellsLoss(t testing.TB, h BackendHarness) {
	tellsLoss(t, h, "Release", func(o *holding) error { return o.release(t.Context()) })
}

func extendSparesTheNext(t testing.TB, h BackendHarness) {
	bs, s := backends(t, h, 3)
	losses(t, h, s, func(what string, lose func(*holding), ttl time.Duration) {
		o := grab(t, bs[0], "k", ttl)
		lose(o)
		next, _ := grabWhenFree(t, bs[1], "k", h.brief(), patience)
		_ = o.extend(t.Context(), longTTL)
		if err := next.extend(t.Context(), h.brief()); err != nil && next.sure(h.brief()) {
			t.Errorf("after Extend by the owner of a lock that was %s: expected the next one to have it, seen its Extend fail: %v", what, err)
		}
		third, _ := grabWhenFree(t, bs[2], "k", longTTL, h.brief()+patience) // it was not prolonged either
		third.must(t)
	})
}

func releaseSparesTheNext(t testing.TB, h BackendHarness) {
	bs, s := backends(t, h, 3)
	check := func(what string, lose func(*holding), ttl time.Duration) {
		for _, keep := range []time.Duration{0, h.brief() / 4} {
			o := grab(t, bs[0], "k", ttl)
			lose(o)
			next, _ := grabWhenFree(t, bs[1], "k", longTTL, patience)
			_ = o.releaseKeeping(t.Context(), keep)
			time.Sleep(2 * keep)
			next.undisturbed(t, "after Release by the owner of a lock that was "+what, bs[2])
			_ = next.release(t.Context())
		}
	}
	losses(t, h, s, check)
	check("released before", func(o *holding) { o.must(t) }, longTTL)
}

func releaseIsOneStep(t testing.TB, h BackendHarness) {
	const tries, step = 20, 100 * time.Microsecond
	const ttl = 20 * time.Millisecond
	bs, _ := backends(t, h, 2)
	for i := range tries {
		o, _ := grabWhenFree(t, bs[0], "k", ttl, patience)
		// From a little before its time is over, in small steps.
		time.Sleep(time.Until(o.sent.Add(ttl - (tries-time.Duration(i))*step)))
		var wg sync.WaitGroup
		wg.Go(func() { _ = o.release(t.Context()) })
		var next *holding
		for end := time.Now().Add(patience); next == nil && time.Now().Before(end); time.Sleep(step / 2) {
			next, _ = acquire(t.Context(), bs[1], "k", longTTL)
		}
		wg.Wait()
		if next == nil {
			t.Fatalf("expected the lock to be free after its Release, seen nothing for %v", patience)
		}
		if err := next.extend(t.Context(), longTTL); err != nil {
			t.Fatalf("granted while an earlier owner released it %v before its end: expected the lock to be kept, seen Extend fail: %v",
				(tries-time.Duration(i))*step, err)
		}
		next.must(t)
	}
}

func keepIsForNobody(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	for _, ttl := range []time.Duration{longTTL, h.brief() / 2} { // it may end before the TTL would have, and after
		keep := h.brief()
		o := grab(t, bs[0], "k", ttl)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		released := time.Now()
		if err := o.releaseKeeping(ctx, keep); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
		answered := time.Now()
		if err := o.extend(ctx, longTTL); err == nil {
			t.Error("Extend by who released it with Keep: expected ErrNotHeld, seen no error")
		}
		_ = o.release(ctx) // "done" again is right, as long as it is not done again
		cancel()
		next, at := grabWhenFree(t, bs[1], "k", longTTL, keep+2*slack)
		if early := released.Add(keep).Sub(at); early > 0 {
			t.Errorf("expected the lock to stay taken for %v from Release, seen it granted %v earlier", keep, early)
		}
		if late := at.Sub(answered.Add(keep)); late > slack {
			t.Errorf("expected the lock to be free %v after Release, seen it free %v later", keep, late)
		}
		next.must(t)
	}
}

package conformance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func acquireTwiceIsGrantedTwice(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	for range 3 {
		req, sent := request("k", longTTL), time.Now()
		first, err := bs[0].Acquire(t.Context(), req)
		if err != nil {
			t.Fatalf("Acquire of a free lock: expected a grant, seen %v", err)
		}
		second, err := bs[0].Acquire(t.Context(), req)
		if err != nil {
			t.Errorf("the same Acquire again: expected a grant, seen %v", err)
			second = first
		}
		if second.Fence < first.Fence {
			t.Errorf("the same Acquire again: expected token %d again, seen a smaller one, %d", first.Fence,
				second.Fence)
		}
		held(bs[0], req, sent, second).must(t)
		next := grab(t, bs[1], "k", longTTL)
		if last := max(first.Fence, second.Fence); next.req.Fence <= last && !h.Unfenced {
			t.Errorf("a grant after one that was sent twice: expected a token greater than %d, seen %d", last,
				next.req.Fence)
		}
		next.must(t)
	}
}

func ttlIsKept(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	// Some stores count in milliseconds. A store that rounds a TTL down ends the lock early.
	for i, ttl := range []time.Duration{h.short(), h.ttl(h.short()/3 + 999*time.Microsecond)} {
		check := func(o *holding, since string) {
			next, at := grabWhenFree(t, bs[1-i], "k", longTTL, ttl+patience)
			if early := o.sent.Add(ttl).Sub(at); early > h.drift(ttl) {
				t.Errorf("expected nobody to be granted the lock for %v from %s, seen it granted %v earlier", ttl,
					since, early)
			}
			next.must(t)
		}
		check(grab(t, bs[i], "k", ttl), "Acquire")

		o := grab(t, bs[i], "k", ttl)
		time.Sleep(ttl / 2)
		sent := time.Now()
		if err := o.extend(t.Context(), ttl); err == nil {
			o.sent = sent
		} else if o.sure(ttl) {
			t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
		}
		check(o, "Extend")

		if _, ok := bs[i].(locker.Queuer); !ok {
			continue
		}
		owner := grab(t, bs[1-i], "k", longTTL)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		q := queue(ctx, bs[i], "k", ttl)
		q.waits(t)
		time.Sleep(ttl / 2)
		owner.must(t)
		o = q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
		cancel()
		if ahead := o.sent.Sub(q.at); ahead > 0 {
			t.Errorf("Sent: expected a time before Queue returned, seen one %v after it", ahead)
		}
		check(o, "Sent")
	}
}

func extendNeverShortens(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	o := grab(t, bs[0], "k", longTTL)
	if err := o.extend(t.Context(), h.short()); err != nil {
		t.Errorf("Extend by less than is left: expected no error, seen %v", err)
	}
	time.Sleep(h.short()*3/2 + h.Granularity)
	if second, err := acquire(t.Context(), bs[1], "k", longTTL); err == nil {
		t.Error("after an Extend by less than was left: expected the owner's lock to be held, seen it granted to " +
			"another")
		_ = second.release(t.Context())
	}
	o.must(t)
}

// losses are the ways in which a lock is lost to its owner. Each leaves it free; k is the key. A slow store may have
// executed the acquisition long after it was sent, so expiry is waited for from its answer on.
func losses(t testing.TB, h Harness, s Store, f func(what string, lose func(o *holding), ttl time.Duration)) {
	f("expired", func(*holding) { time.Sleep(h.short()*5/4 + h.Granularity) }, h.short())
	if s.Delete != nil {
		f("deleted", func(*holding) { s.Delete("k") }, longTTL)
	}
}

func extendNeverCreates(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	check := func(what string, lose func(*holding), ttl time.Duration) {
		o := grab(t, bs[0], "k", ttl)
		lose(o)
		_ = o.extend(t.Context(), longTTL)
		next, err := acquire(t.Context(), bs[1], "k", longTTL)
		// ExpiryFrees checks that an expired lock becomes free at once. A recreated lock stays.
		for start := time.Now(); err != nil && time.Since(start) < patience; time.Sleep(pause(start, time.Millisecond)) {
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

func extendTellsLoss(t testing.TB, h Harness) {
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
			wantKind(t, "Extend of a lock that was "+what, o.extend(t.Context(), h.ttl(h.short()/4)), locker.ErrNotHeld)
			if taken {
				_ = next.release(t.Context())
			}
			if s.Delete != nil {
				s.Delete("k") // whatever the result of the call
			}
		}
	})
}

func earlierOwnersTouchNothing(t testing.TB, h Harness) {
	bs, s := backends(t, h, 3)
	keep := h.ttl(h.short() / 4)
	calls := []struct {
		op   string
		ttl  time.Duration // of the next owner's lock
		call func(o *holding)
	}{
		{"Extend", h.short(), func(o *holding) { _ = o.extend(t.Context(), longTTL) }},
		{"Release", longTTL, func(o *holding) { _ = o.release(t.Context()) }},
		{"Release with Keep", longTTL, func(o *holding) {
			_ = o.releaseKeeping(t.Context(), keep)
			time.Sleep(2 * keep)
		}},
	}
	check := func(what string, lose func(*holding), ttl time.Duration) {
		for _, c := range calls {
			o, _ := grabWhenFree(t, bs[0], "k", ttl, patience)
			lose(o)
			next, _ := grabWhenFree(t, bs[1], "k", c.ttl, patience)
			c.call(o)
			if third, err := acquire(t.Context(), bs[2], "k", longTTL); err == nil {
				if next.sure(c.ttl) {
					t.Errorf("after %s by the owner of a lock that was %s: expected the next owner to have it, seen it "+
						"granted to another", c.op, what)
				}
				_ = third.release(t.Context())
			}
			if err := next.extend(t.Context(), c.ttl); err != nil && next.sure(c.ttl) {
				t.Errorf("after %s by the owner of a lock that was %s: expected the next owner to have it, seen its "+
					"Extend fail: %v", c.op, what, err)
			}
			if c.ttl == longTTL {
				_ = next.release(t.Context())
				continue
			}
			third, _ := grabWhenFree(t, bs[2], "k", longTTL, c.ttl+patience) // the lock was not prolonged either
			third.must(t)
		}
	}
	losses(t, h, s, check)
	check("released before", func(o *holding) { o.must(t) }, longTTL)
}

func releaseIsOneStep(t testing.TB, h Harness) {
	const tries, step = 20, 100 * time.Microsecond
	ttl := h.ttl(20 * time.Millisecond)
	bs, _ := backends(t, h, 2)
	for i := range tries {
		o, _ := grabWhenFree(t, bs[0], "k", ttl, patience)
		// The releases begin shortly before the end of the TTL, in small steps.
		time.Sleep(time.Until(o.sent.Add(ttl - (tries-time.Duration(i))*step)))
		var wg sync.WaitGroup
		wg.Go(func() { _ = o.release(t.Context()) })
		var next *holding
		for start := time.Now(); next == nil && time.Since(start) < patience; time.Sleep(pause(start, step/2)) {
			next, _ = acquire(t.Context(), bs[1], "k", longTTL)
		}
		wg.Wait()
		if next == nil {
			t.Fatalf("expected the lock to be free after its Release, seen nothing for %v", patience)
		}
		if err := next.extend(t.Context(), longTTL); err != nil {
			t.Fatalf("granted while an earlier owner released it %v before its end: expected the lock to be kept, "+
				"seen Extend fail: %v",
				(tries-time.Duration(i))*step, err)
		}
		next.must(t)
	}
}

func keepIsForNobody(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	for _, ttl := range []time.Duration{longTTL, h.ttl(h.short() / 2)} { // Keep may end before or after the TTL
		keep := h.short()
		o := grab(t, bs[0], "k", ttl)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		released := time.Now()
		if err := o.releaseKeeping(ctx, keep); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
		answered := time.Now()
		if err := o.extend(ctx, longTTL); err == nil {
			t.Error("Extend by the owner that released it with Keep: expected ErrNotHeld, seen no error")
		}
		_ = o.release(ctx) // it may report success again, but must not change the lock
		cancel()
		next, at := grabWhenFree(t, bs[1], "k", longTTL, keep+h.late()+slack)
		if early := released.Add(keep).Sub(at); early > 0 {
			t.Errorf("expected the lock to stay taken for %v from Release, seen it granted %v earlier", keep, early)
		}
		if late := at.Sub(answered.Add(keep)); late > h.late() {
			t.Errorf("expected the lock to be free %v after Release, seen it free %v later", keep, late)
		}
		next.must(t)
	}
}

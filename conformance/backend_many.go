package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// stepper is a Backend that can acquire several locks in one step.
type stepper interface {
	locker.Backend
	locker.ManyAcquirer
}

// steppers makes n Backends for a fresh store, and skips the property unless they implement ManyAcquirer.
func steppers(t testing.TB, h Harness, n int) ([]stepper, Store) {
	t.Helper()
	bs, s := backends(t, h, n)
	steppers := make([]stepper, n)
	for i, b := range bs {
		var ok bool
		if steppers[i], ok = b.(stepper); !ok {
			t.Skip("the Backend does not implement locker.ManyAcquirer: LockAll acquires one lock after the other")
		}
	}
	return steppers, s
}

// stepMethods returns AcquireMany of b as a method, if b has it.
func stepMethods(b locker.Backend) []method {
	s, ok := b.(stepper)
	if !ok {
		return nil
	}
	return []method{{"AcquireMany", func(ctx context.Context) error {
		_, err := acquireMany(ctx, s, requests(oneSlot(), longTTL))
		return err
	}}}
}

// requests makes the requests for a step as a Client does.
func requests(keys []string, ttl time.Duration) (reqs []locker.Request) {
	for _, key := range keys {
		reqs = append(reqs, request(key, ttl))
	}
	return reqs
}

// acquireMany makes one attempt to acquire all of reqs.
func acquireMany(ctx context.Context, b stepper, reqs []locker.Request) (all []*holding, err error) {
	sent := time.Now()
	grants, err := b.AcquireMany(ctx, reqs)
	for i, g := range grants {
		all = append(all, held(b, reqs[i], sent, g))
	}
	return all, err
}

// grabMany is acquireMany of locks that are free.
func grabMany(t testing.TB, b stepper, reqs []locker.Request) []*holding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all []*holding
	err := within(t, "AcquireMany of free locks", patience, func() (err error) {
		all, err = acquireMany(ctx, b, reqs)
		return err
	})
	if err != nil || len(all) != len(reqs) {
		t.Fatalf("AcquireMany of %d free locks of one hash slot: expected that many grants, seen %d, %v", len(reqs),
			len(all), err)
	}
	return all
}

func manyGrantEach(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 2)
	keys, ttl := oneSlot(), h.ttl(2*h.short())
	all := grabMany(t, bs[0], requests(keys, ttl))
	middle, last := all[1], all[2]
	middle.must(t)
	grab(t, bs[1], keys[1], longTTL).must(t)
	if err := last.extend(t.Context(), longTTL); err != nil && last.sure(ttl) {
		t.Errorf("Extend of one of several locks: expected no error, seen %v", err)
	}
	next, at := grabWhenFree(t, bs[1], keys[0], longTTL, ttl+patience)
	if early := all[0].sent.Add(ttl).Sub(at); early > h.drift(ttl) {
		t.Errorf("expected nobody to be granted the lock for %v from AcquireMany, seen it granted %v earlier", ttl, early)
	}
	next.must(t)
	last.must(t)
	settled(t, bs[1], keys...)
}

func manyTwiceAreGrantedTwice(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 2)
	keys := oneSlot()
	reqs := requests(keys, longTTL)
	first := grabMany(t, bs[0], reqs)
	second, err := acquireMany(t.Context(), bs[0], reqs)
	if err != nil || len(second) != len(reqs) {
		t.Errorf("the same AcquireMany again: expected %d grants, seen %d, %v", len(reqs), len(second), err)
		second = first
	}
	for i, o := range second {
		if o.req.Fence < first[i].req.Fence {
			t.Errorf("the same AcquireMany again: expected token %d again, seen a smaller one, %d", first[i].req.Fence,
				o.req.Fence)
		}
		o.must(t)
	}
	for i, key := range keys {
		next := grab(t, bs[1], key, longTTL)
		if last := max(first[i].req.Fence, second[i].req.Fence); next.req.Fence <= last && !h.Unfenced {
			t.Errorf("a grant after one that was sent twice: expected a token greater than %d, seen %d", last,
				next.req.Fence)
		}
		next.must(t)
	}
}

func manyTouchNothing(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 2)
	keys, ttl := oneSlot(), h.ttl(2*h.short())
	for i, key := range keys {
		holder := grab(t, bs[0], key, ttl)
		all, err := acquireMany(t.Context(), bs[1], requests(keys, longTTL))
		for _, o := range all { // seen below
			o.must(t)
		}
		if holder.sure(ttl) && !errors.Is(err, errors.ErrUnsupported) {
			wantKind(t, "AcquireMany of locks of which one is held", err, locker.ErrHeld)
		}
		for _, other := range slices.Delete(slices.Clone(keys), i, i+1) {
			grab(t, bs[0], other, longTTL).must(t)
		}
		next, at := grabWhenFree(t, bs[1], key, longTTL, ttl+patience)
		late := at.Sub(holder.sent.Add(ttl))
		if late > h.late() {
			t.Errorf("expected a lock that AcquireMany found held to be free after its TTL of %v, seen it free %v later",
				ttl, late)
		}
		if late < -h.drift(ttl) {
			t.Errorf("expected a lock that AcquireMany found held to last for its TTL of %v, seen it free %v earlier", ttl,
				-late)
		}
		next.must(t)
	}
}

func manyOvertakeNobody(t testing.TB, h Harness) {
	bs, _ := steppers(t, h, 3)
	if _, ok := bs[0].(locker.Queuer); !ok {
		t.Skip("the Backend does not implement locker.Queuer: its Client polls or is notified")
	}
	keys := oneSlot()
	for _, key := range keys {
		holder := grab(t, bs[0], key, longTTL)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		q := queue(ctx, bs[1], key, longTTL)
		q.waits(t)
		holder.must(t)
		if all, err := acquireMany(t.Context(), bs[2], requests(keys, longTTL)); err == nil {
			t.Errorf("AcquireMany of locks of which somebody waits for one: expected an error, seen %d grants", len(all))
			for _, o := range all {
				o.must(t)
			}
		}
		await(t, "Queue to be granted the lock", q.done, patience)
		if q.err != nil {
			t.Fatalf("Queue of a lock that was released: expected a grant, seen %v", q.err)
		}
		q.o.must(t)
	}
}

func manyLostReplyLeavesNothing(t testing.TB, h Harness) {
	bs, s := steppers(t, h, 2)
	if s.LoseReply == nil {
		t.Skip("the harness has no LoseReply")
	}
	keys := oneSlot()
	for _, o := range grabMany(t, bs[0], requests(keys, longTTL)) { // so that connections and scripts exist
		o.must(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	s.LoseReply()
	var all []*holding
	err := within(t, "AcquireMany, its reply lost", slack, func() (err error) {
		all, err = acquireMany(ctx, bs[0], requests(keys, longTTL))
		return err
	})
	if err != nil {
		wantKind(t, "AcquireMany of free locks, its reply lost", err, locker.ErrUnavailable)
	}
	for _, o := range all {
		o.must(t)
	}
	settled(t, bs[1], keys...)
}

package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// block makes a Request for several fencing tokens.
func block(key string, ttl time.Duration, fences int) backend.Request {
	req := request(key, ttl)
	req.Fences = fences
	return req
}

// tokens are the fencing tokens of one grant.
type tokens struct {
	first, last uint64
	many        bool
}

func tokensOf(g backend.Grant) tokens {
	return tokens{g.Fence, g.Fence + uint64(max(1, g.Fences)) - 1, g.Fences > 1}
}

// ask acquires a lock that is free, or soon will be.
func ask(t testing.TB, b backend.Backend, req backend.Request) (*holding, backend.Grant) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(pause(start, time.Millisecond)) {
		sent := time.Now()
		g, err := b.Acquire(t.Context(), req)
		if err == nil {
			return held(b, req, sent, g), g
		}
		if time.Since(start) > hangLimit {
			t.Fatalf("Acquire with several tokens: expected the lock to be free within %v, seen %v", hangLimit, err)
		}
		req.Token = backend.NewToken()
	}
}

func fenceBlocksDoNotOverlap(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	need(t, backend.Of(bs[0]).Tokens, "Tokens")
	_, queues := bs[0].(backend.Queuer)
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	var before tokens
	next := func(what string, g backend.Grant) {
		t.Helper()
		now := tokensOf(g)
		if (before.many || now.many) && now.first <= before.last {
			t.Errorf("a grant %s: expected tokens greater than %d to %d of the grant before, seen %d to %d", what,
				before.first, before.last, now.first, now.last)
		}
		before = now
	}
	for i, n := range []int{backend.MaxFences, 7, 1} {
		b, other := bs[i%2], bs[1-i%2]
		o, g := ask(t, b, block("k", longTTL, n))
		next("after a release", g)
		req := o.req
		req.Fence = 0
		if again, err := b.Acquire(ctx, req); err == nil { // AcquireTwiceIsGrantedTwice checks that
			if got := tokensOf(again); got.first <= before.last && got.last > before.last {
				t.Errorf("the same Acquire again: expected tokens of %d to %d, or greater ones, seen %d to %d", before.first,
					before.last, got.first, got.last)
			} else if got.last > before.last {
				before = got
			}
		}
		for _, m := range []int{backend.MaxFences, 1} {
			if !queues {
				break
			}
			q := queueFor(ctx, other, block("k", longTTL, m), 0)
			q.waits(t)
			o.must(t)
			o = q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
			next("that was handed over by a release", q.grant)
			b, other = other, b
		}
		o.must(t)
		ends := h.short()
		_, g = ask(t, b, block("k", ends, n))
		next("of a lock that will expire", g)
		if queues {
			q := queueFor(ctx, other, block("k", longTTL, n), 0)
			o = q.granted(t, "Queue to be granted after the end of the owner's TTL", ends+h.late()+2*slack)
			next("that was handed over at the end of the TTL", q.grant)
		} else {
			time.Sleep(ends)
			o, g = ask(t, other, block("k", longTTL, n))
			next("after the end of the TTL", g)
		}
		if s.Delete != nil {
			s.Delete("k")
			o, g = ask(t, b, block("k", longTTL, 1))
			next("after the lock was deleted", g)
		}
		if b, ok := other.(backend.ManyAcquirer); ok {
			o.must(t)
			reqs := []backend.Request{request("k", longTTL)}
			sent := time.Now()
			grants, err := b.AcquireMany(ctx, reqs, backend.Choice{})
			if err != nil || len(grants) != 1 {
				t.Fatalf("AcquireMany of a free lock: expected a grant, seen %d, %v", len(grants), err)
			}
			next("by AcquireMany", *grants[0])
			o = held(other, reqs[0], sent, *grants[0])
		}
		if err := o.releaseKeeping(ctx, h.ttl(locker.MinTTL)); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
	}
}

func noMoreTokensThanAsked(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	_, queues := bs[0].(backend.Queuer)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	blocks, several := backend.Of(bs[0]).Blocks, false
	for _, n := range []int{0, 1, 2, 17, backend.MaxFences} {
		check := func(what string, g backend.Grant) {
			t.Helper()
			most := 1
			if blocks {
				most = max(1, n)
			}
			if g.Fences < 0 || g.Fences > most {
				t.Errorf("%s for %d tokens: expected a grant of %d at most, seen one of %d", what, n, most, g.Fences)
			}
			several = several || g.Fences > 1
		}
		o, g := ask(t, bs[0], block("k", longTTL, n))
		check("Acquire", g)
		if queues {
			q := queueFor(ctx, bs[1], block("k", longTTL, n), 0)
			q.waits(t)
			o.must(t)
			o = q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
			check("Queue of a held lock", q.grant)
			o.must(t)
			q = queueFor(ctx, bs[1], block("k", longTTL, n), 0)
			o = q.granted(t, "Queue of a free lock to be granted", slack)
			check("Queue of a free lock", q.grant)
		}
		o.must(t)
	}
	if blocks && !several {
		t.Error("a store that states Blocks: expected a grant of several tokens, seen none")
	}
}

func firstTokenActsForAll(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	use := func(what string, o *holding) {
		t.Helper()
		for range 3 {
			if err := o.extend(ctx, longTTL); err != nil {
				t.Errorf("Extend of a lock with several tokens %s: expected no error, seen %v", what, err)
			}
			v, ok := o.b.(backend.Verifier)
			if !ok {
				continue
			}
			if err := v.Verify(ctx, o.req); err != nil {
				t.Errorf("Verify of a lock with several tokens %s: expected no error, seen %v", what, err)
			}
		}
		if other, err := acquire(ctx, bs[1], "k", longTTL); err == nil {
			t.Errorf("while a lock with several tokens is held %s: expected nobody else to be granted it, seen it granted",
				what)
			_ = other.release(ctx)
		}
	}
	o, _ := ask(t, bs[0], block("k", longTTL, backend.MaxFences))
	use("by Acquire", o)
	if _, ok := bs[0].(backend.Queuer); ok {
		q := queueFor(ctx, bs[0], block("k", longTTL, backend.MaxFences), 0)
		q.waits(t)
		o.must(t)
		o = q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
		use("by Queue", o)
	}
	o.must(t)
	grab(t, bs[1], "k", longTTL).must(t)
}

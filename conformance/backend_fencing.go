package conformance

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// needFencing skips the property of a backend that is declared to have no tokens.
func needFencing(t testing.TB, unfenced bool) {
	t.Helper()
	if unfenced {
		t.Skip("the harness declares Unfenced")
	}
}

// growing checks tokens that are granted one after another.
type growing struct {
	unfenced bool
	last     uint64
}

func (g *growing) next(t testing.TB, what string, fence uint64) {
	t.Helper()
	switch {
	case g.unfenced && fence != 0:
		t.Errorf("%s: expected token 0 of a backend without fencing, seen %d", what, fence)
	case !g.unfenced && fence <= g.last:
		t.Errorf("%s: expected a token greater than %d, seen %d", what, g.last, fence)
	}
	g.last = fence
}

// grants are tokens that were granted to many at once. It says nothing of grants that overlap but that their tokens
// differ, for the order in which they are heard of is not that in which they were made, least of all if the lock is none.
type grants struct {
	unfenced bool
	mu       sync.Mutex
	all      []grantSeen
}

type grantSeen struct {
	fence          uint64
	asked, granted time.Time
}

func (g *grants) add(o *holding) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, grantSeen{o.req.Fence, o.sent, now})
}

func (g *grants) check(t testing.TB) {
	t.Helper()
	for i, a := range g.all {
		if g.unfenced {
			if a.fence != 0 {
				t.Errorf("a grant amid others: expected token 0 of a backend without fencing, seen %d", a.fence)
			}
			continue
		}
		for j, b := range g.all {
			if j > i && a.fence == b.fence {
				t.Errorf("a grant amid others: expected a token of its own, seen %d a second time", a.fence)
			}
			if a.granted.Before(b.asked) && a.fence > b.fence {
				t.Errorf("a grant amid others: expected a token greater than %d, which was granted before it was asked for, seen %d", a.fence, b.fence)
			}
		}
	}
}

// many is how often a lock is acquired in virtual time, where it is about number. A variable, because the tests of this
// package do so for each flaw.
var many = 1000

// often is many, or less in real time.
func often(virtual bool) int {
	if virtual {
		return many
	}
	return min(many, 100)
}

func fenceGrowsByGrant(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 3)
	g := growing{unfenced: h.Unfenced}
	for i := range often(h.Bubble != nil) {
		o := grab(t, bs[i%len(bs)], "k", longTTL)
		g.next(t, fmt.Sprintf("grant %d", i+1), o.req.Fence)
		o.must(t)
		if t.Failed() {
			return // the others would be wrong as well
		}
	}
	amid := grants{unfenced: h.Unfenced}
	contend(t, bs, 3, func(o *holding) {
		amid.add(o)
		_ = o.release(t.Context())
	})
	amid.check(t)
}

// fenceIsUnique is about grants around those attempts that fail. Down is used, too, but a store may forget over it: then it
// shows only that the attempts made meanwhile do not land on what comes after it.
func fenceIsUnique(t testing.TB, h BackendHarness) {
	needFencing(t, h.Unfenced)
	bs, s := backends(t, h, 3)
	g := growing{}
	n := 0
	// attempts are made by the Backends in turn, and abandoned after limits. What they are granted nevertheless counts; what
	// they leave behind is another property's affair.
	attempts := func(what string, limits ...time.Duration) {
		t.Helper()
		for _, limit := range limits {
			n++
			ctx, cancel := endingAfter(t, limit)
			var o *holding
			_ = within(t, "Acquire "+what, limit, func() (err error) {
				o, err = acquire(ctx, bs[n%len(bs)], "k", h.brief())
				return err
			})
			cancel()
			if o != nil {
				g.next(t, "a grant "+what, o.req.Fence)
				_ = o.release(t.Context())
			}
		}
	}
	between := func(what string, trouble func(turn int)) {
		t.Helper()
		for i := range bs {
			trouble(i)
			for range 2 { // the first may have the token that was given back, or the second
				o, _ := grabWhenFree(t, bs[i], "k", longTTL, recovery)
				g.next(t, "a grant after attempts "+what, o.req.Fence)
				o.must(t)
			}
		}
	}
	held := func(trouble func(turn int)) func(turn int) {
		return func(turn int) {
			o, _ := grabWhenFree(t, bs[0], "k", longTTL, recovery)
			g.next(t, "a grant before such attempts", o.req.Fence)
			trouble(turn)
			_ = o.release(t.Context())
		}
	}
	cancelled := func(turn int) { attempts("whose context ends", fewMoments(turn)...) }
	between("on a free lock whose contexts ended", cancelled)
	between("on a held lock whose contexts ended", held(cancelled))
	between("that were sent twice", func(int) {
		o, _ := grabWhenFree(t, bs[0], "k", longTTL, recovery)
		g.next(t, "a grant", o.req.Fence)
		if again, err := o.b.Acquire(t.Context(), locker.Request{Key: "k", Token: o.req.Token, TTL: longTTL}); err == nil {
			g.last = max(g.last, again.Fence)
		}
		_ = o.release(t.Context())
	})
	if s.Hang != nil {
		hung := func(int) {
			defer failing(t, s.Hang)()
			attempts("of a store that hangs", stall, stall, stall)
		}
		between("on a free lock while the store hung", hung)
		between("on a held lock while the store hung", held(hung))
	}
	if s.LoseReply != nil {
		lost := func(int) {
			s.LoseReply()
			attempts("whose reply is lost", slack)
		}
		between("on a free lock whose replies were lost", lost)
		between("on a held lock whose replies were lost", held(lost))
	}
	if s.Down != nil {
		mend := failing(t, s.Down)
		attempts("of a store that is unreachable", stall, stall, stall)
		mend()
		g = growing{}
		between("while the store was unreachable", func(int) {})
	}
}

func fenceOutlivesTheLock(t testing.TB, h BackendHarness) {
	needFencing(t, h.Unfenced)
	bs, s := backends(t, h, 2)
	g := growing{}
	for i := range 2 {
		g.next(t, "the first grant", grab(t, bs[i], "k", h.brief()).req.Fence)
		o, _ := grabWhenFree(t, bs[1-i], "k", longTTL, h.brief()+patience)
		g.next(t, "a grant after the lock has expired", o.req.Fence)
		if err := o.releaseKeeping(t.Context(), h.brief()/4); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
		o, _ = grabWhenFree(t, bs[i], "k", longTTL, h.brief()+patience)
		g.next(t, "a grant after the lock was kept", o.req.Fence)
		if s.Delete == nil {
			o.must(t)
			continue
		}
		s.Delete("k")
		o = grab(t, bs[i], "k", longTTL)
		g.next(t, "a grant after the lock was deleted", o.req.Fence)
		o.must(t)
	}
}

func fenceSurvivesRestart(t testing.TB, h BackendHarness) {
	needFencing(t, h.Unfenced)
	bs, s := backends(t, h, 2)
	if s.Restart == nil {
		t.Skip("the harness has no Restart")
	}
	g := growing{}
	for range 2 {
		for i := range 10 {
			o, _ := grabWhenFree(t, bs[i%2], "k", longTTL, recovery)
			g.next(t, "a grant", o.req.Fence)
			o.must(t)
		}
		s.Restart()
		for i := range 2 { // the first of those is held when the store ends again, and is lost by that or not
			o, _ := grabWhenFree(t, bs[i], "k", longTTL, recovery)
			g.next(t, "a grant after a restart", o.req.Fence)
			if i == 0 {
				s.Restart()
			}
			_ = o.release(t.Context())
		}
	}
}

package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// needFencing skips the property if the store is declared to issue no tokens.
func needFencing(t testing.TB, h Harness) {
	t.Helper()
	if h.Unfenced {
		t.Skip("the harness declares Unfenced")
	}
}

// growing checks that each token is greater than the one before.
type growing struct {
	unfenced bool
	last     uint64
}

func (g *growing) next(t testing.TB, what string, fence uint64) {
	t.Helper()
	switch {
	case g.unfenced && fence != 0:
		t.Errorf("%s: expected token 0 of a store without fencing, seen %d", what, fence)
	case !g.unfenced && fence <= g.last:
		t.Errorf("%s: expected a token greater than %d, seen %d", what, g.last, fence)
	}
	g.last = fence
}

// grants collects the tokens of concurrent grants. For grants that overlap, it checks only that their tokens differ:
// their order is not known, because replies may overtake each other.
type grants struct {
	mu  sync.Mutex
	all []grantSeen
}

type grantSeen struct {
	fence          uint64
	asked, granted time.Time
}

func (g *grants) add(fence uint64, asked time.Time) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, grantSeen{fence, asked, now})
}

func (g *grants) check(t testing.TB, unfenced bool) {
	t.Helper()
	for i, a := range g.all {
		if unfenced {
			if a.fence != 0 {
				t.Errorf("a concurrent grant: expected token 0 of a store without fencing, seen %d", a.fence)
			}
			continue
		}
		for j, b := range g.all {
			if j > i && a.fence == b.fence {
				t.Errorf("a concurrent grant: expected a unique token, seen %d a second time", a.fence)
			}
			if a.granted.Before(b.asked) && a.fence > b.fence {
				t.Errorf("a concurrent grant: expected a token greater than %d, granted before, seen %d", a.fence,
					b.fence)
			}
		}
	}
}

// many is how often FenceGrows acquires a lock in virtual time. The tests of this package reduce it, because they run
// the check for each planted flaw.
var many = 1000

func fenceGrows(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	g := growing{unfenced: h.Unfenced}
	times := many
	if h.Bubble == nil {
		times = min(many, 100)
	}
	for i := range times {
		lease := lock(t, ls[i%len(ls)], "k", locker.TTL(longTTL))
		g.next(t, fmt.Sprintf("acquisition %d", i+1), lease.Fence())
		unlock(t, lease)
		if t.Failed() {
			return // further tokens would be wrong as well
		}
	}
	var amid grants
	contend(t, ls, 3, func(lease locker.Lease, asked time.Time) {
		amid.add(lease.Fence(), asked)
		_ = lease.Unlock(t.Context())
	})
	amid.check(t, h.Unfenced)
}

// fenceIsUnique compares the leases before and after attempts that fail. A store may lose its data by Down. In that
// case the check starts a new sequence, and shows only that the failed attempts do not affect later tokens.
func fenceIsUnique(t testing.TB, h Harness) {
	needFencing(t, h)
	ls, s := clients(t, h, 3)
	g := growing{}
	// attempts makes an attempt with each Locker at the same time and cancels them after limit. If there is only one
	// attempt and it succeeds, its token counts. Locks that attempts leave behind are checked by other properties.
	attempts := func(limit time.Duration, ls ...locker.Locker) (done chan struct{}) {
		ctx, cancel := endingAfter(t, limit)
		var wg sync.WaitGroup
		for _, l := range ls {
			wg.Go(func() {
				lease, err := l.TryLock(ctx, "k", locker.TTL(h.short()))
				if err != nil {
					return
				}
				if len(ls) == 1 {
					g.next(t, "a lease of an attempt whose context ends", lease.Fence())
				}
				_ = lease.Unlock(t.Context())
			})
		}
		done = make(chan struct{})
		go func() { wg.Wait(); cancel(); close(done) }()
		return done
	}
	during := func(fault func() (end func())) func(int) {
		return func(int) {
			mend := failing(t, fault)
			done := attempts(stall, ls...)
			timer := time.NewTimer(2 * stall)
			defer timer.Stop()
			select {
			case <-done:
			case <-timer.C:
			}
			mend() // attempts that ignore their contexts return now
			<-done
		}
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
					_ = holder.Unlock(t.Context())
				} else {
					trouble(turn)
				}
				unlock(t, next()) // a token that was returned may appear in the first or in the second lease
				unlock(t, next())
			}
		}
	}
	around("whose contexts ended", func(turn int) {
		for _, moment := range fewMoments(turn) {
			<-attempts(moment, ls[turn])
		}
	})
	if s.Hang != nil {
		around("while the store hung", during(s.Hang))
	}
	if s.LoseReply != nil {
		around("whose replies were lost", func(turn int) {
			s.LoseReply()
			<-attempts(slack, ls[turn])
		})
	}
	if s.Down != nil {
		around("while the store was unreachable", func(turn int) {
			during(s.Down)(turn)
			g = growing{}
		})
	}
}

func fenceOutlivesTheLock(t testing.TB, h Harness) {
	needFencing(t, h)
	ls, s := clients(t, h, 2)
	g := growing{}
	for i := range 2 {
		lease, _ := acquireWhenFree(t, ls[i], "k", locker.TTL(h.short()), locker.NoRenewal())
		g.next(t, "the first lease", lease.Fence())
		lease, _ = acquireWhenFree(t, ls[1-i], "k", locker.TTL(longTTL), locker.MinHold(h.short()/2))
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

func fenceSurvivesRestart(t testing.TB, h Harness) {
	needFencing(t, h)
	ls, s := clients(t, h, 2)
	if s.Restart == nil {
		t.Skip("the harness has no Restart")
	}
	g := growing{}
	for i := range 16 {
		ctx, cancel := context.WithTimeout(t.Context(), recovery)
		lease, err := lockPatiently(ctx, ls[i%2], "k")
		cancel()
		if err != nil {
			t.Fatalf("Lock after a restart: expected a lease, seen %v", err)
		}
		g.next(t, "a lease after a restart", lease.Fence())
		if i%8 != 3 { // otherwise it is held during the restart
			unlock(t, lease)
		}
		if i%4 == 3 {
			s.Restart()
			_ = lease.Unlock(t.Context())
		}
	}
}

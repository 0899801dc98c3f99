package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// needFencing skips the property of a store that is declared to have no tokens.
func needFencing(t testing.TB, h Harness) {
	t.Helper()
	if h.Unfenced {
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
		t.Errorf("%s: expected token 0 of a store without fencing, seen %d", what, fence)
	case !g.unfenced && fence <= g.last:
		t.Errorf("%s: expected a token greater than %d, seen %d", what, g.last, fence)
	}
	g.last = fence
}

// grants are tokens that were granted to many at once. Of grants that overlap, it only checks that their tokens differ:
// the order in which they are heard of is not that in which they were made, least of all if the lock is none.
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
				t.Errorf("a grant amid others: expected token 0 of a store without fencing, seen %d", a.fence)
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
			return // the others would be wrong as well
		}
	}
	var amid grants
	contend(t, ls, 3, func(lease locker.Lease, asked time.Time) {
		amid.add(lease.Fence(), asked)
		_ = lease.Unlock(t.Context())
	})
	amid.check(t, h.Unfenced)
}

// fenceIsUnique looks at the leases around attempts that fail. Down is used, too, but a store may forget over it: then it
// shows only that the attempts made meanwhile do not land on what comes after it.
func fenceIsUnique(t testing.TB, h Harness) {
	needFencing(t, h)
	ls, s := clients(t, h, 3)
	g := growing{}
	// attempts are made by several Lockers at once, and abandoned after limit. A lease that they get nevertheless counts if
	// there was one attempt; what they leave behind is another property's affair.
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
					g.next(t, "a lease of one whose context ends", lease.Fence())
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
			mend() // also those who do not look at their contexts return now
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
				unlock(t, next()) // the first may have the token that was given back, or the second
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
		if i%8 != 3 { // else it ends with the store
			unlock(t, lease)
		}
		if i%4 == 3 {
			s.Restart()
			_ = lease.Unlock(t.Context())
		}
	}
}

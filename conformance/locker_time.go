package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// await waits for ch, for limit at most, and fails the check after that.
func await(t testing.TB, what string, ch <-chan struct{}, limit time.Duration) {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ch:
	case <-timer.C:
		t.Fatalf("expected %s within %v, seen no sign of it", what, limit)
	}
}

// acquireWhenFree polls until it acquires key, with longTTL unless opts say otherwise. It returns the time after the
// successful attempt.
func acquireWhenFree(t testing.TB, l locker.Locker, key string, opts ...locker.Option) (locker.Lease, time.Time) {
	t.Helper()
	var lease locker.Lease
	var err error
	for deadline := time.Now().Add(hangLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		asked := time.Now()
		lease, err = l.TryLock(t.Context(), key, append([]locker.Option{locker.TTL(longTTL)}, opts...)...)
		prompt(t, asked)
		if err == nil {
			return lease, time.Now()
		}
		if !errors.Is(err, locker.ErrHeld) {
			t.Fatalf("TryLock: expected a lease or ErrHeld, seen %v", err)
		}
	}
	t.Fatalf("TryLock: expected the lock to become free within %v, seen %v to the end", hangLimit, err)
	return nil, time.Time{}
}

// nextHolder acquires key when its holder has crashed: by a call that waits, or by attempts. It returns the time at
// which it had the lease.
func nextHolder(t testing.TB, l locker.Locker, key string, waits bool) (locker.Lease, time.Time) {
	t.Helper()
	if !waits {
		return acquireWhenFree(t, l, key)
	}
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	w := wait(ctx, l, key)
	<-w.done
	if w.err != nil {
		t.Fatalf("Lock of a lock that expires: expected a lease, seen %v", w.err)
	}
	return w.lease, w.at
}

func expiryFrees(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	for i, l := range ls[:2] { // including the client that held it
		start := time.Now()
		key := fmt.Sprint("k", i) // on several nodes, a lock may be held for a moment after its release
		lock(t, ls[0], key, locker.TTL(h.short()), locker.NoRenewal())
		lease, at := acquireWhenFree(t, l, key)
		if late := at.Sub(start.Add(h.short())); late > h.late() {
			t.Errorf("expected the lock to be free after %v, seen it free %v later", h.short(), late)
		}
		unlock(t, lease)
	}
	if can(ls[0]).CountsTime && can(ls[1]).CountsTime { // those who have not looked know when it ends
		lock(t, ls[0], "unseen", locker.TTL(h.short()), locker.NoRenewal())
		time.Sleep(h.short() + h.late())
		unlock(t, lock(t, ls[1], "unseen", locker.TTL(longTTL)))
	}
	lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	for _, l := range ls[1:] { // the first waiter crashes as well
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		w := wait(ctx, l, "k", locker.TTL(h.short()), locker.NoRenewal())
		await(t, "the lock to go to the waiter when its holder's TTL is over", w.done, h.short()+h.late()+slack)
		cancel()
		if w.err != nil {
			if errors.Is(w.err, locker.ErrUnavailable) {
				prompt(t, w.at.Add(-h.short())) // the answer took longer than the TTL, as that of a store that stalls
			}
			t.Fatalf("Lock of a lock whose holder has crashed: expected a lease, seen %v", w.err)
		}
	}
	shorterThanSeen(t, h, ls)
}

// shorterThanSeen covers a waiter that has seen a lock with a long TTL. The next holder has a shorter one, and crashes.
func shorterThanSeen(t testing.TB, h Harness, ls []locker.Locker) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	holder := lock(t, ls[0], "shorter", locker.TTL(longTTL))
	crashes := wait(ctx, ls[1], "shorter", locker.TTL(h.short()), locker.NoRenewal())
	crashes.settle(unheard)
	behind := wait(ctx, ls[2], "shorter")
	behind.settle(unheard)
	unlock(t, holder)
	select {
	case <-crashes.done:
		await(t, "the lock to go to the waiter when the shorter TTL is over", behind.done, h.short()+h.late()+slack)
	case <-behind.done: // the store does not keep the order
	}
	if behind.err != nil {
		t.Fatalf("Lock of a lock whose last holder has crashed: expected a lease, seen %v", behind.err)
	}
	unlock(t, behind.lease)
	<-crashes.done
}

func untilIsConservative(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for _, waits := range []bool{false, true} {
		first := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
		until := first.Until()
		second, at := nextHolder(t, ls[1], "k", waits)
		if at.Before(until) {
			t.Errorf("expected nobody to get the lock before Until, seen it %v earlier (by a waiter: %v)",
				until.Sub(at), waits)
		}
		unlock(t, second)
	}
}

func latencyCounts(t testing.TB, h Harness) {
	if h.Retries {
		t.Skip("the harness declares Retries")
	}
	ls, s := clients(t, h, 2)
	if s.Hang == nil {
		t.Skip("the harness has no Hang")
	}
	ttl := h.short()
	for _, delay := range []time.Duration{ttl / 4, ttl * 3 / 2} {
		// A connection exists then, and has just been used. A client that first opens or tests one sends its request later.
		unlock(t, lock(t, ls[0], "other", locker.TTL(longTTL)))
		resumed := make(chan struct{})
		resume := s.Hang()
		time.AfterFunc(delay, func() {
			defer close(resumed)
			resume()
		})
		start := time.Now()
		lease, err := ls[0].TryLock(t.Context(), "k", locker.TTL(ttl), locker.NoRenewal())
		if err != nil { // it may have failed before the answer arrived
			wantError(t, "TryLock whose answer comes late", err, locker.ErrUnavailable)
		} else {
			if late := lease.Until().Sub(start.Add(ttl)); late > 0 {
				t.Errorf("an answer after %v: expected Until within the TTL from the request, seen it %v later", delay,
					late)
			}
			_ = lease.Unlock(t.Context())
		}
		await(t, "the store to answer again", resumed, delay+slack)
		next, _ := acquireWhenFree(t, ls[1], "k")
		unlock(t, next)
	}
}

func doneBeforeUntil(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	await(t, "Done to be closed", lease.Done(), h.short()+slack)
	// On a real machine a timer may fire late without a fault of the locker.
	late := time.Since(lease.Until())
	if h.Bubble == nil {
		late -= slack / 4
	}
	if late > 0 {
		t.Errorf("expected Done to be closed before Until, seen it %v late", late)
	}
	if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Err: expected a match of ErrLost, seen %v", err)
	}
	if lost := (*locker.LostError)(nil); !errors.As(lease.Err(), &lost) || lost.Reason != locker.LostExpired {
		t.Errorf("Err: expected a *LostError with the reason %q, seen %v", locker.LostExpired, lease.Err())
	}
}

func renewalKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(h.short()))
	many := 15
	if h.Bubble == nil {
		many = 3 // seconds
	}
	for start := time.Now(); time.Since(start) < time.Duration(many)*h.short(); time.Sleep(h.short() / 20) {
		wantHeld(t, ls[1], "k")
		if err := lease.Err(); err != nil {
			t.Fatalf("expected the lease to last, seen %v after %v", err, time.Since(start))
		}
	}
	unlock(t, lease)
	next := lock(t, ls[1], "k", locker.TTL(h.short()), locker.NoRenewal())
	await(t, "the end of the next lease, which nobody renews", next.Done(), h.short()+slack)
	if err := lease.Err(); !errors.Is(err, locker.ErrUnlocked) || errors.Is(err, locker.ErrLost) {
		t.Errorf("Err of a lease that was unlocked, when its TTL is over: expected ErrUnlocked, seen %v", err)
	}
	third, _ := acquireWhenFree(t, ls[0], "k")
	unlock(t, third)
}

func extendKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	for range 4 {
		time.Sleep(h.short() / 2)
		before, start := lease.Until(), time.Now()
		err := lease.Extend(t.Context())
		prompt(t, start)
		if err != nil {
			t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
		}
		if !lease.Until().After(before) {
			t.Errorf("expected Extend to move Until, seen %v before and after", before)
		}
		wantHeld(t, ls[1], "k")
	}
	next, at := acquireWhenFree(t, ls[1], "k")
	if early := lease.Until().Sub(at); early > 0 {
		t.Errorf("expected nobody to get the lock before the extended Until, seen it %v earlier", early)
	}
	unlock(t, next)
}

// successor lets a lease on k end and then lets another client acquire k.
func successor(t testing.TB, h Harness) (stale locker.Lease, check func()) {
	t.Helper()
	ls, _ := clients(t, h, 2)
	stale = lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	next, _ := acquireWhenFree(t, ls[1], "k")
	return stale, func() {
		t.Helper()
		wantHeld(t, ls[0], "k")
		if err := next.Extend(t.Context()); err != nil {
			t.Errorf("Extend by the next holder: expected no error, seen %v", err)
		}
		unlock(t, next)
		third, _ := acquireWhenFree(t, ls[0], "k")
		unlock(t, third)
	}
}

func extendSparesSuccessor(t testing.TB, h Harness) {
	stale, check := successor(t, h)
	wantError(t, "Extend of a lease that has ended", stale.Extend(t.Context()), locker.ErrLost)
	check()
}

func unlockSparesSuccessor(t testing.TB, h Harness) {
	stale, check := successor(t, h)
	wantError(t, "Unlock of a lease that has ended", stale.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
	check()
	stale, check = successor(t, h)
	check() // and the lock is free
	wantError(t, "Unlock of a lease that has ended, of a free lock", stale.Unlock(t.Context()), locker.ErrNotHeld,
		locker.ErrLost)
}

func doubleUnlock(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(longTTL))
	unlock(t, lease)
	wantError(t, "a second Unlock", lease.Unlock(t.Context()), locker.ErrUnlocked)
	wantError(t, "Extend after Unlock", lease.Extend(t.Context()), locker.ErrUnlocked)
	next := lock(t, ls[1], "k", locker.TTL(longTTL))
	wantError(t, "a third Unlock", lease.Unlock(t.Context()), locker.ErrUnlocked)
	wantHeld(t, ls[0], "k")
	unlock(t, next)
}

func lossIsNoticed(t testing.TB, h Harness) {
	ls, s := clients(t, h, 2)
	if s.Delete == nil {
		t.Skip("the harness has no Delete")
	}
	limit := h.short()
	if h.Bubble == nil {
		limit += slack
	}
	for _, taken := range []bool{false, true} {
		lease := lock(t, ls[0], "k", locker.TTL(h.short()))
		deleted := time.Now()
		s.Delete("k")
		prompt(t, deleted) // a store of several nodes may heal the first of them before the last is deleted
		var thief locker.Lease
		if taken {
			thief = lock(t, ls[1], "k", locker.TTL(longTTL))
		}
		await(t, "the loss to be noticed", lease.Done(), limit)
		if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
			t.Errorf("Err: expected a match of ErrLost, seen %v", err)
		}
		wantError(t, "Extend of a lost lock", lease.Extend(t.Context()), locker.ErrLost)
		wantError(t, "Unlock of a lost lock", lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
		if taken {
			if err := thief.Extend(t.Context()); err != nil {
				t.Errorf("Extend by the new holder: expected no error, seen %v", err)
			}
			unlock(t, thief)
		}
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		next, err := ls[1].Lock(ctx, "k", locker.TTL(longTTL))
		cancel()
		if err != nil {
			t.Fatalf("Lock after a loss: expected a lease, seen %v", err)
		}
		unlock(t, next)
	}
}

func extendWithTTLKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	if _, ok := locker.As[*locker.Client](ls[0]); !ok {
		t.Skip("the leases are not those of a locker.Client")
	}
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	for _, bad := range []time.Duration{-1, 0, locker.MinTTL - 1, locker.MaxTTL + 1} {
		wantError(t, "Extend with a TTL out of range", lease.Extend(t.Context(), locker.TTL(bad)), locker.ErrInvalid)
	}
	longer := h.ttl(h.short() * 3 / 2)
	start := time.Now()
	if err := lease.Extend(t.Context(), locker.TTL(longer)); err != nil {
		t.Fatalf("Extend with a TTL of a held lock: expected no error, seen %v", err)
	}
	until := lease.Until()
	if valid := until.Sub(start); valid <= h.short() || valid >= longer+time.Since(start) {
		t.Errorf("Extend with a TTL: expected Until a little less than %v from now, seen %v", longer, valid)
	}
	if err := lease.Extend(t.Context(), locker.TTL(h.short())); err != nil {
		t.Errorf("Extend with a smaller TTL: expected no error, seen %v", err)
	}
	if lease.Until().Before(until) {
		t.Errorf("Extend with a smaller TTL: expected Until to stay, seen it move back by %v",
			until.Sub(lease.Until()))
	}
	next, at := acquireWhenFree(t, ls[1], "k")
	if early := until.Sub(at); early > 0 {
		t.Errorf("expected nobody to get the lock before the extended Until, seen it %v earlier", early)
	}
	if late := at.Sub(start.Add(longer)); late > h.late()+h.short() {
		t.Errorf("expected the lock to be free after its new TTL of %v, seen it free %v later", longer, late)
	}
	unlock(t, next)

	lease, _ = acquireWhenFree(t, ls[0], "k", locker.TTL(longTTL))
	if err := lease.Extend(t.Context(), locker.TTL(h.short())); err != nil {
		t.Fatalf("Extend with a TTL of a held lock: expected no error, seen %v", err)
	}
	before := lease.Until()
	time.Sleep(h.short())
	if lease.Until().Before(before) {
		t.Errorf("renewals after Extend with a smaller TTL: expected Until to stay, seen it move back by %v",
			before.Sub(lease.Until()))
	}
	unlock(t, lease)
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
		t.Errorf("%s: expected token 0, because the store does not state Tokens, seen %d", what, fence)
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
				t.Errorf("a concurrent grant: expected token 0, because the store does not state Tokens, seen %d", a.fence)
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
	g := growing{unfenced: !can(ls[0]).Tokens}
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
	amid.check(t, g.unfenced)
}

// fenceIsUnique compares the leases before and after attempts that fail. A store may lose its data by Down. In that
// case the check starts a new sequence, and shows only that the failed attempts do not affect later tokens.
func fenceIsUnique(t testing.TB, h Harness) {
	ls, s := clients(t, h, 3)
	need(t, can(ls[0]).Tokens, "Tokens")
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
	ls, s := clients(t, h, 2)
	need(t, can(ls[0]).Tokens, "Tokens")
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
	ls, s := clients(t, h, 2)
	need(t, can(ls[0]).Tokens, "Tokens")
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

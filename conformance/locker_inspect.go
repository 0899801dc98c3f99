package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/lockertrace"
)

// inspectors makes n clients whose store shows the state of its locks, or skips the property.
func inspectors(t testing.TB, h Harness, n int) ([]locker.Locker, inspect.Inspector) {
	t.Helper()
	ls, _ := clients(t, h, n)
	i, ok := locker.As[inspect.Inspector](ls[0])
	if !ok {
		t.Skip("the Locker does not implement inspect.Inspector")
	}
	// the Backend does not implement it
	if _, err := i.Inspect(t.Context(), "k"); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the backend cannot show the state of its locks")
	}
	return ls, i
}

// seenOf inspects key and checks that its state is want.
func seenOf(t testing.TB, i inspect.Inspector, key string, want inspect.State) inspect.Inspection {
	t.Helper()
	seen, err := i.Inspect(t.Context(), key)
	if err != nil {
		t.Errorf("Inspect of a lock that is %s: expected no error, seen %v", want, err)
	}
	if seen.State != want {
		t.Errorf("Inspect: expected the lock to be %s, seen %s", want, seen.State)
	}
	return seen
}

func inspectionTells(t testing.TB, h Harness) {
	ls, i := inspectors(t, h, 2)
	if seen := seenOf(t, i, "k", inspect.Free); seen.Owner != "" || seen.Remaining != 0 || seen.Waiting != 0 {
		t.Errorf("expected a free lock to have no owner, no remaining time and no waiters, seen %+v", seen)
	}
	start := time.Now()
	holder := lock(t, ls[1], "k", locker.TTL(longTTL), locker.MinHold(h.short()))
	keptUntil := time.Now().Add(h.short())
	seen := seenOf(t, i, "k", inspect.Held)
	switch elapsed := time.Since(start); {
	case seen.Owner == "" || !strings.HasPrefix(holder.Token(), seen.Owner):
		t.Error("expected the first characters of the owner's token, seen other text or none")
	case len(seen.Owner) > len(holder.Token())/2:
		t.Errorf("expected too little of the owner's token to act as the owner, seen %d of %d characters",
			len(seen.Owner), len(holder.Token()))
	case seen.Remaining <= 0 || seen.Remaining > longTTL+h.Granularity:
		t.Errorf("Remaining: expected up to the TTL of %v, seen %v", longTTL, seen.Remaining)
	case seen.Fence != holder.Fence():
		t.Errorf("Fence: expected the lease's, %d, seen %d", holder.Fence(), seen.Fence)
	case seen.Held < 0 || seen.Held > elapsed+slack:
		t.Errorf("Held: expected up to the %v that have passed, seen %v", elapsed, seen.Held)
	}
	// The nodes of a quorum grant a lock at slightly different times, and the order of their answers varies. The
	// remaining time must therefore decrease by this much to count.
	const less = 100 * time.Millisecond
	var again inspect.Inspection
	if !until(hangLimit, func() bool {
		again = seenOf(t, i, "k", inspect.Held)
		return t.Failed() || again.Remaining <= seen.Remaining-less
	}) {
		t.Errorf("Inspect of a lock that remains for %v: expected less to remain after %v, seen %v", seen.Remaining,
			hangLimit, again.Remaining)
	}
	unlock(t, holder)
	if time.Until(keptUntil) > h.short()/2 {
		h.wantRemaining(t, "Inspect of a lock that is kept by MinHold", seenOf(t, i, "k", inspect.Kept).Remaining,
			h.short())
	}
	next, _ := acquireWhenFree(t, ls[1], "k")
	unlock(t, next)
	seenOf(t, i, "k", inspect.Free)
}

func forceReleaseTakes(t testing.TB, h Harness) {
	ls, i := inspectors(t, h, 3)
	force := func(what, owner string, want ...error) inspect.Inspection {
		t.Helper()
		seen, err := i.ForceRelease(t.Context(), "k", owner)
		if len(want) > 0 {
			wantError(t, "ForceRelease "+what, err, want...)
		} else if err != nil {
			t.Errorf("ForceRelease %s: expected no error, seen %v", what, err)
		}
		return seen
	}
	force("of a free lock", "", locker.ErrNotHeld)
	holder := lock(t, ls[1], "k", locker.TTL(longTTL))
	force("from an owner that does not hold it", "not a token", locker.ErrNotHeld)
	if err := holder.Extend(t.Context()); err != nil {
		t.Errorf("Extend by the owner, after a ForceRelease from another owner: expected no error, seen %v", err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	waiter := wait(ctx, ls[2], "k")
	waiter.mustWait(t)
	owner := seenOf(t, i, "k", inspect.Held).Owner
	taken := time.Now()
	if seen := force("from its owner", owner); !strings.HasPrefix(holder.Token(), seen.Owner) || seen.Owner == "" {
		t.Errorf("ForceRelease: expected the first characters of the owner's token, seen %d other characters",
			len(seen.Owner))
	}
	<-waiter.done
	next := waiter.lease
	if waiter.err != nil {
		t.Fatalf("Lock of a lock that was released by force: expected a lease, seen %v", waiter.err)
	}
	if late := waiter.at.Sub(taken); late > 2*slack { // without a queue, the waiter may find it by a poll
		t.Errorf("expected the waiter to get the lock soon, seen it there after %v", late)
	}
	if can(ls[0]).Tokens && next.Fence() <= holder.Fence() {
		t.Errorf("expected the next owner to have a token greater than %d, seen %d", holder.Fence(), next.Fence())
	}
	wantError(t, "Extend by the former owner", holder.Extend(t.Context()), locker.ErrLost)
	wantError(t, "Unlock by the former owner", holder.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
	force("from its former owner", owner, locker.ErrNotHeld)
	if err := next.Extend(t.Context()); err != nil {
		t.Errorf("Extend by the next owner, after a ForceRelease from the former owner: expected no error, seen %v",
			err)
	}
	force("from any owner", "")
	unlock(t, lock(t, ls[1], "k", locker.TTL(longTTL)))
}

func labelNamesTheHolder(t testing.TB, h Harness) {
	const first, second = "web-7:4211", `büro 3, "night"`
	ls, _ := clients(t, h, 3)
	labels := can(ls[0]).Labels
	wantLabel := func(what, seen, want string) {
		t.Helper()
		if !labels {
			want = ""
		}
		if seen != want {
			t.Errorf("%s: expected the label %q, seen %q", what, want, seen)
		}
	}
	look := func(key, when, want string) {
		t.Helper()
		_, err := ls[2].TryLock(t.Context(), key, locker.TTL(longTTL), locker.Label("another"))
		wantLabel("TryLock "+when, labelOf(err), want)
		i, ok := locker.As[inspect.Inspector](ls[2])
		if !ok {
			return
		}
		if seen, err := i.Inspect(t.Context(), key); !errors.Is(err, errors.ErrUnsupported) {
			wantLabel("Inspect "+when, seen.Label, want)
		}
	}

	holder := lock(t, ls[0], "k", locker.TTL(longTTL), locker.Label(first))
	look("k", "of a held lock", first)
	if err := holder.Extend(t.Context()); err != nil {
		t.Errorf("Extend: expected no error, seen %v", err)
	}
	look("k", "after an Extend", first)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	w := wait(ctx, ls[1], "k", locker.Label(second))
	await(t, "Lock to return at the end of its context", w.done, hangLimit)
	cancel()
	// In real time, the store may be too slow to say who has the lock.
	if errors.Is(w.err, context.DeadlineExceeded) && errors.Is(w.err, locker.ErrHeld) {
		wantLabel("Lock whose context ends", labelOf(w.err), first)
	}

	ctx, cancel = context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	told := make(chan string, 1)
	ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(w lockertrace.Waiting) {
		select {
		case told <- w.Label:
		default:
		}
	}})
	w = wait(ctx, ls[1], "k", locker.Label(second))
	w.settle(hangLimit / 2) // until the store has said who has the lock
	unlock(t, holder)
	if <-w.done; w.err != nil {
		t.Fatalf("Lock of a lock that was unlocked: expected a lease, seen %v", w.err)
	}
	select {
	case seen := <-told:
		wantLabel("Trace.Waiting", seen, first)
	default: // the Locker does not call Trace.Waiting
	}
	look("k", "of the next holder's lock", second)
	unlock(t, w.lease)
	holder = lock(t, ls[0], "another", locker.TTL(longTTL), locker.Label(""))
	look("another", "of a lock with an empty label", "")
	unlock(t, holder)
}

// labelOf returns the holder's label if err has one.
func labelOf(err error) string {
	var held *locker.HeldError
	if errors.As(err, &held) {
		return held.Label
	}
	return ""
}

func labelIsNotTheOwner(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	take := func(b backend.Backend) *holding {
		t.Helper()
		req, sent := request("k", longTTL), time.Now()
		req.Label = "web-7:4211"
		g, err := b.Acquire(t.Context(), req)
		if err != nil {
			t.Fatalf("Acquire of a free lock: expected a grant, seen %v", err)
		}
		return held(b, req, sent, g)
	}
	earlier := take(bs[0])
	earlier.must(t)
	owner := take(bs[1])
	other := request("k", longTTL)
	other.Label = owner.req.Label
	_, err := bs[0].Acquire(t.Context(), other)
	wantKind(t, "Acquire with the owner's label", err, locker.ErrHeld)
	_ = earlier.extend(t.Context(), longTTL)
	_ = earlier.release(t.Context())
	if err := owner.extend(t.Context(), longTTL); err != nil {
		t.Errorf("Extend, after Extend and Release by an earlier owner with the same label: expected no error, seen %v",
			err)
	}
	owner.must(t)
}

func verifyProves(t testing.TB, h Harness) {
	ls, s := clients(t, h, 2)
	need(t, can(ls[0]).Verify, "Verify")
	proves := func(what string, lease locker.Lease) {
		t.Helper()
		if err := locker.Verify(t.Context(), lease); err != nil {
			t.Errorf("Verify of %s: expected no error, seen %v", what, err)
		}
	}
	fails := func(what string, lease locker.Lease, want error) {
		t.Helper()
		wantError(t, "Verify of "+what, locker.Verify(t.Context(), lease), want)
	}

	lease := lock(t, ls[0], "k", locker.TTL(longTTL))
	for range 2 {
		proves("a lease that is held", lease)
	}
	if err := lease.Extend(t.Context()); err != nil {
		t.Errorf("Extend: expected no error, seen %v", err)
	}
	proves("a lease that was extended", lease)
	unlock(t, lease)
	fails("a lease that was unlocked", lease, locker.ErrUnlocked)

	lease, _ = acquireWhenFree(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	next, _ := acquireWhenFree(t, ls[1], "k")
	fails("a lease that has ended", lease, locker.ErrLost)
	proves("the next lease", next)
	unlock(t, next)

	if s.Delete != nil {
		lease, _ = acquireWhenFree(t, ls[0], "k", locker.NoRenewal())
		s.Delete("k")
		fails("a lease whose lock was deleted", lease, locker.ErrLost)
		lease, _ = acquireWhenFree(t, ls[0], "k", locker.NoRenewal())
		s.Delete("k")
		next, _ = acquireWhenFree(t, ls[1], "k")
		fails("a lease whose lock has another owner", lease, locker.ErrLost)
		proves("that owner's lease", next)
		unlock(t, next)
	}
	if s.Down != nil {
		lease, _ = acquireWhenFree(t, ls[0], "k", locker.NoRenewal())
		defer failing(t, s.Down)()
		fails("a lease whose store is unreachable", lease, locker.ErrUnavailable)
	}
}

func verifyChangesNothing(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	need(t, can(ls[0]).Verify, "Verify")
	// The TTL is so long that a lock that was prolonged differs from one that the store removes late.
	ttl := h.ttl(2 * slack)
	start := time.Now()
	lease := lock(t, ls[0], "k", locker.TTL(ttl), locker.NoRenewal())
	until := lease.Until()
	wantHeld(t, ls[1], "k") // on some stores, others count the TTL, from when they look
	for time.Since(start) < ttl*9/10 && !t.Failed() {
		asked := time.Now()
		_ = locker.Verify(t.Context(), lease)
		prompt(t, asked)
		if now := lease.Until(); now.After(until) {
			t.Errorf("Verify: expected Until to stay, seen it move by %v", now.Sub(until))
		}
		time.Sleep(ttl / 20)
	}
	next, at := acquireWhenFree(t, ls[1], "k")
	if late := at.Sub(start.Add(ttl)); late > h.late()+slack/2 {
		t.Errorf("expected a lock that was verified to be free after its TTL of %v, seen it free %v later", ttl, late)
	}
	unlock(t, next)
}

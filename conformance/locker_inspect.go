package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
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
	if !until(patience, func() bool {
		again = seenOf(t, i, "k", inspect.Held)
		return t.Failed() || again.Remaining <= seen.Remaining-less
	}) {
		t.Errorf("Inspect of a lock that remains for %v: expected less to remain after %v, seen %v", seen.Remaining,
			patience, again.Remaining)
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

	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	if !h.Unfenced && next.Fence() <= holder.Fence() {
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

package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/lockertrace"
)

func labelNamesTheHolder(t testing.TB, h Harness) {
	if !h.Labels {
		t.Skip("the harness does not declare Labels")
	}
	const first, second = "web-7:4211", `büro 3, "night"`
	ls, _ := clients(t, h, 3)
	wantLabel := func(what, seen, want string) {
		t.Helper()
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
	await(t, "Lock to return at the end of its context", w.done, patience)
	cancel()
	// In real time, the store may be too slow to say who has the lock.
	if errors.Is(w.err, context.DeadlineExceeded) && errors.Is(w.err, locker.ErrHeld) {
		wantLabel("Lock whose context ends", labelOf(w.err), first)
	}

	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	told := make(chan string, 1)
	ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(w lockertrace.Waiting) {
		select {
		case told <- w.Label:
		default:
		}
	}})
	w = wait(ctx, ls[1], "k", locker.Label(second))
	w.settle(patience / 2) // until the store has said who has the lock
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
	take := func(b locker.Backend) *holding {
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

package conformance

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func endedContext(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		for what, lock := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
			"Lock": ls[0].Lock, "TryLock": ls[0].TryLock,
		} {
			what += " with a context that has ended"
			wantError(t, what, within(t, what, 0, func() error {
				_, err := lock(ctx, "k", locker.TTL(longTTL))
				return err
			}), want)
		}
	}
	unlock(t, lock(t, ls[0], "k", locker.TTL(longTTL)))
}

// within returns the result of call. It fails the check if call takes longer than limit; call then continues in its
// goroutine.
func within(t testing.TB, what string, limit time.Duration, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	timer := time.NewTimer(limit + slack)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.Fatalf("%s: expected it to return within %v, seen it under way after %v", what, limit, limit+slack)
		return nil
	}
}

func contextEndsWaiting(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	holder := lock(t, ls[0], "k", locker.TTL(longTTL))
	waited := h.short() / 2 // long enough for the store to answer that the lock is held
	bound, tries := h.milliseconds()
	for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
		best := time.Hour
		for n := 0; n < tries && best > bound; n++ {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), waited)
			if errors.Is(want, context.Canceled) {
				cancel()
				ctx, cancel = endingAfter(t, waited)
			}
			const what = "Lock of a held lock until the context ends"
			err := within(t, what, waited, func() error {
				_, err := ls[1].Lock(ctx, "k", locker.TTL(longTTL))
				return err
			})
			cancel()
			best = min(best, time.Since(start)-waited)
			if errors.Is(err, locker.ErrUnavailable) {
				prompt(t, start) // the store has not answered at all, as one that stalls
			}
			wantError(t, what, err, want, locker.ErrHeld)
		}
		if best > bound {
			t.Errorf("Lock of a held lock: expected it to return within milliseconds of its context's end, seen it "+
				"return %v later", best)
		}
	}
	unlock(t, holder)
	lease, _ := acquireWhenFree(t, ls[1], "k") // the store may take a moment to notice that the waiter has gone
	unlock(t, lease)
}

func cancelledAttemptsLeaveNothing(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	// The attempts run one after the other, so that each finds the lock free. A lock that is left behind blocks all
	// later attempts.
	for i := range 200 {
		call := []func(context.Context, string, ...locker.Option) (locker.Lease, error){ls[0].Lock, ls[1].Lock,
			ls[0].TryLock, ls[1].TryLock}[i%4]
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i*i/20)*time.Microsecond, cancel) // before, during and after the attempt
		lease, err := call(ctx, "k", locker.TTL(longTTL))
		if err == nil {
			unlock(t, lease)
			// see below
		} else if tried := i%4 > 1; !errors.Is(err, context.Canceled) && !(tried && errors.Is(err, locker.ErrHeld)) {
			t.Errorf("Lock or TryLock with a context that is cancelled: expected a lease or context.Canceled, seen %v",
				err)
		}
		cancel()
	}
	lease, _ := acquireWhenFree(t, ls[0], "k") // clean-up may take a moment; an orphan would stay
	unlock(t, lease)
}

func unlockIgnoresEndedContext(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	ctx, cancel := context.WithCancel(t.Context())
	lease, err := ls[0].Lock(ctx, "k", locker.TTL(longTTL))
	if err != nil {
		t.Fatalf("Lock: expected a lease, seen %v", err)
	}
	cancel()
	if err := lease.Err(); err != nil {
		t.Errorf("the end of Lock's context: expected the lease to go on, seen %v", err)
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Errorf("Unlock with an ended context: expected no error, seen %v", err)
	}
	unlock(t, lock(t, ls[1], "k", locker.TTL(longTTL)))
}

func hungStoreIsBounded(t testing.TB, h Harness) {
	ls, s := clients(t, h, 2)
	if s.Hang == nil {
		t.Skip("the harness has no Hang")
	}
	const limit = 100 * time.Millisecond
	unlock(t, lock(t, ls[0], "other", locker.TTL(longTTL))) // so that connections exist
	long := lock(t, ls[0], "long", locker.TTL(longTTL))
	brief := lock(t, ls[1], "short", locker.TTL(h.short()))
	resume := failing(t, s.Hang)
	bounded := func(what string, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := within(t, what, limit, func() error { return call(ctx) })
		wantError(t, what, err, locker.ErrUnavailable, context.DeadlineExceeded)
	}
	bounded("Lock", func(ctx context.Context) error {
		_, err := ls[0].Lock(ctx, "k", locker.TTL(longTTL))
		return err
	})
	bounded("TryLock", func(ctx context.Context) error {
		_, err := ls[1].TryLock(ctx, "k", locker.TTL(longTTL))
		return err
	})
	bounded("Extend", long.Extend)
	bounded("Unlock", long.Unlock) // it waits for a second, which slack covers
	await(t, "the lease that cannot be renewed to end", brief.Done(), h.short()+slack)
	if err := brief.Err(); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Err: expected a match of ErrLost, seen %v", err)
	}
	resume()
	for _, key := range []string{"k", "long", "short", "k"} {
		time.Sleep(stall) // delayed requests arrive in this time and find the lock free
		ctx, cancel := context.WithTimeout(t.Context(), recovery+h.short()+h.Granularity)
		lease, err := lockPatiently(ctx, ls[0], key)
		cancel()
		if err != nil {
			t.Fatalf("expected the lock %q to be free when the store answers again, seen %v", key, err)
		}
		unlock(t, lease)
	}
}

// lockPatiently calls Lock until the store is available again.
func lockPatiently(ctx context.Context, l locker.Locker, key string) (locker.Lease, error) {
	for {
		lease, err := l.Lock(ctx, key, locker.TTL(longTTL))
		if err == nil || ctx.Err() != nil || !errors.Is(err, locker.ErrUnavailable) {
			return lease, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func closeEndsWaiting(t testing.TB, h Harness) {
	bound, tries := h.milliseconds()
	ls, _ := clients(t, h, 1+tries)
	holder := lock(t, ls[0], "k", locker.TTL(longTTL))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	best := time.Hour
	for n := 1; n <= tries && best > bound; n++ {
		closer, ok := locker.As[io.Closer](ls[n])
		if !ok {
			t.Skip("the Locker has no Close")
		}
		w := wait(ctx, ls[n], "k")
		w.settle(stall)
		start := time.Now()
		if err := closer.Close(); err != nil {
			t.Errorf("Close: expected no error, seen %v", err)
		}
		prompt(t, start) // a store that stalls keeps the place of the waiter for a while
		await(t, "Lock to return when its client is closed", w.done, slack)
		best = min(best, w.at.Sub(start))
		wantError(t, "Lock while its client is closed", w.err, locker.ErrClosed)
		_, err := ls[n].TryLock(ctx, "k")
		wantError(t, "TryLock after Close", err, locker.ErrClosed)
	}
	if best > bound {
		t.Errorf("Lock: expected it to return within milliseconds of Close, seen it return %v later", best)
	}
	unlock(t, holder)
	asked := time.Now()
	next, err := ls[0].TryLock(t.Context(), "k", locker.TTL(longTTL))
	if err != nil {
		t.Errorf("TryLock of the lock that was unlocked: expected a lease, seen %v", err)
		next, _ = acquireWhenFree(t, ls[0], "k")
		prompt(t, asked) // a store that stalls notices late that the waiters have left
	}
	unlock(t, next)
}

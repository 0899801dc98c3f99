package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/lockertrace"
)

// crowd is the number of clients that contend for a lock.
const crowd = 4

// waiter is a call of Lock that may have to wait.
type waiter struct {
	waits, done chan struct{} // waits is closed by Trace.Waiting, done when Lock has returned
	lease       locker.Lease  // lease, err and at are set before done is closed
	err         error
	at          time.Time
}

// wait calls Lock, with longTTL unless opts say otherwise.
func wait(ctx context.Context, l locker.Locker, key string, opts ...locker.Option) *waiter {
	return waitIn(ctx, func(ctx context.Context) (locker.Lease, error) {
		return l.Lock(ctx, key, append([]locker.Option{locker.TTL(longTTL)}, opts...)...)
	})
}

// waitIn makes a call that waits for a lock.
func waitIn(ctx context.Context, lock func(ctx context.Context) (locker.Lease, error)) *waiter {
	w := &waiter{waits: make(chan struct{}), done: make(chan struct{})}
	var once sync.Once
	waiting := func(lockertrace.Waiting) { once.Do(func() { close(w.waits) }) }
	ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: waiting})
	go func() {
		defer close(w.done)
		w.lease, w.err = lock(ctx)
		w.at = time.Now()
	}()
	return w
}

// unheard is how long settle waits for a Locker that does not call Trace.Waiting. A call that takes longer to begin to
// wait may come behind the next one, and 100 ms were too short for one that had to connect first, on a busy machine.
const unheard = time.Second

// settle returns when the call waits. If the Locker does not call Trace.Waiting, settle returns after a pause.
func (w *waiter) settle(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-w.waits:
	case <-w.done:
	case <-timer.C:
	}
}

// mustWait is settle for Lockers that call Trace.Waiting.
func (w *waiter) mustWait(t testing.TB) {
	t.Helper()
	await(t, "Trace.Waiting to be called", w.waits, hangLimit)
}

// serve waits for the lease, and unlocks it.
func (w *waiter) serve(t testing.TB, what string) {
	t.Helper()
	if <-w.done; w.err != nil {
		t.Errorf("Lock %s: expected a lease, seen %v", what, w.err)
		return
	}
	unlock(t, w.lease)
}

// served waits until all of ws are served, and unlocks the lease of each at once. It returns the numbers of the waiters
// in the order in which they were served.
func served(t testing.TB, what string, ws []*waiter) (order []int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, w := range ws {
		wg.Go(func() {
			<-w.done
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			w.serve(t, what)
		})
	}
	wg.Wait()
	return order
}

// nobodyStarves also holds for clients that poll. Among those, the lock goes to the one that asks at the right moment,
// so shares differ a lot over a short time. The check fails if one client hardly ever acquires the lock.
func nobodyStarves(t testing.TB, h Harness) {
	const enough = 5
	ls, _ := clients(t, h, crowd)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	var mu sync.Mutex
	holds := make([]int, len(ls))
	start := time.Now()
	over := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Min(holds) >= enough || time.Since(start) > hangLimit
	}
	var wg sync.WaitGroup
	for i, l := range ls {
		wg.Go(func() {
			for !over() {
				lease, err := l.Lock(ctx, "k", locker.TTL(longTTL))
				if err != nil {
					t.Errorf("Lock: expected a lease, seen %v", err)
					return
				}
				mu.Lock()
				holds[i]++
				mu.Unlock()
				time.Sleep(time.Millisecond)
				_ = lease.Unlock(ctx)
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	if slices.Min(holds) < enough && !t.Failed() {
		t.Errorf("expected each client to get the lock %d times within %v, seen %v", enough, hangLimit, holds)
	}
}

func servedInOrder(t testing.TB, h Harness) {
	const rounds = 8 // clients that poll may be served in order by chance
	ls, _ := clients(t, h, 6)
	need(t, can(ls[0]).Order, "Order")
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for range rounds {
		holder := lock(t, ls[0], "k", locker.TTL(longTTL))
		var ws []*waiter
		for _, l := range ls[1:] {
			w := wait(ctx, l, "k")
			w.mustWait(t)
			ws = append(ws, w)
		}
		unlock(t, holder)
		if order := served(t, "of one of several waiters", ws); !slices.IsSorted(order) {
			t.Fatalf("expected the lock in the order of arrival, seen %v", order)
		}
	}
}

func leavingWaiterStallsNobody(t testing.TB, h Harness) {
	const rounds = 30
	ls, s := clients(t, h, 3)
	bound := 2 * slack // without a queue, the second waiter may find the lock by a poll
	if can(ls[0]).Order {
		bound = slack
	}
	for i := range rounds {
		holder, _ := acquireWhenFree(t, ls[0], "k") // the clean-up of the last round may take a moment
		leaving, leave := context.WithCancel(t.Context())
		staying, cancel := context.WithTimeout(t.Context(), hangLimit)
		first := wait(leaving, ls[1], "k")
		first.settle(unheard) // with Order it is served before the next one
		second := wait(staying, ls[2], "k")
		second.settle(unheard)
		// The waiter leaves at moments from before the release until after the handover.
		moment := time.Duration(i-rounds/3) * 100 * time.Microsecond
		release := func() { unlock(t, holder) }
		if moment < 0 {
			leave()
			time.Sleep(-moment)
			release()
		} else {
			time.AfterFunc(moment, leave)
			release()
		}
		released := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { second.serve(t, "behind a waiter that leaves") })
		switch <-first.done; {
		case first.err == nil: // it acquired the lock before its context ended
			unlock(t, first.lease)
		case !errors.Is(first.err, context.Canceled):
			t.Errorf("Lock with a context that is cancelled: expected a lease or a match of context.Canceled, seen %v",
				first.err)
		}
		wg.Wait()
		leave()
		cancel()
		if late := second.at.Sub(released); late > bound && !t.Failed() {
			t.Errorf("expected the lock to go to the next waiter soon, seen it there after %v; the first waiter left "+
				"%v after the release",
				late, moment)
		}
		if t.Failed() {
			return
		}
	}
	time.Sleep(h.short() / 4) // a delayed request would have acquired the lock by now
	lease, _ := acquireWhenFree(t, ls[0], "k")
	unlock(t, lease)
	if s.Left != nil {
		waitUntilEmpty(t, s.Left, "after some waiters have left", slack)
	}
}

func lostMessagesDelay(t testing.TB, h Harness) {
	ls, s := clients(t, h, 2)
	if s.LoseMessages == nil {
		t.Skip("the harness has no LoseMessages")
	}
	for _, deaf := range []bool{false, true} { // first without the fault, so that connections exist
		if deaf {
			defer failing(t, s.LoseMessages)()
		}
		holder, _ := acquireWhenFree(t, ls[0], "k")
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		w := wait(ctx, ls[1], "k")
		w.settle(unheard)
		unlock(t, holder)
		w.serve(t, "of a waiter whose messages are lost")
		cancel()
	}
}

func minHoldKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	hold := h.short() / 2
	for _, waiting := range []bool{false, true} {
		start := time.Now()
		holder := lock(t, ls[0], "k", locker.TTL(longTTL), locker.MinHold(hold))
		keptUntil := time.Now().Add(hold) // or slightly earlier: MinHold counts from the request
		var next *waiter
		if waiting {
			ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
			defer cancel()
			next = wait(ctx, ls[1], "k")
			next.settle(unheard)
		}
		unlock(t, holder)
		if err := holder.Err(); !errors.Is(err, locker.ErrUnlocked) || !isDone(holder) {
			t.Errorf("after Unlock: expected ErrUnlocked and Done closed, seen Err %v, Done closed %v", err,
				isDone(holder))
		}
		var at time.Time
		if waiting {
			next.serve(t, "of a lock that is kept by MinHold")
			at = next.at
		} else {
			for _, l := range []locker.Locker{ls[0], ls[2]} {
				asked := time.Now()
				lease, err := l.TryLock(t.Context(), "k")
				kept := time.Since(start) < hold // a slow store may answer later
				prompt(t, asked)
				if err != nil || kept {
					wantError(t, "TryLock of a lock that is kept", err, locker.ErrHeld)
				}
				if err == nil {
					unlock(t, lease)
				}
			}
			var lease locker.Lease
			lease, at = acquireWhenFree(t, ls[1], "k")
			unlock(t, lease)
		}
		if kept := at.Sub(start); kept < hold {
			t.Errorf("expected nobody to get the lock for %v, seen it taken after %v (by a waiter: %v)", hold, kept,
				waiting)
		}
		// The limit is generous: in some stores the waiters have to notice the end of MinHold by polling.
		if late := at.Sub(keptUntil); late > slack+h.late() {
			t.Errorf("expected the lock to be free after %v, seen it %v later (by a waiter: %v)", hold, late, waiting)
		}
	}
}

func maxHoldEnds(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	limit := 3 * h.short() / 2
	before := time.Now()
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.MaxHold(limit))
	start := time.Now()
	if until := lease.Until(); until.After(start.Add(limit)) {
		t.Errorf("Until: expected no more than MaxHold of %v from the request, seen %v from its end", limit,
			until.Sub(start))
	}
	await(t, "Done to be closed", lease.Done(), limit+slack)
	if took := time.Since(before); took < limit*4/5 {
		t.Errorf("expected the lease to be renewed until MaxHold of %v is over, seen it end after %v: %v", limit, took,
			lease.Err())
	}
	if lost := (*locker.LostError)(nil); !errors.As(lease.Err(), &lost) || lost.Reason != locker.LostMaxHold {
		t.Errorf("Err: expected a *LostError with the reason %q, seen %v", locker.LostMaxHold, lease.Err())
	}
	unlock(t, lease)
	unlock(t, lock(t, ls[1], "k", locker.TTL(longTTL)))
}

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
	bounded("Extend", func(ctx context.Context) error { return long.Extend(ctx) })
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
	ctx, cancel := context.WithTimeout(t.Context(), 2*hangLimit)
	defer cancel()
	best := time.Hour
	for n := 1; n <= tries && best > bound; n++ {
		closer, ok := locker.As[io.Closer](ls[n])
		if !ok {
			t.Skip("the Locker has no Close")
		}
		w := wait(ctx, ls[n], "k")
		w.settle(unheard)
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
	wantNoWaiters(t, ls[0], holder)
}

func drainEndsWaiting(t testing.TB, h Harness) {
	bound, tries := h.milliseconds()
	ls, _ := clients(t, h, 1+tries)
	holder := lock(t, ls[0], "k", locker.TTL(longTTL))
	ctx, cancel := context.WithTimeout(t.Context(), 2*hangLimit)
	defer cancel()
	begun, over := context.WithCancel(ctx)
	over()
	best := time.Hour
	for n := 1; n <= tries && best > bound; n++ {
		of, ok := locker.As[interface {
			Drain(ctx context.Context) []locker.Lease
		}](ls[n])
		if !ok {
			t.Skip("the Locker has no Drain")
		}
		own := lock(t, ls[n], fmt.Sprint("own", n), locker.TTL(longTTL))
		w := wait(ctx, ls[n], "k")
		w.settle(unheard)
		start := time.Now()
		if held := of.Drain(begun); len(held) != 1 {
			t.Errorf("Drain with a context that has ended: expected the lease that is held, seen %d", len(held))
		}
		await(t, "Lock to return when its client drains", w.done, slack)
		best = min(best, w.at.Sub(start))
		wantError(t, "Lock while its client drains", w.err, locker.ErrDraining, locker.ErrClosed)
		_, err := ls[n].TryLock(ctx, "k")
		wantError(t, "TryLock while the client drains", err, locker.ErrDraining, locker.ErrClosed)
		if err := own.Extend(ctx); err != nil {
			t.Errorf("Extend while the client drains: expected no error, seen %v", err)
		}
		unlock(t, own)
		if held := of.Drain(ctx); len(held) > 0 {
			t.Errorf("Drain after Unlock: expected no lease, seen %d", len(held))
		}
		unlock(t, lock(t, ls[0], own.Key()))
	}
	if best > bound {
		t.Errorf("Lock: expected it to return within milliseconds of Drain, seen it return %v later", best)
	}
	wantNoWaiters(t, ls[0], holder)
}

// wantNoWaiters unlocks holder, a lease of "k", and fails unless the waiters of the lock have left, so that it is free.
func wantNoWaiters(t testing.TB, l locker.Locker, holder locker.Lease) {
	t.Helper()
	unlock(t, holder)
	asked := time.Now()
	next, err := l.TryLock(t.Context(), "k", locker.TTL(longTTL))
	if err != nil {
		t.Errorf("TryLock of the lock that was unlocked: expected a lease, seen %v", err)
		next, _ = acquireWhenFree(t, l, "k")
		prompt(t, asked) // a store that stalls notices late that the waiters have left
	}
	unlock(t, next)
}

// toldBy extends the lease until it learns that it is wanted, for limit at most.
func toldBy(t testing.TB, lease locker.Lease, limit time.Duration) (wanted bool) {
	t.Helper()
	tick := time.NewTicker(stall / 2)
	defer tick.Stop()
	end := time.After(limit)
	for !t.Failed() {
		if err := lease.Extend(t.Context()); err != nil {
			t.Errorf("Extend of a held lock: expected no error, seen %v", err)
		}
		select {
		case <-locker.Wanted(lease):
			return true
		case <-end:
			return false
		case <-tick.C:
		}
	}
	return false
}

func wantedTells(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	of := can(ls[0])
	lease := lock(t, ls[0], "k", locker.TTL(longTTL), locker.NoRenewal())
	_ = locker.Wanted(lease)
	one := wait(t.Context(), ls[1], "k")
	one.settle(unheard)
	if !of.TellsWanted && !of.AnswersWanted {
		if toldBy(t, lease, 2*stall) {
			t.Error("a store that states neither TellsWanted nor AnswersWanted: expected the channel to be open, seen it closed")
		}
		unlock(t, lease)
		one.serve(t, "after another")
		return
	}
	if !toldBy(t, lease, hangLimit) {
		t.Error("another client began to wait: expected the channel to be closed, seen it open")
	}
	two := wait(t.Context(), ls[2], "k")
	two.settle(unheard)
	unlock(t, lease)
	select {
	case <-one.done:
	case <-two.done:
		one, two = two, one
	}
	if one.err != nil {
		t.Fatalf("Lock: expected a lease, seen %v", one.err)
	}
	if !toldBy(t, one.lease, hangLimit) {
		t.Error("another client waited when the lock was granted: expected the channel to be closed, seen it open")
	}
	unlock(t, one.lease)
	two.serve(t, "after two others")
}

func wantedIsTrue(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	needWanted(t, can(ls[0]))
	lease := lock(t, ls[0], "k", locker.TTL(longTTL), locker.NoRenewal())
	if i, ok := locker.As[inspect.Inspector](ls[0]); ok {
		ctx, leave := context.WithCancel(t.Context())
		w := wait(ctx, ls[1], "k")
		w.settle(unheard)
		leave()
		await(t, "Lock to return when its context has ended", w.done, slack)
		left := func() bool {
			seen, err := i.Inspect(t.Context(), "k")
			return err == nil && seen.Waiting == 0
		}
		if !until(hangLimit, left) {
			t.Skip("the only waiter has left, and the store still shows one, which other properties notice")
		}
	}
	other := lock(t, ls[0], "other", locker.TTL(longTTL))
	w := wait(t.Context(), ls[2], "other")
	wantHeld(t, ls[1], "k")
	w.settle(unheard)
	if toldBy(t, lease, 2*stall) {
		t.Error("nobody waits: expected the channel to be open, seen it closed")
	}
	unlock(t, other)
	w.serve(t, "of another key")
	unlock(t, lease)
}

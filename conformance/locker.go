package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// RunLocker checks a Locker against the rules of [locker.Locker], [locker.Lease] and [backend.Backend], with one
// subtest per property. The Locker is usually a [locker.Client] of a backend, with or without middleware.
func RunLocker(t *testing.T, h Harness) {
	if h.Store == nil {
		t.Fatal("conformance: Harness needs Store")
	}
	run(t, h, h.Bubble, slices.Concat(lockerProperties, manyProperties))
}

var lockerProperties = []property[Harness]{
	{
		"MutualExclusion",
		"A lock has at most one holder at a time, across all clients of the store.",
		"Preventing two holders at once is the purpose of a lock.",
		mutualExclusion,
	},
	{
		"TryLockHeld",
		"TryLock of a held lock fails at once with ErrHeld and no other sentinel error, even for the client that " +
			"holds the lock, and leaves the lock unchanged; the remaining time of a HeldError lies within the TTL.",
		"Callers skip the work or wait when the lock is held; after any other error they give up or believe that " +
			"they hold the lock, and with a wrong remaining time they sleep too long.",
		tryLockHeld,
	},
	{
		"LeaseDescribesItself",
		"A new lease reports its key, has a unique owner token, has not ended, and is valid for a little less than " +
			"its TTL.",
		"Programs store, log and compare what a lease reports; if a token is used twice, one attempt can undo " +
			"another.",
		leaseDescribesItself,
	},
	{
		"UnlockFrees",
		"After Unlock, every client can acquire the lock at once.",
		"A lock that stays taken after Unlock blocks everybody for a whole TTL, each time.",
		unlockFrees,
	},
	{
		"KeysAreIndependent",
		"Locks with different keys do not affect each other, whatever bytes the keys contain.",
		"Keys come from data: if two keys collide, unrelated callers wait for each other; if one is truncated, it " +
			"locks something else.",
		keysAreIndependent,
	},
	{
		"WaiterIsServed",
		"Lock waits while the lock is held, and acquires it after Unlock.",
		"A waiter that is never served hangs its program; one that is served too early is a second holder.",
		waiterIsServed,
	},
	{
		"FenceGrows",
		"Every acquisition of a key has a greater fencing token than all acquisitions before it, across all " +
			"clients; if Tokens is not stated, every token is 0.",
		"The protected resource refuses tokens that are smaller than one it has seen: with wrong tokens it refuses " +
			"the real holder or accepts a stale one.",
		fenceGrows,
	},
	{
		"FenceIsUnique",
		"No token is issued twice, even if other attempts are cancelled, unanswered or refused, or their replies " +
			"are lost.",
		"If a token is returned or counted in two places, the resource cannot tell a stale holder from the new one.",
		fenceIsUnique,
	},
	{
		"FenceOutlivesTheLock",
		"Tokens keep growing after a lock has expired, was deleted, or was kept by MinHold.",
		"A counter that disappears with its lock starts again while a stale holder may still work: the next holder " +
			"gets the same token.",
		fenceOutlivesTheLock,
	},
	{
		"FenceSurvivesRestart",
		"Tokens keep growing after a restart of the store, even if the locks themselves are lost.",
		"Holders outlive a restart of the store: if tokens start again, new holders get tokens that the resource " +
			"has already seen.",
		fenceSurvivesRestart,
	},
	{
		"CallersShareALock",
		"Callers of one client that want a lock exclude each other and the callers of other clients, each has a greater " +
			"token than the holder before it, and nothing is left, whichever way the lock goes from one to the next.",
		"A client may hand a lock over without the store: only the client then prevents two holders at once, or a token " +
			"that is used twice.",
		callersShareALock,
	},
	{
		"CallersHaveLeasesOfTheirOwn",
		"If callers of one client have a lock one after the other, the lease of an earlier one has ended: its Extend fails " +
			"with ErrUnlocked, and a second Unlock leaves the lease of the later one unchanged.",
		"The store has one owner for all of them: a second Unlock in a defer statement would release the lock of the " +
			"next caller.",
		callersHaveLeasesOfTheirOwn,
	},
	{
		"CallersShareWithOthers",
		"A caller of another client is served soon, although callers of one client lock and unlock without a pause: it " +
			"waits for 50 ms and two holders.",
		"A client that hands a lock over to its own callers keeps it from all others meanwhile.",
		callersShareWithOthers,
	},
	{
		"NothingIsLeft",
		"When locks are unlocked or expired and their waiters are gone, the store keeps nothing of them except " +
			"counters.",
		"Keys come from data: if something stays for each key that was ever locked, the store fills up.",
		nothingIsLeft,
	},
	{
		"BadInputIsRefused",
		"A TTL out of range, an empty or oversized key, or a label that is not allowed fails with ErrInvalid and " +
			"changes nothing.",
		"If the locker silently adjusts the TTL or the key, the caller holds a different lock than it asked for.",
		badInputIsRefused,
	},

	{
		"ExpiryFrees",
		"A lock whose lease is not renewed becomes free after its TTL without any action, for TryLock and for a " +
			"waiting Lock; with CountsTime also for somebody who has not looked before.",
		"A holder that has crashed releases nothing: the lock must not stay taken for ever.",
		expiryFrees,
	},
	{
		"UntilIsConservative",
		"Nobody else acquires the lock before the lease's Until.",
		"The holder works until Until: if another client acquires the lock earlier, both work at once.",
		untilIsConservative,
	},
	{
		"DoneBeforeUntil",
		"Done is closed no later than Until, and Err then reports that the lock is lost.",
		"Done tells the holder to stop: if it closes late, the old holder works while the next one has the lock.",
		doneBeforeUntil,
	},
	{
		"RenewalKeeps",
		"A renewed lease keeps the lock for many TTLs, and renewal stops at Unlock.",
		"Without renewal, work that takes longer than the TTL loses its lock; renewal that does not stop keeps the " +
			"lock for ever.",
		renewalKeeps,
	},
	{
		"ExtendKeeps",
		"Extend prolongs a lease on the store as well: nobody else acquires the lock before the new Until, and " +
			"after it the lock becomes free.",
		"The caller continues to work because Extend reported success.",
		extendKeeps,
	},
	{
		"ExtendWithTTLKeeps",
		"Extend with a TTL gives a lease and its lock a greater one, shortens nothing, and refuses one out of range.",
		"The caller relies on the time that it has asked for, and on that of the lease before it asked.",
		extendWithTTLKeeps,
	},
	{
		"ExtendSparesSuccessor",
		"Extend of a lease that has ended fails with ErrLost and leaves the next holder's lock unchanged.",
		"A stale holder whose Extend succeeds believes that the next holder's lock is its own: there are two " +
			"holders.",
		extendSparesSuccessor,
	},
	{
		"UnlockSparesSuccessor",
		"Unlock of a lease that has ended fails with ErrNotHeld, whether the lock is free or has a new holder, and " +
			"leaves the new holder's lock unchanged.",
		"If a slow holder deletes the lock of its successor, a third client acquires it: DEL without comparing the " +
			"owner is the usual bug of hand-made locks.",
		unlockSparesSuccessor,
	},
	{
		"DoubleUnlock",
		"A second Unlock fails with ErrUnlocked and leaves the next holder's lock unchanged.",
		"A second Unlock in a defer statement is common; it must not release another client's lock.",
		doubleUnlock,
	},
	{
		"LossIsNoticed",
		"If a lock is deleted on the store, its lease ends within one TTL and Unlock reports ErrNotHeld.",
		"A holder that does not notice the loss continues to work without its lock.",
		lossIsNoticed,
	},

	{
		"EndedContext",
		"Lock and TryLock with an ended context lock nothing, and their error matches the context's error.",
		"The caller has gone away: a lock acquired for it has a holder that nobody knows of.",
		endedContext,
	},
	{
		"ContextEndsWaiting",
		"A waiting Lock returns within milliseconds of the end of its context and leaves nothing behind; its error " +
			"matches both the context's error and ErrHeld.",
		"By the error, the caller tells a busy lock from a broken store, and recognizes the end of its own context.",
		contextEndsWaiting,
	},
	{
		"CancelledAttemptsLeaveNothing",
		"Lock and TryLock leave no lock behind, at whatever moment their context ends.",
		"A lock that is acquired for a caller who has gone away blocks everybody for a whole TTL.",
		cancelledAttemptsLeaveNothing,
	},
	{
		"UnlockIgnoresEndedContext",
		"Unlock releases the lock even if its context has ended.",
		"Unlock usually runs in a defer statement, when the context has often ended already: the lock would stay " +
			"taken for a whole TTL.",
		unlockIgnoresEndedContext,
	},
	{
		"LatencyCounts",
		"Until is counted from before the request was sent, however late the answer arrives; if nothing is left of " +
			"the TTL by then, TryLock fails with ErrUnavailable and leaves no lock.",
		"If Until were counted from the answer, the holder would work beyond the end of its lock while the next " +
			"holder has it.",
		latencyCounts,
	},
	{
		"HungStoreIsBounded",
		"If the store does not answer, calls return soon after the end of their context with ErrUnavailable, and a " +
			"held lease ends in time; when the store answers again, delayed attempts leave no lock behind.",
		"A hung store must not hang its callers, nor make them believe that they, or anybody else, hold a lock.",
		hungStoreIsBounded,
	},
	{
		"NobodyStarves",
		"If several clients acquire and release one lock repeatedly, each of them gets its share.",
		"A client that never acquires the lock does no work, as if it were down.",
		nobodyStarves,
	},
	{
		"ServedInOrder",
		"Clients that wait for a lock acquire it in the order in which they began to wait.",
		"A program that derives its longest wait from the queue order would wait longer than promised.",
		servedInOrder,
	},
	{
		"LeavingWaiterStallsNobody",
		"A waiter whose context ends, at whatever moment, leaves neither a lock nor a queue position behind, and " +
			"does not delay the waiters behind it.",
		"If the lock is handed to a waiter that has left, all waiters behind it stall.",
		leavingWaiterStallsNobody,
	},
	{
		"LostMessagesDelay",
		"If messages are lost, Lock still acquires the lock, only later.",
		"Messages are delivered at most once: one lost message would hang its waiter and all waiters behind it.",
		lostMessagesDelay,
	},
	{
		"MinHoldKeeps",
		"After Unlock the lock stays taken, with no owner, until MinHold is over; then it becomes free, for waiters " +
			"as well.",
		"Otherwise a job that several machines start at about the same time would run twice.",
		minHoldKeeps,
	},
	{
		"MaxHoldEnds",
		"A lease ends when MaxHold is over, even though it is renewed, and Unlock frees the lock.",
		"Otherwise work that hangs would keep its lock for ever.",
		maxHoldEnds,
	},
	{
		"ForeignKeyIsRefused",
		"If a key holds something that is not a lock, Lock and TryLock fail at once with ErrForeignKey and leave " +
			"the value unchanged.",
		"No client will ever release that value, so Lock would wait for ever; deleting it would destroy somebody's " +
			"data.",
		foreignKeyIsRefused,
	},
	{
		"CloseEndsWaiting",
		"Close of a client ends its waiting calls within milliseconds with ErrClosed, makes later calls fail with " +
			"ErrClosed, and leaves held locks unchanged.",
		"Otherwise a program that shuts down would hang in its waiting calls.",
		closeEndsWaiting,
	},
	{
		"DrainEndsWaiting",
		"Drain of a client ends its waiting calls within milliseconds with ErrDraining, makes later calls fail with it, " +
			"leaves neither a lock nor a queue position of theirs behind, and leaves held leases unchanged until Unlock.",
		"A program is replaced while others go on: they would wait for what it has left, and it would lose what it holds.",
		drainEndsWaiting,
	},
	{
		"InspectionTells",
		"An Inspector reports whether a lock is free, held or kept, for how long and by whom, and does not reveal " +
			"the whole owner token.",
		"Operators act on the report; with the whole token they, or anybody who reads their logs, could release the " +
			"lock.",
		inspectionTells,
	},
	{
		"ListingIsComplete",
		"A Lister lists each lock of a prefix that is held or kept while it goes on, as an Inspector shows it, however " +
			"many there are and whatever bytes their keys contain. It lists nothing that is free, and nothing else.",
		"Operators look there for who blocks them, and for locks that are too old: one that is missing is not found, and " +
			"one that is free leads them astray.",
		listingIsComplete,
	},
	{
		"ListingEnds",
		"A listing ends with its loop, and with an error when its context has ended or the client is closed.",
		"A listing of many locks takes long: it has to end when nobody wants it any more, and must not look complete then.",
		listingEnds,
	},
	{
		"LabelNamesTheHolder",
		"The error of a held lock, Trace.Waiting and an Inspector report the holder's label: an extension keeps it, the " +
			"next holder has its own, and an empty one stays empty; without Labels it is always empty.",
		"People read the label to find the program that has the lock: with a wrong one they stop another program.",
		labelNamesTheHolder,
	},
	{
		"ForceReleaseTakes",
		"ForceRelease passes the lock to the next waiter, its former owner's calls report the loss, and locks of " +
			"other owners stay unchanged.",
		"ForceRelease is for holders that hang: if it takes the lock of another owner, or if the former owner does " +
			"not notice, there are two holders.",
		forceReleaseTakes,
	},
	{
		"VerifyProves",
		"locker.Verify succeeds while the store has the lock for the lease; it fails with ErrLost when the lock has " +
			"ended, was deleted or has another owner, and with ErrUnavailable when the store does not answer.",
		"Programs commit their work because Verify reported success.",
		verifyProves,
	},
	{
		"VerifyChangesNothing",
		"locker.Verify does not prolong a lock.",
		"A lease without renewal has to end: its holder may hang between one Verify and the next.",
		verifyChangesNothing,
	},
	{
		"WantedTells",
		"The channel of locker.Wanted is closed when another client waits for the lock, or waits already; with the answer " +
			"to an Extend at the latest. If neither TellsWanted nor AnswersWanted is stated, it stays open.",
		"Long jobs rely on it to make room: the others would wait until the job has ended.",
		wantedTells,
	},
	{
		"WantedIsTrue",
		"The channel of locker.Wanted stays open while nobody waits: others have tried, wait for another lock, or have " +
			"left before it was asked for.",
		"Long jobs stop when it is closed: they would save and begin again for nobody.",
		wantedIsTrue,
	},
}

// contend lets several callers of each Locker acquire k repeatedly, with Lock and with TryLock. It calls inside for
// each lease, which must unlock it. asked is the time at which the successful call began. The store hands the lock over
// each time, because it is what is under test; CallersShareALock is about hand-overs within a Locker.
func contend(t testing.TB, ls []locker.Locker, rounds int,
	inside func(lease locker.Lease, asked time.Time)) (holds int) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	opts := []locker.Option{locker.TTL(longTTL), locker.NoLocalHandover()}
	var wg sync.WaitGroup
	for _, l := range ls {
		for _, waits := range []bool{true, true, false, false} {
			holds += rounds
			wg.Go(func() {
				for range rounds {
					call := l.TryLock
					if waits {
						call = l.Lock
					}
					asked := time.Now()
					lease, err := call(ctx, "k", opts...)
					for pause := time.Millisecond; err != nil && !waits &&
						ctx.Err() == nil; pause = min(2*pause, 32*time.Millisecond) {
						// on a store of several nodes, an attempt may fail although nobody has acquired the lock
						time.Sleep(pause)
						asked = time.Now()
						lease, err = call(ctx, "k", opts...)
					}
					if err != nil {
						t.Errorf("repeated Lock or TryLock: expected a lease, seen %v", err)
						return
					}
					inside(lease, asked)
				}
			})
		}
	}
	wg.Wait()
	return holds
}

func mutualExclusion(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 3)
	var inside, counter atomic.Int32
	holds := contend(t, ls, 8, func(lease locker.Lease, _ time.Time) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("expected one holder, seen %d at once", n)
		}
		seen := counter.Load()
		time.Sleep(time.Millisecond)
		counter.Store(seen + 1) // not an atomic increment: the lock has to protect it
		inside.Add(-1)
		unlock(t, lease)
	})
	if int(counter.Load()) != holds {
		t.Errorf("expected %d increments under the lock, seen %d", holds, counter.Load())
	}
}

func tryLockHeld(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	lease := lock(t, ls[0], "k", locker.TTL(longTTL))
	for i, who := range []string{"the holder's client", "another client"} {
		start := time.Now()
		_, err := ls[i].TryLock(t.Context(), "k", locker.TTL(longTTL))
		wantError(t, "TryLock by "+who, err, locker.ErrHeld)
		if d := time.Since(start); d > slack {
			t.Errorf("TryLock by %s: expected an answer at once, seen one after %v", who, d)
		}
		if held := (*locker.HeldError)(nil); errors.As(err, &held) {
			h.wantRemaining(t, "TryLock by "+who, held.Remaining, longTTL)
		}
	}
	unlock(t, lease)
}

func leaseDescribesItself(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	tokens := map[string]bool{}
	for range 20 {
		start := time.Now()
		lease := lock(t, ls[0], "some key", locker.TTL(longTTL))
		if lease.Key() != "some key" {
			t.Errorf("Key: expected %q, seen %q", "some key", lease.Key())
		}
		if len(lease.Token()) < 16 || tokens[lease.Token()] {
			t.Errorf("Token: expected a fresh value of 16 characters or more, seen one of %d characters, used "+
				"before: %v",
				len(lease.Token()), tokens[lease.Token()])
		}
		tokens[lease.Token()] = true
		if valid := lease.Until().Sub(start); valid <= longTTL/2 || valid >= longTTL {
			t.Errorf("Until: expected a little less than the TTL of %v from now, seen %v", longTTL, valid)
		}
		if lease.Err() != nil || isDone(lease) {
			t.Errorf("expected an open lease, seen Err %v, Done closed %v", lease.Err(), isDone(lease))
		}
		unlock(t, lease)
		if err := lease.Err(); !errors.Is(err, locker.ErrUnlocked) || !isDone(lease) {
			t.Errorf("after Unlock: expected ErrUnlocked and Done closed, seen Err %v, Done closed %v", err,
				isDone(lease))
		}
	}
}

func unlockFrees(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for i := range 10 {
		lease := lock(t, ls[i%2], "k", locker.TTL(longTTL))
		for range i % 3 { // a client may cache the answer of an attempt in between
			if other, err := ls[1-i%2].TryLock(t.Context(), "k"); err == nil {
				_ = other.Unlock(t.Context())
			}
		}
		unlock(t, lease)
	}
}

func keysAreIndependent(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a:b", "{a}", "{a}b", "a}b", "}{", "{", "{}", "{}a", "a{b}c{d}", "a\x00", "a\x00b",
		"\r\n", "*", "a*", "%61",
		"..", "a/../b", "käse", "kÄse", "\xff\xfe", "0", "';--", strings.Repeat("x", locker.MaxKey),
		strings.Repeat("x", locker.MaxKey-1),
	}
	var leases []locker.Lease
	for _, key := range keys {
		leases = append(leases, lock(t, ls[0], key, locker.TTL(longTTL)))
	}
	for i, lease := range leases {
		unlock(t, lease)
		for _, other := range leases[i+1:] {
			if err := other.Extend(t.Context()); err != nil {
				t.Fatalf("Unlock of %.40q: expected the lease on %.40q to go on, seen its Extend fail: %v", lease.Key(),
					other.Key(), err)
			}
		}
	}
}

func waiterIsServed(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	for i := range 2 { // a waiter of the holder's client, and one of another client
		holder := lock(t, ls[0], "k", locker.TTL(longTTL))
		held := 200 * time.Millisecond
		start := time.Now()
		var unlocked atomic.Bool
		answered := make(chan struct{}) // the waiter may have the lock before Unlock returns
		time.AfterFunc(held, func() {
			defer close(answered)
			unlocked.Store(true)
			unlock(t, holder)
		})
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		lease, err := ls[i].Lock(ctx, "k", locker.TTL(longTTL))
		cancel()
		if err != nil {
			t.Fatalf("Lock: expected a lease after the holder's Unlock, seen %v", err)
		}
		if !unlocked.Load() {
			t.Errorf("Lock of a held lock: expected it to wait %v for the holder's Unlock, seen it return after %v",
				held, time.Since(start))
		}
		if late := time.Since(start) - held; late > slack {
			t.Errorf("expected the lock soon after Unlock, seen it after %v", late)
		}
		unlock(t, lease)
		await(t, "Unlock to return", answered, hangLimit)
	}
}

func badInputIsRefused(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 1)
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	for _, bad := range []struct {
		key   string
		ttl   time.Duration
		label string
	}{
		{"", longTTL, ""}, {strings.Repeat("x", 1<<20), longTTL, ""}, {"k", 0, ""}, {"k", 1, ""},
		{"k", -time.Second, ""}, {"k", locker.MinTTL - 1, ""}, {"k", locker.MaxTTL + 1, ""}, {"k", 1<<63 - 1, ""},
		{"k", longTTL, "a|b"}, {"k", longTTL, "a+"}, {"k", longTTL, "a\nb"}, {"k", longTTL, "\xff"},
		{"k", longTTL, strings.Repeat("x", 65)},
	} {
		what := fmt.Sprintf("TTL %v and label %q with a key of %d bytes", bad.ttl, bad.label, len(bad.key))
		_, err := ls[0].TryLock(ctx, bad.key, locker.TTL(bad.ttl), locker.Label(bad.label))
		wantError(t, what, err, locker.ErrInvalid)
		_, err = ls[0].Lock(ctx, bad.key, locker.TTL(bad.ttl), locker.Label(bad.label))
		wantError(t, what, err, locker.ErrInvalid)
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%s: expected a short message, seen %d bytes", what, len(err.Error()))
		}
	}
	unlock(t, lock(t, ls[0], "k", locker.TTL(longTTL)))
}

func foreignKeyIsRefused(t testing.TB, h Harness) {
	ls, s := clients(t, h, 1)
	if s.Foreign == nil {
		t.Skip("the harness has no Foreign")
	}
	intact := s.Foreign("k")
	for what, lock := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
		"Lock": ls[0].Lock, "TryLock": ls[0].TryLock,
	} {
		what += " of a key that is no lock"
		wantError(t, what, within(t, what, 0, func() error {
			_, err := lock(t.Context(), "k", locker.TTL(longTTL))
			return err
		}), locker.ErrForeignKey)
	}
	if intact != nil && !intact() {
		t.Error("expected what is not a lock to be left alone, seen it changed")
	}
}

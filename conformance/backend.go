package conformance

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// RunBackend checks a backend, with one subtest per property. It runs [RunLocker] over a [locker.Client] of the
// backend. It also checks the rules of [backend.Backend] that a Client hides or does not depend on, and the rules of
// the optional interfaces [backend.Queuer], [backend.Notifier], [backend.LossNotifier], [backend.ManyAcquirer],
// [backend.Exporter], inspect.Watcher and inspect.FenceRaiser if the backend implements them.
func RunBackend(t *testing.T, h Harness) {
	RunLocker(t, h)
	run(t, h, h.Bubble, slices.Concat(backendProperties, manyBackendProperties, someProperties, groupProperties,
		kindProperties, exportProperties))
}

var backendProperties = []property[Harness]{
	{
		"AcquireTwiceIsGrantedTwice",
		"Acquire is idempotent for its own token: an Acquire that is executed twice is granted twice and released " +
			"by one Release, and later fencing tokens are greater than both.",
		"Client libraries and proxies repeat requests that were not answered: without idempotence the owner would " +
			"be told that somebody else has its lock.",
		acquireTwiceIsGrantedTwice,
	},
	{
		"FenceBlocksDoNotOverlap",
		"All fencing tokens of a grant are issued with it: every later grant of the key, by whatever call and however " +
			"the lock became free, has greater ones.",
		"The Client gives the tokens to its callers without asking the store: with a token of two grants, the resource " +
			"cannot tell a stale holder from the new one.",
		fenceBlocksDoNotOverlap,
	},
	{
		"NoMoreTokensThanAsked",
		"A grant has no more fencing tokens than its request asks for, and at most one if it asks for none; several only " +
			"with Blocks.",
		"The Client asks for many only while its callers wait: if each grant took many, the counter would advance " +
			"faster than the clock from which it starts again.",
		noMoreTokensThanAsked,
	},
	{
		"FirstTokenActsForAll",
		"Extend, Verify and Release of a lock with several fencing tokens work with the first of them, until it is " +
			"released.",
		"The backend does not learn which caller has the lock: leases would end although nobody else has it.",
		firstTokenActsForAll,
	},

	{
		"TTLIsKept",
		"Nobody else is granted the lock within its TTL, to the last microsecond, counted from the call of Acquire " +
			"or Extend, or from Grant.Sent of a queued grant.",
		"The holder counts the TTL from before it sent the request, and works until it is over.",
		ttlIsKept,
	},
	{
		"ExtendNeverShortens",
		"Extend with a TTL shorter than the remaining time leaves the lock unchanged.",
		"Otherwise a delayed Extend that arrives after a longer one would end the lock while its holder works.",
		extendNeverShortens,
	},
	{
		"ExtendNeverCreates",
		"Extend does not recreate a lock that has expired, was deleted, or was released.",
		"Another client may have held the lock in between; and after a release, the recreated lock would belong to " +
			"nobody.",
		extendNeverCreates,
	},
	{
		"ExtendTellsLoss",
		"Extend of a lock that its token no longer owns fails with ErrNotHeld.",
		"If Extend succeeds, the holder continues to work without a lock; if it reports a fault instead, the holder " +
			"does so until the end of its lease.",
		extendTellsLoss,
	},
	{
		"EarlierOwnersTouchNothing",
		"Extend, Release and Release with Keep by an earlier owner leave the next owner's lock unchanged, even if " +
			"the earlier owner has already released it.",
		"A delayed Extend would keep the lock of an owner that has crashed; a delayed Release would let a third " +
			"client in.",
		earlierOwnersTouchNothing,
	},
	{
		"ReleaseIsOneStep",
		"Release compares and deletes in one step: a new owner that is granted the lock during an earlier owner's " +
			"Release keeps it.",
		"Separate GET, compare and DEL steps pass most tests, but delete the next owner's lock if the TTL ends " +
			"between them.",
		releaseIsOneStep,
	},
	{
		"LabelIsNotTheOwner",
		"An owner is known by its token alone: with the same label but another token, Acquire is refused, and Extend " +
			"and Release leave the lock unchanged.",
		"All locks of a process have the same label by default: its calls would act on each other's locks.",
		labelIsNotTheOwner,
	},
	{
		"KeepIsForNobody",
		"After Release with Keep the lock stays taken for that time: no owner is granted it, and the owner that " +
			"released it can neither extend nor release it; afterwards it is free.",
		"Otherwise a job that several machines start at about the same time would run twice, and a delayed Extend " +
			"would bring a lock back.",
		keepIsForNobody,
	},

	{
		"CancelledAcquireExpires",
		"Whatever happens to an Acquire, its lock does not outlive its TTL: owner and expiry are set in one step.",
		"With SETNX followed by EXPIRE, a client that crashes or is cancelled between the two leaves a lock for " +
			"ever.",
		cancelledAcquireExpires,
	},
	{
		"CancelledReleaseReleases",
		"A Release eventually releases the lock, at whatever moment its context ends.",
		"Callers release locks when they stop working, often with an ended context: the lock would stay taken for a " +
			"whole TTL.",
		cancelledReleaseReleases,
	},
	{
		"ContextEndIsPrompt",
		"All methods return within milliseconds of the end of their context, even if the store does not answer.",
		"A context is how callers limit their waiting: without this, a hung store would hang its callers.",
		contextEndIsPrompt,
	},
	{
		"NoAnswerIsUnavailable",
		"While the store hangs or is unreachable, Acquire fails with ErrUnavailable, and Extend and Release fail " +
			"with an error that matches neither ErrHeld nor ErrNotHeld.",
		"If ErrHeld is reported, an outage looks like a busy lock and nobody is alerted; if ErrNotHeld is reported, " +
			"valid leases end.",
		noAnswerIsUnavailable,
	},
	{
		"RecoversAfterOutage",
		"After an outage of the store, locks can be acquired and released again.",
		"Otherwise every program would have to restart after each restart of the store.",
		recoversFromOutage,
	},
	{
		"ReleaseGoesOn",
		"If a Release cannot reach the store, the backend repeats it until it does: the lock is free soon after the " +
			"store is back.",
		"The caller has gone away and cannot repeat it: the lock would stay taken for a whole TTL after every short " +
			"outage.",
		releaseGoesOn,
	},
	{
		"LostReplyIsNoAnswer",
		"If a reply is lost, Acquire and AcquireMany are granted or fail with ErrUnavailable but never with ErrHeld, " +
			"Extend and Release never fail with ErrNotHeld, and no lock is left behind.",
		"A repeated script that is not idempotent reports the effect of its own first execution, as ErrHeld or " +
			"ErrNotHeld.",
		lostReplyIsNoAnswer,
	},
	{
		"CloseIsFinal",
		"Close returns, and afterwards Acquire fails with ErrClosed or ErrUnavailable and locks nothing.",
		"Nobody would renew or release a lock that a closed client has acquired.",
		closeIsFinal,
	},

	// Properties of a backend that implements backend.Queuer.
	{
		"QueueTellsThatItWaits",
		"Queue calls Waiting once, with a remaining time within the TTL, if another owner has the lock, and does " +
			"not call it if the lock is granted at once.",
		"The Client learns from this call that the lock is held: without it, the Client cannot tell a busy lock " +
			"from a failing store.",
		queueTellsThatItWaits,
	},
	{
		"QueueSaysWhatItSawLast",
		"If Queue ends without a grant, its error says what the last contact with the store has shown: another owner, " +
			"or a fault, which the call tolerates for its patience. It returns ErrClosed if the Client is closed.",
		"An outage that looks like a busy lock alerts nobody, and a call without patience would hang in an outage.",
		queueSaysWhatItSawLast,
	},

	{
		"NotifyLossTells",
		"NotifyLoss reports that a lock was deleted, with an error that matches ErrNotHeld, and reports nothing of a " +
			"lock that is held.",
		"A Client ends the lease without asking again: if the report is wrong, the lock is taken and nobody has it.",
		notifyLossTells,
	},

	// Properties of a backend that implements inspect.Watcher.
	{
		"WatchTells",
		"Watch calls changed after each grant, release and forced release of the lock, and when it is kept, whichever " +
			"client does it, and calls it at most once more after stop.",
		"Observers of an election look seldom at a store that tells of changes: they would believe in the former " +
			"leader for seconds.",
		watchTells,
	},
	{
		"WatchOutlivesOutages",
		"After an outage of the store Watch calls changed again after each change.",
		"Observers would believe in the former leader for seconds after each change, until the process ends.",
		watchOutlivesOutages,
	},

	// Properties of a backend that implements inspect.FenceRaiser.
	{
		"TokensAreRaised",
		"After RaiseFences, tokens of all keys are greater than the number that it was given, a smaller number changes " +
			"nothing, and locks that are held stay as they are.",
		"Operators call it when a program changes its store: the resource would refuse every holder of the new one.",
		tokensAreRaised,
	},
	{
		"RaisingIsOneStep",
		"Tokens that are granted during RaiseFences grow.",
		"A store that reads its counter and then sets it takes back the tokens that it grants in between: the resource " +
			"refuses the next holders.",
		raisingIsOneStep,
	},

	// Properties of a backend that implements backend.Notifier but not backend.Queuer.
	{
		"NotifyTells",
		"Notify calls wake when its subscription is active, live then reports true, and wake is called after each " +
			"release.",
		"Waiters that rely on notifications sleep for seconds: without the call the lock stays idle for that long.",
		notifyTells,
	},
	{
		"NotifyStops",
		"After stop, wake is called at most once more.",
		"Waiters come and go: if they are still notified after they have left, the work grows without bound.",
		notifyStops,
	},
}

func acquireTwiceIsGrantedTwice(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	for range 3 {
		req, sent := request("k", longTTL), time.Now()
		first, err := bs[0].Acquire(t.Context(), req)
		if err != nil {
			t.Fatalf("Acquire of a free lock: expected a grant, seen %v", err)
		}
		second, err := bs[0].Acquire(t.Context(), req)
		if err != nil {
			t.Errorf("the same Acquire again: expected a grant, seen %v", err)
			second = first
		}
		if second.Fence < first.Fence {
			t.Errorf("the same Acquire again: expected token %d again, seen a smaller one, %d", first.Fence,
				second.Fence)
		}
		held(bs[0], req, sent, second).must(t)
		next := grab(t, bs[1], "k", longTTL)
		if last := max(first.Fence, second.Fence); next.req.Fence <= last && backend.Of(bs[0]).Tokens {
			t.Errorf("a grant after one that was sent twice: expected a token greater than %d, seen %d", last,
				next.req.Fence)
		}
		next.must(t)
	}
}

func ttlIsKept(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	// Some stores count in milliseconds, in seconds or in minutes. One that rounds a TTL down, or to the nearest unit,
	// ends the lock early.
	const odd = 1430 * time.Millisecond
	ttls := []time.Duration{h.short(), h.ttl(h.short()/3 + 999*time.Microsecond), h.MinTTL.Truncate(time.Second) + odd}
	if h.Bubble != nil {
		ttls = append(ttls, time.Minute+odd)
	}
	for i, ttl := range ttls {
		i %= 2
		check := func(o *holding, since string) {
			next, at := grabWhenFree(t, bs[1-i], "k", longTTL, ttl+hangLimit)
			if early := o.sent.Add(ttl).Sub(at); early > h.drift(ttl) {
				t.Errorf("expected nobody to be granted the lock for %v from %s, seen it granted %v earlier", ttl,
					since, early)
			}
			next.must(t)
		}
		check(grab(t, bs[i], "k", ttl), "Acquire")

		o := grab(t, bs[i], "k", ttl)
		time.Sleep(ttl / 2)
		sent := time.Now()
		if err := o.extend(t.Context(), ttl); err == nil {
			o.sent = sent
		} else if o.sure(ttl) {
			t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
		}
		check(o, "Extend")

		if _, ok := bs[i].(backend.Queuer); !ok {
			continue
		}
		owner := grab(t, bs[1-i], "k", longTTL)
		ctx, cancel := context.WithTimeout(t.Context(), ttl+hangLimit)
		q := queue(ctx, bs[i], "k", ttl)
		q.waits(t)
		time.Sleep(ttl / 2)
		owner.must(t)
		o = q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
		cancel()
		if ahead := o.sent.Sub(q.at); ahead > 0 {
			t.Errorf("Sent: expected a time before Queue returned, seen one %v after it", ahead)
		}
		check(o, "Sent")
	}
}

func extendNeverShortens(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	o := grab(t, bs[0], "k", longTTL)
	if err := o.extend(t.Context(), h.short()); err != nil {
		t.Errorf("Extend by less than is left: expected no error, seen %v", err)
	}
	if early, err := acquire(t.Context(), bs[1], "k", longTTL); err == nil { // some stores count from when others look
		_ = early.release(t.Context())
	}
	time.Sleep(h.short()*3/2 + h.Granularity)
	if second, err := acquire(t.Context(), bs[1], "k", longTTL); err == nil {
		t.Error("after an Extend by less than was left: expected the owner's lock to be held, seen it granted to " +
			"another")
		_ = second.release(t.Context())
	}
	o.must(t)
}

// losses are the ways in which a lock is lost to its owner. Each leaves it free; k is the key. A slow store may have
// executed the acquisition long after it was sent, so expiry is waited for from its answer on.
//
// A lock that lasts too long is still its owner's, who may extend it. So another one with the same TTL, which nobody
// extends, has to become free before.
func losses(
	t testing.TB, h Harness, bs []backend.Backend, s Store,
	f func(what string, lose func(o *holding), ttl time.Duration),
) {
	f("expired", func(*holding) {
		grab(t, bs[0], "twin", h.short())
		time.Sleep(h.short()*5/4 + h.Granularity)
		next, err := acquireWithin(t, bs[1], "twin", h.short()+h.late())
		if err != nil {
			t.Fatalf("a lock with a TTL of %v, after more than that: it lasts too long, see ExpiryFrees: expected it to be "+
				"free, seen %v", h.short(), err)
		}
		next.must(t)
	}, h.short())
	if s.Delete != nil {
		f("deleted", func(*holding) { s.Delete("k") }, longTTL)
	}
}

func extendNeverCreates(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	check := func(what string, lose func(*holding), ttl time.Duration) {
		o := grab(t, bs[0], "k", ttl)
		lose(o)
		_ = o.extend(t.Context(), longTTL)
		// ExpiryFrees checks that an expired lock becomes free at once. A recreated lock stays.
		next, err := acquireWithin(t, bs[1], "k", hangLimit)
		if err != nil {
			t.Fatalf("a lock that was %s, after an Extend by its old owner: expected it to be free, seen %v", what, err)
		}
		next.must(t)
	}
	losses(t, h, bs, s, check)
	check("released", func(o *holding) { o.must(t) }, longTTL)
}

func extendTellsLoss(t testing.TB, h Harness) {
	bs, s := backends(t, h, 2)
	losses(t, h, bs, s, func(what string, lose func(*holding), ttl time.Duration) {
		for _, taken := range []bool{false, true} {
			o, _ := grabWhenFree(t, bs[0], "k", ttl, hangLimit)
			lose(o)
			var next *holding
			if taken {
				next, _ = grabWhenFree(t, bs[1], "k", longTTL, hangLimit)
				what += " and taken by another"
			}
			wantKind(t, "Extend of a lock that was "+what, o.extend(t.Context(), h.ttl(h.short()/4)), locker.ErrNotHeld)
			if taken {
				_ = next.release(t.Context())
			}
			if s.Delete != nil {
				s.Delete("k") // whatever the result of the call
			}
		}
	})
}

func earlierOwnersTouchNothing(t testing.TB, h Harness) {
	bs, s := backends(t, h, 3)
	keep := h.ttl(h.short() / 4)
	calls := []struct {
		op   string
		ttl  time.Duration // of the next owner's lock
		call func(o *holding)
	}{
		{"Extend", h.short(), func(o *holding) { _ = o.extend(t.Context(), longTTL) }},
		{"Release", longTTL, func(o *holding) { _ = o.release(t.Context()) }},
		{"Release with Keep", longTTL, func(o *holding) {
			_ = o.releaseKeeping(t.Context(), keep)
			time.Sleep(2 * keep)
		}},
	}
	check := func(what string, lose func(*holding), ttl time.Duration) {
		for _, c := range calls {
			o, _ := grabWhenFree(t, bs[0], "k", ttl, hangLimit)
			lose(o)
			next, _ := grabWhenFree(t, bs[1], "k", c.ttl, hangLimit)
			c.call(o)
			if third, err := acquire(t.Context(), bs[2], "k", longTTL); err == nil {
				if next.sure(c.ttl) {
					t.Errorf("after %s by the owner of a lock that was %s: expected the next owner to have it, seen it "+
						"granted to another", c.op, what)
				}
				_ = third.release(t.Context())
			}
			if err := next.extend(t.Context(), c.ttl); err != nil && next.sure(c.ttl) {
				t.Errorf("after %s by the owner of a lock that was %s: expected the next owner to have it, seen its "+
					"Extend fail: %v", c.op, what, err)
			}
			if c.ttl == longTTL {
				_ = next.release(t.Context())
				continue
			}
			third, _ := grabWhenFree(t, bs[2], "k", longTTL, c.ttl+hangLimit) // the lock was not prolonged either
			third.must(t)
		}
	}
	losses(t, h, bs, s, check)
	check("released before", func(o *holding) { o.must(t) }, longTTL)
}

func releaseIsOneStep(t testing.TB, h Harness) {
	const tries, step = 20, 100 * time.Microsecond
	ttl := h.ttl(20 * time.Millisecond)
	bs, _ := backends(t, h, 2)
	for i := range tries {
		o, _ := grabWhenFree(t, bs[0], "k", ttl, hangLimit)
		// The releases begin shortly before the end of the TTL, in small steps.
		time.Sleep(time.Until(o.sent.Add(ttl - (tries-time.Duration(i))*step)))
		var wg sync.WaitGroup
		wg.Go(func() { _ = o.release(t.Context()) })
		var next *holding
		for start := time.Now(); next == nil && time.Since(start) < hangLimit; time.Sleep(pause(start, step/2)) {
			next, _ = acquire(t.Context(), bs[1], "k", longTTL)
		}
		wg.Wait()
		if next == nil {
			t.Fatalf("expected the lock to be free after its Release, seen nothing for %v", hangLimit)
		}
		if err := next.extend(t.Context(), longTTL); err != nil {
			t.Fatalf("granted while an earlier owner released it %v before its end: expected the lock to be kept, "+
				"seen Extend fail: %v",
				(tries-time.Duration(i))*step, err)
		}
		next.must(t)
	}
}

func keepIsForNobody(t testing.TB, h Harness) {
	bs, _ := backends(t, h, 2)
	for _, ttl := range []time.Duration{longTTL, h.ttl(h.short() / 2)} { // Keep may end before or after the TTL
		keep := h.short()
		o := grab(t, bs[0], "k", ttl)
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		released := time.Now()
		if err := o.releaseKeeping(ctx, keep); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
		answered := time.Now()
		if err := o.extend(ctx, longTTL); err == nil {
			t.Error("Extend by the owner that released it with Keep: expected ErrNotHeld, seen no error")
		}
		_ = o.release(ctx) // it may report success again, but must not change the lock
		cancel()
		next, at := grabWhenFree(t, bs[1], "k", longTTL, keep+h.late()+slack)
		if early := released.Add(keep).Sub(at); early > 0 {
			t.Errorf("expected the lock to stay taken for %v from Release, seen it granted %v earlier", keep, early)
		}
		if late := at.Sub(answered.Add(keep)); late > h.late() {
			t.Errorf("expected the lock to be free %v after Release, seen it free %v later", keep, late)
		}
		next.must(t)
	}
}

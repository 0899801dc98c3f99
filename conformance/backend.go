package conformance

import (
	"slices"
	"testing"
)

// RunBackend checks a backend, with one subtest per property. It runs [RunLocker] over a [locker.Client] of the
// backend. It also checks the rules of [locker.Backend] that a Client hides or does not depend on, and the rules of the
// optional interfaces [locker.Queuer], [locker.Notifier], [locker.LossNotifier], [locker.ManyAcquirer] and
// inspect.Watcher if the backend implements them.
func RunBackend(t *testing.T, h Harness) {
	RunLocker(t, h)
	run(t, h, h.Bubble, slices.Concat(backendProperties, manyBackendProperties))
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
		"If a reply is lost, Acquire is granted or fails with ErrUnavailable but never with ErrHeld, Extend and " +
			"Release never fail with ErrNotHeld, and no lock is left behind.",
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

	// Properties of a backend that implements locker.Queuer.
	{
		"QueueTellsThatItWaits",
		"Queue calls Waiting once, with a remaining time within the TTL, if another owner has the lock, and does " +
			"not call it if the lock is granted at once.",
		"The Client learns from this call that the lock is held: without it, the Client cannot tell a busy lock " +
			"from a failing store.",
		queueTellsThatItWaits,
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

	// Properties of a backend that implements locker.Notifier but not locker.Queuer.
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

package conformance

import "testing"

// RunBackend checks a backend. It runs [RunLocker] over a [locker.Client] of the backend, and checks what only the backend
// by itself can break: the rules at [locker.Backend] that a Client does not depend on, or hides, and those at
// [locker.Queuer] and [locker.Notifier], which are skipped if the backend is none. One subtest per property.
func RunBackend(t *testing.T, h Harness) {
	RunLocker(t, h)
	run(t, h, h.Bubble, backendProperties)
}

var backendProperties = []property[Harness]{
	{
		"AcquireTwiceIsGrantedTwice", "Acquire is idempotent for its own token: executed twice it is granted twice, and released once; later fencing tokens are greater than both.",
		"Client libraries and proxies send again what was not answered: the owner would be told that another has its lock.", acquireTwiceIsGrantedTwice,
	},

	{
		"TTLIsKept", "Nobody else is granted a lock within the TTL from when Acquire or Extend was called, or from a queued Grant's Sent, to the last microsecond.",
		"The holder counts on that time from before its request was sent, and works until it is over.", ttlIsKept,
	},
	{
		"ExtendNeverShortens", "Extend by less than is left leaves the lock as it is.",
		"An extension that arrives late, after a longer one, would end the lock under a holder that works.", extendNeverShortens,
	},
	{
		"ExtendNeverCreates", "Extend of a lock that has expired, was deleted or released does not bring it back.",
		"Somebody may have had it in between; and one that arrives after its release locks for nobody.", extendNeverCreates,
	},
	{
		"ExtendTellsLoss", "Extend of a lock that its token does not own any more fails with ErrNotHeld.",
		"A renewal that seems to succeed lets the holder work on without a lock; one that seems to be a fault, until its end.", extendTellsLoss,
	},
	{
		"EarlierOwnersTouchNothing", "Extend, Release and Release with Keep by an earlier owner do not touch the next one's lock, also when the earlier owner has released it.",
		"A straggler that prolongs the next one's lock keeps it from ending when that one has crashed; one that deletes it lets a third in.", earlierOwnersTouchNothing,
	},
	{
		"ReleaseIsOneStep", "Release compares and deletes in one step: who is granted the lock while an earlier owner releases it keeps it.",
		"GET, compare, DEL looks right in every test but deletes the next one's lock when the TTL ends in between.", releaseIsOneStep,
	},
	{
		"KeepIsForNobody", "After Release with Keep the lock stays taken for that long: no other owner gets it, and the one that released it can neither extend nor release it; then it is free.",
		"Jobs that several machines start at about the same time would run twice; a straggling extension would revive a lock.", keepIsForNobody,
	},

	{
		"CancelledAcquireExpires", "Whatever becomes of an Acquire, no lock of its outlives its TTL: owner and expiry are set in one step.",
		"SETNX and then EXPIRE leaves a lock for ever when the client dies, or is cancelled, between the two.", cancelledAcquireExpires,
	},
	{
		"CancelledReleaseReleases", "A Release whose context ends at any moment does its work in the end.",
		"Release is called by those who leave: if it leaves with them, the lock stays for a whole TTL.", cancelledReleaseReleases,
	},
	{
		"ContextEndIsPrompt", "All methods return within milliseconds of their context's end although the store does not answer.",
		"A store that hangs would hang its users, and a context is how they bound that.", contextEndIsPrompt,
	},
	{
		"NoAnswerIsUnavailable", "While the store hangs or is unreachable, Acquire fails with ErrUnavailable, Extend and Release with an error that says neither held nor not held.",
		"Errors swallowed as held make an outage look like a busy lock, and nobody is called; as not held, they end leases that are sound.", noAnswerIsUnavailable,
	},
	{
		"RecoversAfterOutage", "When a store that was unreachable is back, locks can be acquired and released again.",
		"A store that restarts would be lost to the program until that restarts, too.", recoversFromOutage,
	},
	{
		"ReleaseGoesOn", "A Release that could not reach the store is tried again until it has: the lock is free soon after the store is back.",
		"The caller cannot do it: it has gone on. The lock would stay for a whole TTL after every hiccup.", releaseGoesOn,
	},
	{
		"LostReplyIsNoAnswer", "When a reply is lost, Acquire is granted or unavailable, never held by itself; Extend and Release never not held; and nothing stays locked.",
		"A script that is sent again and is not idempotent answers about its own first execution: held, not held.", lostReplyIsNoAnswer,
	},
	{
		"CloseIsFinal", "Close returns, and after it Acquire fails with ErrClosed or ErrUnavailable and locks nothing.",
		"A lock that is taken by a client that is closed has nobody to renew or release it.", closeIsFinal,
	},

	// Of a backend that is a locker.Queuer.
	{
		"QueueTellsThatItWaits", "Queue calls Waiting once when another owner has the lock, with a remaining time within the TTL, and not at all when it is granted at once.",
		"The Client's waiters rely on it to know that the lock is held: taken for waiting, one that only asks is borne too long when the store fails.", queueTellsThatItWaits,
	},

	// Of a backend that is a locker.Notifier, and no Queuer.
	{
		"NotifyTells", "Notify calls wake when it is sure to be told, live is true from then, and wake is called after each release.",
		"Waiters that rely on it sleep for seconds, and the lock is idle meanwhile.", notifyTells,
	},
	{
		"NotifyStops", "After stop, wake is called at most once more.",
		"Waiters come and go: what goes on calling them grows without bound.", notifyStops,
	},
}

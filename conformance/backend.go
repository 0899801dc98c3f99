package conformance

import (
	"testing"

	"github.com/golocker/locker"
)

// BackendHarness says how to build the backend under test, and what it is able to do.
type BackendHarness struct {
	// Store makes an empty store of locks. Required; called once per property, in the property's bubble if there is one.
	// What the Backends of the store do not close themselves, it closes by t.Cleanup.
	Store func(t testing.TB) BackendStore

	// Bubble runs each property in virtual time: testing/synctest.Test, for stores that live in the test's process
	// and speak to nothing outside it. nil: the properties run in real time, in parallel, and bounds are generous.
	Bubble func(t *testing.T, f func(t *testing.T))

	// Unfenced declares that the backend issues no fencing tokens: each grant's must then be 0.
	Unfenced bool

	// FIFO declares of a locker.Queuer that it serves in the order of arrival. false skips the property that checks it.
	FIFO bool
}

// BackendStore is one store of locks, as several processes share it. Only Open is required; the other functions do to
// the store what operators, networks and machines do, and each that is nil skips the properties that need it.
type BackendStore struct {
	// Open makes a Backend of the store that is as independent of the others as another process would be. Required. The
	// suite closes it if it is an io.Closer.
	Open func() locker.Backend

	// Delete removes the lock that the store keeps under key, behind the back of its holder.
	Delete func(key string)

	// Foreign puts something under key that is not a lock: of another type, or without an expiry. intact, which may be nil,
	// reports whether it is still there as it was.
	Foreign func(key string) (intact func() bool)

	// Hang makes the store stop answering until resume is called; requests made meanwhile may be executed after it, as on
	// a stopped process.
	Hang func() (resume func())

	// Down makes the store unreachable until up is called: requests fail, and are not executed. The store may have
	// forgotten everything by then.
	Down func() (up func())

	// LoseReply makes the store execute the next request of any Backend and lose the answer, together with its connection
	// if there is one. If the request is sent again, that gets through. A store of several nodes does so on each.
	LoseReply func()

	// Restart ends the store as a crash does, and starts it again with what it promises to keep over that. Locks may be lost,
	// fencing tokens not.
	Restart func()

	// Left lists what the store keeps: locks, places of those who wait, and whatever else it has made for them. Not counters,
	// which may stay, nor what marks an attempt as undone for as long as its TTL. A store of several nodes lists them all.
	Left func() []string

	// LoseMessages makes the store drop what it tells those who wait, until restore is called. Of a locker.Queuer only.
	LoseMessages func() (restore func())
}

// RunBackend checks a backend against the rules at [locker.Backend], one subtest per property, and at [locker.Queuer]
// and [locker.Notifier] if it is one; else those properties are skipped. It calls the Backend as a [locker.Client] does,
// but without one, so that a failure is about the method that broke the rule. RunLocker then shows that the whole works.
func RunBackend(t *testing.T, h BackendHarness) {
	if h.Store == nil {
		t.Fatal("conformance: BackendHarness needs Store")
	}
	run(t, h, h.Bubble, backendProperties)
}

var backendProperties = []property[BackendHarness]{
	{
		"OneOwner", "Acquire grants a lock to one owner at a time, over all Backends of the store.",
		"Two holders at once is the one thing that a lock is there to prevent.", oneOwner,
	},
	{
		"HeldIsHeld", "Acquire of a lock that another owner has fails at once with ErrHeld and nothing else, and leaves it alone; a HeldError knows a remaining time within the TTL.",
		"Waiters go by it: taken for a fault, a busy lock fails its callers; with a wild remaining time, they sleep too long.", heldIsHeld,
	},
	{
		"AcquireTwiceIsGrantedTwice", "Acquire is idempotent for its own token: executed twice it is granted twice, and released once.",
		"Client libraries and proxies send again what was not answered: the owner would be told that another has its lock.", acquireTwiceIsGrantedTwice,
	},
	{
		"ReleaseFrees", "After Release the lock is free for everybody, at once.",
		"A lock that stays taken stops everybody for a whole TTL, each time.", releaseFrees,
	},
	{
		"KeysDoNotTouch", "Locks with different keys do not touch each other, whatever bytes the keys consist of.",
		"Keys come from data: one that collides with another, or is cut, makes strangers wait or lets two in.", keysDoNotTouch,
	},
	{
		"NothingIsLeft", "Of locks that were released, or whose time is over, and of who waited for them, the store keeps nothing but counters.",
		"Keys come from data: what stays for each that was ever locked fills the store.", nothingIsLeft,
	},

	{
		"FenceGrows", "Every grant of a key has a greater fencing token than all before it, over all Backends; 0 if unfenced is declared.",
		"The resource refuses smaller tokens than it has seen: the new holder would be turned away, or an old one let in.", fenceGrowsByGrant,
	},
	{
		"FenceIsUnique", "No token is granted twice, whatever becomes of other attempts: cancelled, sent again, unanswered, in vain.",
		"A token that is given back, or counted in two places, makes a stale holder look like the new one to the resource.", fenceIsUnique,
	},
	{
		"FenceOutlivesTheLock", "Tokens go on growing after a lock has expired, was deleted, or was kept for a while.",
		"A counter that goes with its lock starts again just when a stale holder is about: its token is the next one's.", fenceOutlivesTheLock,
	},
	{
		"FenceSurvivesRestart", "Tokens go on growing after a restart that keeps what the store promises to keep, whatever becomes of the locks.",
		"Holders outlive the store they locked at: started anew, it gives their tokens, which the resource knows, to others.", fenceSurvivesRestart,
	},

	{
		"TTLIsKept", "Nobody else is granted a lock within the TTL from when Acquire was called, to the last microsecond.",
		"The holder counts on that time from before its request was sent, and works until it is over.", ttlIsKept,
	},
	{
		"ExpiryFrees", "A lock that is not extended is free after its TTL without anybody's doing.",
		"A holder that has crashed must not keep the others out for ever.", expiryFreesByItself,
	},
	{
		"ExtendKeeps", "Extend sets the end of a held lock to the TTL from when it was called, and then it ends.",
		"The holder goes on working because Extend said yes.", extendKeepsTheLock,
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
		"ExtendSparesSuccessor", "Extend by an earlier owner does not touch the next one's lock.",
		"A stale holder that renews the next one's lock keeps it from ending when that one has crashed.", extendSparesTheNext,
	},
	{
		"ReleaseTellsLoss", "Release of a lock that its token does not own any more fails with ErrNotHeld.",
		"It is the last chance to learn that the work was not exclusive to its end.", releaseTellsLoss,
	},
	{
		"ReleaseSparesSuccessor", "Release by an earlier owner does not touch the next one's lock.",
		"A slow holder that deletes the next one's lock lets a third in: DEL without comparing.", releaseSparesTheNext,
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
		"CancelledAcquireLeavesNothing", "An Acquire whose context ends at any moment and that fails leaves no lock behind.",
		"A lock that was taken for somebody who has left keeps everybody out for a whole TTL.", cancelledAcquireLeavesNothing,
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
		"LateAcquireIsUndone", "An Acquire that failed because the store hangs leaves no lock when it is executed after all.",
		"It is executed when the store wakes, for somebody who has long left, and keeps everybody out for a whole TTL.", lateAcquireIsUndone,
	},
	{
		"HungIsUnavailable", "While the store hangs, Acquire fails with ErrUnavailable, Extend and Release with an error that says neither held nor not held.",
		"Nobody answered, so nobody knows: callers told held wait for nobody, holders told not held stop for nothing.", hungIsUnavailable,
	},
	{
		"DownIsUnavailable", "While the store is unreachable, Acquire fails with ErrUnavailable, Extend and Release with an error that says neither held nor not held.",
		"Errors swallowed as held make an outage look like a busy lock, and nobody is called; as not held, they end leases that are sound.", downIsUnavailable,
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
		"ForeignIsLeftAlone", "What is under a key and is not a lock is left alone, with ErrForeignKey.",
		"Waiting for it is waiting for ever, and deleting it is deleting somebody's data.", foreignIsLeftAlone,
	},
	{
		"CloseIsFinal", "Close returns, and after it Acquire fails with ErrClosed or ErrUnavailable and locks nothing.",
		"A lock that is taken by a client that is closed has nobody to renew or release it.", closeIsFinal,
	},

	// Of a backend that is a locker.Queuer.
	{
		"QueueGrantsAtOnce", "Queue of a free lock is granted at once, and Waiting is not called.",
		"Nobody is there to hand it over: who waits for that waits for ever.", queueGrantsAtOnce,
	},
	{
		"QueueWaits", "Queue calls Waiting once and waits while another owner has the lock; it is granted when that is released.",
		"A waiter that is not served hangs its program; one that is served early is a second holder.", queueWaits,
	},
	{
		"QueueOutlivesTheHolder", "Queue is granted the lock when its holder's time is over, too.",
		"A holder that crashes releases nothing and tells nobody: those who wait would wait for ever.", queueOutlivesTheHolder,
	},
	{
		"QueueServesInOrder", "Queue is granted in the order in which the calls began to wait.",
		"Who relies on order to bound its waiting waits longer than it was promised.", queueServesInOrder,
	},
	{
		"QueueEndsWithTheContext", "Queue returns within milliseconds of its context's end, with ErrHeld if another owner has the lock, and of the end of Closing with ErrClosed.",
		"Who waits for a lock must be able to stop waiting, and is told that the lock was busy, not the store broken.", queueEndsWithTheContext,
	},
	{
		"LeavingStallsNobody", "A Queue whose context ends at any moment leaves neither a lock nor a place: who waits behind it is served as soon.",
		"A lock that is handed to somebody who has left stalls all who wait behind.", leavingStallsNobody,
	},
	{
		"QueueSentIsTheStart", "Nobody else is granted a lock within the TTL from a queued Grant's Sent.",
		"A lock is handed over some time before its new owner hears of it: counted from then, it works for too long.", queueSentIsTheStart,
	},
	{
		"LostMessagesDelay", "Queue whose messages are lost is granted the lock nevertheless, later.",
		"Messages are at most once: one that is lost would hang its waiter, and those behind it.", lostMessagesDelay,
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

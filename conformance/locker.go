package conformance

import "testing"

// RunLocker checks a Locker (a backend under a [locker.Client], with whatever middleware around it) against the rules at
// [locker.Locker], [locker.Lease] and [locker.Backend], one subtest per property.
func RunLocker(t *testing.T, h Harness) {
	if h.Store == nil {
		t.Fatal("conformance: Harness needs Store")
	}
	run(t, h, h.Bubble, lockerProperties)
}

var lockerProperties = []property[Harness]{
	{
		"MutualExclusion", "A lock has at most one holder at a time, over all clients of the store.",
		"Two holders at once is the one thing that a lock is there to prevent.", mutualExclusion,
	},
	{
		"TryLockHeld", "TryLock of a held lock fails at once with ErrHeld and nothing else, also for the client that holds it, and leaves the lock alone; a HeldError knows a remaining time within the TTL.",
		"Callers skip or wait when they are told held; told anything else they give up, or take the lock for theirs; with a wild remaining time, they sleep too long.", tryLockHeld,
	},
	{
		"LeaseDescribesItself", "A lease knows its key, has an owner token of its own, is open and valid.",
		"Whoever stores, logs or compares leases relies on what they say; a token used twice lets one attempt undo another.", leaseDescribesItself,
	},
	{
		"UnlockFrees", "After Unlock the lock is free for everybody, at once.",
		"A lock that stays taken stops everybody for a whole TTL, each time.", unlockFrees,
	},
	{
		"KeysAreIndependent", "Locks with different keys do not touch each other, whatever bytes the keys consist of.",
		"Keys come from data: one that collides with another, or is cut, makes strangers wait or lets two in.", keysAreIndependent,
	},
	{
		"WaiterIsServed", "Lock waits while the lock is held and gets it after Unlock.",
		"A waiter that is not served hangs its program; one that is served early is a second holder.", waiterIsServed,
	},
	{
		"FenceGrows", "Every acquisition of a key has a greater fencing token than all before it, over all clients; 0 if Unfenced is declared.",
		"The resource refuses tokens smaller than it has seen: a holder with a small one is turned away, a stale one with a great one let in.", fenceGrows,
	},
	{
		"FenceIsUnique", "No token is given twice, whatever becomes of other attempts: cancelled, unanswered, in vain, their replies lost.",
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
		"NothingIsLeft", "Of locks that were unlocked, or whose time is over, and of who waited for them, the store keeps nothing but counters.",
		"Keys come from data: what stays for each that was ever locked fills the store.", nothingIsLeft,
	},
	{
		"BadInputIsRefused", "A TTL out of range, an empty or an oversized key fails with ErrInvalid, and changes nothing.",
		"A TTL that is adjusted behind the caller's back, or an empty key, locks something else than was asked for.", badInputIsRefused,
	},

	{
		"ExpiryFrees", "A lock whose lease is not renewed is free after the TTL without anybody's doing, for TryLock and for Lock that waits.",
		"A holder that has crashed releases nothing and tells nobody: it must not keep the others out for ever.", expiryFrees,
	},
	{
		"UntilIsConservative", "Nobody else gets the lock before Until.",
		"The holder works until Until: if somebody else can have the lock before, both work.", untilIsConservative,
	},
	{
		"DoneBeforeUntil", "Done is closed no later than Until, and Err then says that the lock is lost.",
		"Done is what stops the holder's work; late, it works on while the next one has the lock.", doneBeforeUntil,
	},
	{
		"RenewalKeeps", "A lease that is renewed keeps the lock for many TTLs, and stops when it is unlocked.",
		"Work that takes longer than the TTL would lose its lock in the middle; renewal that does not stop keeps it for ever.", renewalKeeps,
	},
	{
		"ExtendKeeps", "Extend prolongs a lease, at the store too: nobody else gets the lock before the new Until, and then it is free.",
		"The caller goes on working because Extend said yes.", extendKeeps,
	},
	{
		"ExtendSparesSuccessor", "Extend of a lease that has ended fails with ErrLost and does not touch the next holder's.",
		"A stale holder that takes the next one's lock for its own is a second holder.", extendSparesSuccessor,
	},
	{
		"UnlockSparesSuccessor", "Unlock of a lease that has ended fails with ErrNotHeld, whether there is a next holder or not, and does not touch that one's.",
		"A slow holder that deletes the next one's lock lets a third in: DEL without comparing is how most home-made locks fail.", unlockSparesSuccessor,
	},
	{
		"DoubleUnlock", "A second Unlock fails with ErrUnlocked and does not touch the next holder's lease.",
		"A deferred second Unlock is common; it must not open somebody else's lock.", doubleUnlock,
	},
	{
		"LossIsNoticed", "A lock that was deleted at the store ends its lease within one TTL, and Unlock reports ErrNotHeld.",
		"A holder that is not told works on without its lock.", lossIsNoticed,
	},

	{
		"EndedContext", "With a context that has ended nothing is locked, and the error matches the context's.",
		"Who has left must not become a holder that nobody knows of.", endedContext,
	},
	{
		"ContextEndsWaiting", "Waiting ends within milliseconds of the context's end, leaving nothing; the error matches the context's and ErrHeld.",
		"The caller tells a busy lock from a broken store, and its own end from both, by the error.", contextEndsWaiting,
	},
	{
		"CancelledAttemptsLeaveNothing", "Attempts of Lock and TryLock whose context ended at any moment leave no lock behind.",
		"A lock that was taken for somebody who has left keeps everybody out for a whole TTL.", cancelledAttemptsLeaveNothing,
	},
	{
		"UnlockIgnoresEndedContext", "Unlock releases the lock even if its context has ended.",
		"Unlock is deferred, and by then the context has often ended: the lock would stay for a whole TTL.", unlockIgnoresEndedContext,
	},
	{
		"LatencyCounts", "Until counts from before the request was sent, however late the answer comes; with nothing left of the TTL, TryLock fails with ErrUnavailable and leaves no lock.",
		"Counted from the answer, the holder works on for as long as the answer took, while the next one has the lock.", latencyCounts,
	},
	{
		"HungStoreIsBounded", "Calls return soon after their context's end although the store does not answer, with ErrUnavailable; a held lease ends in time; afterwards no lock is left, however late the attempts are executed.",
		"A store that hangs must not hang its users, nor make them believe that they still hold, or that somebody else does.", hungStoreIsBounded,
	},
	{
		"NobodyStarves", "Of clients that want a lock again and again each gets it again and again.",
		"A client that never gets its turn is as good as down.", nobodyStarves,
	},
	{
		"ServedInOrder", "Clients that wait for a lock get it in the order in which they began to wait.",
		"Who relies on order to bound its waiting waits longer than it was promised.", servedInOrder,
	},
	{
		"LeavingWaiterStallsNobody", "A waiter whose context ends at any moment leaves neither a lock nor a place: who waits behind it gets the lock as soon.",
		"A lock that is handed to somebody who has left stalls all who wait behind.", leavingWaiterStallsNobody,
	},
	{
		"LostMessagesDelay", "Lock whose messages are lost gets the lock nevertheless, later.",
		"Messages are at most once: one that is lost would hang its waiter, and those behind it.", lostMessagesDelay,
	},
	{
		"MinHoldKeeps", "After Unlock the lock stays taken, by nobody, until MinHold is over, and then is free, for those who wait too.",
		"Jobs that several machines start at about the same time would run twice.", minHoldKeeps,
	},
	{
		"MaxHoldEnds", "A lease ends when MaxHold is over although it is renewed; the lock is free after Unlock.",
		"Work that hangs would keep its lock for ever.", maxHoldEnds,
	},
	{
		"ForeignKeyIsRefused", "What is under a key and is not a lock is left alone and not waited for: Lock and TryLock fail at once with ErrForeignKey.",
		"Nobody ever releases it: Lock would wait for ever, and nobody would be told why. Deleting it is deleting somebody's data.", foreignKeyIsRefused,
	},
	{
		"CloseEndsWaiting", "Close of a client ends its waiting calls within milliseconds, with ErrClosed, and later ones too, and leaves the lock alone.",
		"A program that shuts down would hang in its waiting calls.", closeEndsWaiting,
	},
	{
		"InspectionTells", "An Inspector says whether a lock is free, held or kept, for how long, and by whom, without giving the owner's token away.",
		"Operators act on what it says; whoever has the token can release the lock.", inspectionTells,
	},
	{
		"ForceReleaseTakes", "A lock that is taken by force goes to who waits for it; its owner learns that it is lost; nobody else's is touched.",
		"It is the way out when a holder hangs; from the wrong owner, or unnoticed by its owner, it makes two holders.", forceReleaseTakes,
	},
}

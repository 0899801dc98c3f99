package conformance

// manyProperties are those of locker.LockAll and locker.TryLockAll.
var manyProperties = []property[Harness]{
	{
		"ManyAcquireAll",
		"LockAll and TryLockAll acquire the lock of each key once, in whatever order and however often it is named; " +
			"the lease is valid for its TTL, Extend prolongs it, and Unlock frees all locks.",
		"A program works on all of what it has named: a lock that it does not have, or does not give back, protects " +
			"nothing or blocks everybody.",
		manyAcquireAll,
	},
	{
		"ManyAcquireNothing",
		"If one of the locks is held, TryLockAll fails with ErrHeld, and LockAll waits until its context ends and then " +
			"fails with that error, too; the error names the key that is held, and none of the others stays taken.",
		"A caller that was told that it has nothing releases nothing: what it has nevertheless blocks everybody for a " +
			"whole TTL.",
		manyAcquireNothing,
	},
	{
		"ManyCancelledLeaveNothing",
		"LockAll and TryLockAll leave no lock behind, at whatever moment their context ends.",
		"Locks that are acquired for a caller who has gone away block everybody for a whole TTL, and there are several.",
		manyCancelledLeaveNothing,
	},
	{
		"ManyFencesGrow",
		"Each lock that was acquired with others has a fencing token that is greater than all earlier tokens of its " +
			"key, and smaller than all later ones, however those were acquired; if Unfenced is declared, it is 0.",
		"Each protected resource compares the token of its own lock, whoever comes before and after.",
		manyFencesGrow,
	},
	{
		"ManyLossEnds",
		"If one of the locks is lost, the lease ends with ErrLost within one TTL, and names that lock; the others stay " +
			"taken until Unlock, which reports the loss and frees them.",
		"The code that the locks protect relies on all of them, and may still be running.",
		manyLossEnds,
	},
	{
		"ManyExclude",
		"Locks that are acquired together and one at a time exclude each other, whoever holds which of them, and no " +
			"calls wait for each other in a circle.",
		"Programs that need several locks at once share them with programs that need one, and with each other.",
		manyExclude,
	},
	{
		"ManyInOneStep",
		"If Steps is declared, several free locks of one hash slot are acquired in one step, and a step that finds one " +
			"of them held has never taken the others.",
		"A caller that takes the locks one after the other needs a round trip for each, and is in the way of others " +
			"although it acquires nothing.",
		manyInOneStep,
	},
}

// manyBackendProperties are those of a backend that implements locker.ManyAcquirer.
var manyBackendProperties = []property[Harness]{
	{
		"ManyGrantEach",
		"AcquireMany grants each lock to the token of its request: nobody else is granted it within its TTL, counted " +
			"from the call, and its owner can extend and release it without touching the others.",
		"The Client renews and releases each of the locks by itself, and counts the TTL of each from before the request.",
		manyGrantEach,
	},
	{
		"ManyTwiceAreGrantedTwice",
		"AcquireMany is idempotent for its own tokens: if it is executed twice, it is granted twice and released by one " +
			"Release of each lock.",
		"Client libraries and proxies repeat requests that were not answered: without idempotence the owner would be " +
			"told that somebody else has its locks.",
		manyTwiceAreGrantedTwice,
	},
	{
		"ManyTouchNothing",
		"AcquireMany that finds a lock held grants none of the locks, and changes nothing about the lock that is held.",
		"An attempt that fails must not keep the lock of a holder that has crashed, nor any other.",
		manyTouchNothing,
	},
	{
		"ManyOvertakeNobody",
		"AcquireMany is not granted a lock that callers wait for in the queue.",
		"Callers that need several locks would be served before those that have waited for one.",
		manyOvertakeNobody,
	},
	{
		"ManyLostReplyLeavesNothing",
		"If the reply to AcquireMany is lost, AcquireMany is granted or fails with ErrUnavailable but never with " +
			"ErrHeld, and none of the locks is left behind.",
		"An attempt whose outcome is unknown has to be undone for each of its locks: those that are forgotten block " +
			"everybody for a whole TTL.",
		manyLostReplyLeavesNothing,
	},
}

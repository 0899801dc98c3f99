package conformance

import (
	"testing"

	"github.com/golocker/locker"
)

// LockerHarness says how to build the locker under test.
type LockerHarness struct {
	// Store makes an empty store of locks. Required; called once per property, in the property's bubble if there is one.
	// What the Lockers of the store do not close themselves, it closes by t.Cleanup.
	Store func(t testing.TB) LockerStore

	// Bubble runs each property in virtual time: testing/synctest.Test, for stores that live in the test's process
	// and speak to nothing outside it. nil: the properties run in real time, in parallel.
	Bubble func(t *testing.T, f func(t *testing.T))

	// Unfenced declares that the backend issues no fencing tokens: each lease's must then be 0.
	Unfenced bool

	// FIFO declares that a lock goes to the client that began to wait for it first. false skips the property that checks it.
	FIFO bool
}

// LockerStore is one store of locks, as several processes share it.
type LockerStore struct {
	// Client makes a Locker of the store that is as independent of the others as another process would be. Required. The
	// suite closes it if it has an io.Closer.
	Client func() locker.Locker

	// Delete removes what the store keeps under key, behind the back of its holder. nil skips the properties that
	// need it.
	Delete func(key string)

	// Hang makes the store stop answering until resume is called; requests made meanwhile may be executed after it, as on
	// a stopped process. nil skips the properties that need it.
	Hang func() (resume func())
}

// RunLocker checks a Locker (a backend under a [locker.Client], with whatever middleware around it) against the rules at
// [locker.Locker], [locker.Lease] and [locker.Backend], one subtest per property.
func RunLocker(t *testing.T, h LockerHarness) {
	if h.Store == nil {
		t.Fatal("conformance: LockerHarness needs Store")
	}
	if h.Bubble == nil {
		run(t, h, lockerProperties)
		return
	}
	for _, p := range lockerProperties {
		t.Run(p.name, func(t *testing.T) {
			h.Bubble(t, func(t *testing.T) { p.verify(t, h) })
		})
	}
}

var lockerProperties = []property[LockerHarness]{
	{"MutualExclusion", "A lock has at most one holder at a time, over all clients of the store.", mutualExclusion},
	{"TryLockHeld", "TryLock of a held lock fails at once with ErrHeld and nothing else, also for the client that holds it.", tryLockHeld},
	{"LeaseDescribesItself", "A lease knows its key, has an owner token of its own, is open and valid.", leaseDescribesItself},
	{"UnlockFrees", "After Unlock the lock is free for everybody, at once.", unlockFrees},
	{"KeysAreIndependent", "Locks with different keys do not touch each other, whatever bytes the keys consist of.", keysAreIndependent},
	{"WaiterIsServed", "Lock waits while the lock is held and gets it after Unlock.", waiterIsServed},
	{"FenceGrows", "Every acquisition of a key has a greater fencing token than all before it, over all clients.", fenceGrows},
	{"BadInputIsRefused", "A TTL out of range, an empty or an oversized key is an error that names the problem, and changes nothing.", badInputIsRefused},

	{"ExpiryFrees", "A lease that is not renewed ends after its TTL without anybody's doing.", expiryFrees},
	{"UntilIsConservative", "Nobody else gets the lock before Until.", untilIsConservative},
	{"DoneBeforeUntil", "Done is closed no later than Until, and Err then says that the lock is lost.", doneBeforeUntil},
	{"RenewalKeeps", "A lease that is renewed keeps the lock for many TTLs, and stops when it is unlocked.", renewalKeeps},
	{"ExtendKeeps", "Extend prolongs a lease, at the store too.", extendKeeps},
	{"ExtendSparesSuccessor", "Extend of a lease that has ended fails with ErrLost and does not touch the next holder's.", extendSparesSuccessor},
	{"UnlockSparesSuccessor", "Unlock of a lease that has ended fails with ErrNotHeld and does not touch the next holder's.", unlockSparesSuccessor},
	{"DoubleUnlock", "A second Unlock fails with ErrUnlocked and does not touch the next holder's lease.", doubleUnlock},
	{"LossIsNoticed", "A lock that was deleted at the store ends its lease within one TTL, and Unlock reports ErrNotHeld.", lossIsNoticed},

	{"EndedContext", "With a context that has ended nothing is locked, and the error matches the context's.", endedContext},
	{"ContextEndsWaiting", "Waiting ends with the context; the error matches the context's and ErrHeld.", contextEndsWaiting},
	{"CancelledAttemptsLeaveNothing", "Attempts whose context ended at any moment leave no lock behind.", cancelledAttemptsLeaveNothing},
	{"UnlockIgnoresEndedContext", "Unlock releases the lock even if its context has ended.", unlockIgnoresEndedContext},
	{"HungStoreIsBounded", "Calls return soon after their context's end although the store does not answer, with ErrUnavailable; a held lease ends in time; afterwards no lock is left.", hungStoreIsBounded},
	{"NobodyStarves", "Of clients that want a lock again and again each gets it again and again.", nobodyStarves},
	{"ServedInOrder", "Clients that wait for a lock get it in the order in which they began to wait.", servedInOrder},
	{"LeavingWaiterStallsNobody", "A waiter whose context ends at any moment neither keeps the lock nor loses it: who waits behind it gets the lock as soon.", leavingWaiterStallsNobody},
	{"MinHoldKeeps", "After Unlock the lock stays taken, by nobody, until MinHold is over, and then is free, for those who wait too.", minHoldKeeps},
	{"MaxHoldEnds", "A lease ends when MaxHold is over although it is renewed; the lock is free after Unlock.", maxHoldEnds},
	{"CloseEndsWaiting", "Close of a client ends its waiting calls with ErrClosed, and later ones too.", closeEndsWaiting},
}

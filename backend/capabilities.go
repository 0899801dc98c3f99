package backend

import "time"

// Capable is an optional interface that may be implemented by a [Backend]. If not, the store can do nothing that
// [Capabilities] leaves to it.
type Capable interface {
	// Capabilities returns what the store can do. The answer is the same for the life of the backend, and needs no
	// contact with the store.
	Capabilities() Capabilities
}

// Capabilities is what a store can do beyond the three methods of a [Backend]. A false or zero field says that it
// cannot, so a store declines by leaving it out. docs/backends/README.md has those of all stores of this module.
//
// The first fields are stated by the store; see [Capable]. The others are said by the interfaces that its Backend
// implements: [Of] sets them, and the store leaves them out.
type Capabilities struct {
	// Tokens says that there are fencing tokens, which grow from grant to grant of a key; see Grant.Fence.
	Tokens bool

	// CommonTokens says that tokens also grow over keys that have a common hash tag, a part in braces as in {a}b: the
	// token of a call that begins after another call was granted is greater, of whichever of these keys. Packages
	// semaphore and rwlock need it for tokens in order over all their locks.
	CommonTokens bool

	// Blocks says that a grant can have several tokens; see Grant.Fences. If not, callers of one Client do not hand locks
	// over to each other.
	Blocks bool

	// Order says that waiters get the lock in the order of their arrival, whichever Client they are of; but see the option
	// NoLocalHandover.
	Order bool

	// Labels says that labels are kept with the locks; see Request.Label.
	Labels bool

	// CountsTime says that locks end by a clock that all clients of the store share. If not, each process counts a TTL
	// from when it has first seen the lock, so one that looks once never gets the lock of a holder that has crashed; see
	// HeldError.Seen.
	CountsTime bool

	// AnswersWanted says that the answers to Extend tell whether others wait; see Request.Wanted.
	AnswersWanted bool

	// Some says that the [ManyAcquirer] acquires some of several locks, and looks at gates; see [Choice]. If not, packages
	// semaphore and rwlock take a round trip more.
	Some bool

	// Groups says that the store has one state and one queue for the permits of a group; see [Group]. The Backend is a
	// [Queuer] then. If not, package semaphore makes a lock of each permit, and one of a gate.
	Groups bool

	// Kinds says that such a group may have shared, upgradeable and exclusive locks instead of permits; see [Kind]. If
	// not, package rwlock makes 64 locks of a key, and two of gates.
	Kinds bool

	// Look is the longest pause between two looks at a lock by a waiter, if each of them has a price. 0 means that the
	// store has a queue, or tells of releases, or that a look costs nothing. Locks that are held only while their holder
	// waits have a TTL of ten looks at least, because renewals have a price, too.
	Look time.Duration

	// ListPrice says, in the words of an error message, why a list of all locks costs money; see inspect.Lister. Empty
	// means that it does not.
	ListPrice string

	Many        bool // [ManyAcquirer]: LockAll acquires free locks in one step, up to a number, and on one server
	TellsWanted bool // [WantedNotifier]: holders learn at once that others wait
	TellsLoss   bool // [LossNotifier]: holders learn at once that a lock was lost
	Verify      bool // [Verifier]: leases can be verified
	Bind        bool // [Binder]: something in the store can be bound to a lock, such as a transaction
	Export      bool // [Exporter]: a lease can be passed on to another process
}

// Of returns the capabilities of b: what it states, and what its interfaces say.
func Of(b Backend) Capabilities {
	var c Capabilities
	if s, ok := b.(Capable); ok {
		c = s.Capabilities()
	}
	_, c.Many = b.(ManyAcquirer)
	_, c.TellsWanted = b.(WantedNotifier)
	_, c.TellsLoss = b.(LossNotifier)
	_, c.Verify = b.(Verifier)
	_, c.Bind = b.(Binder)
	_, c.Export = b.(Exporter)
	return c
}

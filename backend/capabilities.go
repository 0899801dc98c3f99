package backend

import (
	"time"
)

// Capable is an optional interface that may be implemented by a [Backend]. If not, the backend can do nothing that
// [Capabilities] names.
type Capable interface {
	// Capabilities returns what the store can do. The answer is the same for the life of the backend, and needs no
	// contact with the store.
	Capabilities() Capabilities
}

// Capabilities is what a store can do beyond the methods that its [Backend] has. A false or zero field says that it
// cannot, so a store declines by leaving it out.
type Capabilities struct {
	// AnswersWanted says that the answers to Extend tell whether others wait; see Request.Wanted. A [WantedNotifier] tells
	// before, and states this not.
	AnswersWanted bool

	// Some says that the [ManyAcquirer] acquires some of several locks, and looks at gates; see [Choice].
	Some bool

	// Look is the longest pause between two looks at a lock by a waiter, if each of them has a price. 0 means that the
	// store has a queue, or tells of releases, or that a look costs nothing. Others are asked less often then.
	Look time.Duration
}

package script

import "strings"

// Keys are the names one lock uses on a node. The lock itself is kept under its own name, verbatim, so that it excludes
// programs that use another library's SET NX PX on the same key. Everything else is derived from that and shares its
// hash slot, because a script may touch one slot only on Redis Cluster.
type Keys struct {
	Lock string

	base, kind string // derived names are base + what + kind
}

// What is derived, besides tombstones.
const (
	fenceName   = ":fence"
	queueName   = ":lockqueue"
	waitersName = ":lockwaiters"
	turnName    = ":lockturn"
)

// Each way to derive has a suffix of its own, so that no two locks share a counter: "a" and "{a}" have the same tag.
const (
	plainKind = ""
	tagKind   = ":t"
	slotKind  = ":s"
)

// KeysOf returns the names of the lock that is kept under a name.
func KeysOf(lock string) Keys {
	switch {
	case hasTag(lock): // its own tag decides the slot, in derived names too
		return Keys{lock, lock, tagKind}
	case !strings.ContainsRune(lock, '}'):
		return Keys{lock, "{" + lock + "}", plainKind}
	default:
		// A tag cannot contain a brace, so this name cannot be its own tag: take some tag of the same slot.
		return Keys{lock, "{" + tagOf(Slot(lock)) + "}}" + lock, slotKind}
	}
}

// Fence is the fencing counter.
func (k Keys) Fence() string { return k.base + fenceName + k.kind }

// Queue has the waiters by the time of their arrival.
func (k Keys) Queue() string { return k.base + queueName + k.kind }

// Waiters has what is known of each waiter.
func (k Keys) Waiters() string { return k.base + waitersName + k.kind }

// Turn has the waiter whose turn it is to ask the nodes of a Redlock.
func (k Keys) Turn() string { return k.base + turnName + k.kind }

// Tombstone keeps the attempt with that token from being executed after its release.
func (k Keys) Tombstone(token string) string { return k.base + ":gone:" + token }

// Free is the channel on which releases tell that the lock is free, where nobody queues for it.
func (k Keys) Free() string { return k.base + ":free" + k.kind }

// Reserved returns the end of the name by which lock belongs to another lock, and whether it does. Names of tombstones
// need no such care: they contain a token that nobody can guess.
func Reserved(lock string) (ending string, reserved bool) {
	if !hasTag(lock) {
		return "", false
	}
	for _, kind := range []string{plainKind, tagKind, slotKind} {
		for _, what := range []string{fenceName, queueName, waitersName, turnName} {
			if strings.HasSuffix(lock, what+kind) {
				return what + kind, true
			}
		}
	}
	return "", false
}

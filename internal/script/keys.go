package script

import "strings"

// Keys are the names that one lock uses on a node. The key of the lock itself has the lock's name, verbatim. So the
// lock excludes programs that use another library's SET NX PX on the same key. All other names are derived from that
// name. They have the same hash slot, because a script on Redis Cluster may use one slot only.
type Keys struct {
	Lock string

	base, kind string // derived names are base + what + kind
}

// The parts of derived names, besides tombstones.
const (
	fenceName   = ":fence"
	queueName   = ":lockqueue"
	waitersName = ":lockwaiters"
	turnName    = ":lockturn"
)

// The suffix of a derived name says how it was derived. So no two locks share a counter, although "a" and "{a}" have
// the same tag.
const (
	plainKind = ""
	tagKind   = ":t"
	slotKind  = ":s"
)

// KeysOf returns the names of the lock whose key is lock.
func KeysOf(lock string) Keys {
	switch {
	case hasTag(lock): // the derived names contain its tag
		return Keys{lock, lock, tagKind}
	case !strings.ContainsRune(lock, '}'):
		return Keys{lock, "{" + lock + "}", plainKind}
	default:
		// The name contains a brace, so it cannot be a tag itself. Use a tag of the same slot.
		return Keys{lock, "{" + tagOf(Slot(lock)) + "}}" + lock, slotKind}
	}
}

// Fence is the key of the fencing counter.
func (k Keys) Fence() string { return k.base + fenceName + k.kind }

// Queue is the key of the queue: a sorted set of the waiters by the time of their arrival.
func (k Keys) Queue() string { return k.base + queueName + k.kind }

// Waiters is the key of a hash with the data of each waiter.
func (k Keys) Waiters() string { return k.base + waitersName + k.kind }

// Turn is the key with the waiter whose turn it is to ask the nodes of a Redlock.
func (k Keys) Turn() string { return k.base + turnName + k.kind }

// Tombstone is the key of the tombstone of the attempt with that token. It keeps the attempt from being executed after
// its release.
func (k Keys) Tombstone(token string) string { return k.base + ":gone:" + token }

// Free is the channel on which releases publish that the lock is free, if nobody queues for it.
func (k Keys) Free() string { return k.base + ":free" + k.kind }

// Reserved reports whether the name lock may be that of a key that belongs to another lock, and returns the ending that
// says so. Names of tombstones need no such check, because they contain a token that nobody can guess.
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

// Package inspect lets operators see who has a lock, and take it away.
package inspect

import (
	"context"
	"time"
)

// Inspector is an optional interface that may be implemented by a backend.Backend. If not, the methods of its Client
// return an error that matches errors.ErrUnsupported. It is for operators, not for programs that use locks.
//
// locker.Client always implements Inspector. Use locker.As to find it behind middleware.
//
// The result may be out of date when it arrives. The only way to know that a lock is free is to acquire it.
type Inspector interface {
	// Inspect returns what the store knows about key. It changes nothing, and does not wait for the lock.
	//
	// If the store, or too many of its nodes, did not answer, the error matches locker.ErrUnavailable, and with nodes
	// also locker.ErrNoQuorum. The Inspection then contains what is known. If the key holds something that is not a
	// lock, the error is nil and the state is [Foreign].
	Inspect(ctx context.Context, key string) (Inspection, error)

	// ForceRelease takes the lock away from its owner and hands it to the next waiter. It is for an owner that hangs.
	//
	// ForceRelease does not stop the owner. Until its next renewal, or until the end of its validity at the latest, the
	// owner believes that it holds the lock, so two owners may be working at the same time. The lease of the old owner
	// then ends as lost, with the reason locker.LostTakenOver or locker.LostGone, and its Unlock fails with
	// locker.ErrNotHeld. Fencing tokens keep growing.
	//
	// The parameter owner is the token of the owner, or the beginning of it, such as [Inspection.Owner]. The lock is
	// taken only from an owner whose token begins with it. An empty owner matches every owner, and also a lock that
	// stays taken without an owner because of locker.MinHold. A group of which several owners have something needs an
	// owner.
	//
	// The Inspection shows the lock as it was just before, with the owner that lost it. If the lock changes hands in
	// between, the new owner keeps it.
	//
	// Errors match locker.ErrNotHeld if the lock is free or has another owner, locker.ErrForeignKey if the key holds
	// something that is not a lock, locker.ErrInvalid if the key cannot be used or an owner has to be named, and
	// locker.ErrUnavailable if it is not known whether the lock was taken.
	ForceRelease(ctx context.Context, key, owner string) (Inspection, error)
}

// Watcher is an optional interface that may be implemented by a backend.Backend that learns of each change of a lock's
// owner. If not, Watch of its Client returns an error that matches errors.ErrUnsupported.
//
// locker.Client always implements Watcher. Use locker.As to find it behind middleware. The backends in memory, etcd and
// NATS implement it. Those on Redis and PostgreSQL do not: a grant sends no message there, and each acquisition would
// have to send one, or to ask whether somebody watches.
type Watcher interface {
	// Watch calls changed after each change of the owner of key, until stop is called, and perhaps more often. To miss
	// nothing, call Inspect after Watch has returned. Watch reports every change that this Inspection does not show. It
	// reports changes during an outage of the store when the outage ends, by one call or more. changed must not block.
	// It is called without a mutex, and may be called once more after stop. A lock that expires has an owner until
	// somebody asks for it, so changed need not be called when the TTL ends.
	Watch(key string, changed func()) (stop func(), err error)
}

// State is the state of a lock.
type State string

const (
	// Free means that the lock has no owner and can be acquired.
	Free State = "free"
	// Held means that the lock has an owner.
	Held State = "held"
	// Kept means that the lock was released, but stays taken without an owner for a while; see locker.MinHold.
	Kept State = "kept"
	// Split means that no owner has a majority of the nodes of a Redlock, and that too few nodes are free for an
	// acquisition. Either several clients are trying to acquire the lock, or one has died while it tried.
	Split State = "split"
	// Foreign means that the key holds something that is not a lock.
	Foreign State = "foreign"
	// Unknown means that the store, or too many of its nodes, did not answer.
	Unknown State = "unknown"
)

// Inspection is what a store, or one of its nodes, knows about a lock.
type Inspection struct {
	State State

	// Owner is the beginning of the owner's token. It is long enough to tell owners apart, but does not allow anybody
	// to release the lock. If State is Kept, it is from the last owner's token, if that is known.
	Owner string

	// Label names the owner for people; see locker.Label. It is empty if the owner has none, if the store does not keep
	// labels, and if no owner has the lock.
	Label string

	// Remaining is the time after which the lock is free if nobody extends it. 0 means that the lock is free, or that
	// the time is not known.
	Remaining time.Duration

	// Seen is set on stores that do not count TTLs, whatever the State is, as in locker.HeldError. It is for how long this
	// process has known what is shown. Only those who go on watching the lock find that Remaining gets shorter: after a
	// crash of the owner, each process that looks for the first time is shown the whole TTL. 0: the store counts.
	Seen time.Duration

	// Held is how long the owner has held the lock, by the store's clock. 0 means that it is not known. If Seen is set,
	// the owner has held it for so long at least: what went by before Seen is known up to the last renewal only.
	//
	// On Redis, Held is derived from the fencing counter, which follows the server's clock. It is too small if that
	// clock was set back, and wrong if the owner does not use this library. On Redlock it is accurate to a tenth of a
	// second.
	Held time.Duration

	// Fence is the owner's fencing token, and the first of them if the callers of a Client hand the lock over to each
	// other. If the lock is free, no greater token has been issued for it as far as is known: on Redis, locks whose keys
	// have the same hash slot share the counter of tokens. 0 means that there is none.
	Fence uint64

	// Waiting is the number of Clients in the store's queue. Clients that poll are not counted, and neither is the one
	// whose turn it is to ask the nodes of a Redlock.
	Waiting int

	// Permits has the numbers of the permits that the owner has, if the key is the name of a group; see backend.Group.
	Permits []int

	// Kind is that of the lock which the owner has of a group: shared, upgradeable or exclusive; see backend.Kind. It is
	// empty for permits, and for a lock that is none of a group.
	Kind string

	// Holders has all owners of a group, in the order in which their time ends. What else is said of the group is about
	// the first of them. It is nil for a lock.
	Holders []Inspection

	// Nodes has the answer of each node of a Redlock, in the order of the configuration. It is nil if there is one
	// store.
	Nodes []Node
}

// Node is what one node of a quorum knows about a lock.
type Node struct {
	Name string // as in the errors of the store
	Inspection
	Err error // why the state is unknown, or why the node does not vote; else nil
}

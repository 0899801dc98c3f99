package script

import (
	"strconv"
	"time"
)

// Attempt is one attempt to acquire a lock on a node.
type Attempt struct {
	Keys
	Token string // is unique to the attempt
	// Node is the node's number, from 1, among the nodes of a Redlock. The lock's value ends with it, so that a server
	// with the addresses of two nodes is noticed; see alias.lua. A node that decides alone has 0.
	Node int
}

// Owner is the value of the lock while the attempt has it.
func (a Attempt) Owner() string {
	if a.Node == 0 {
		return a.Token
	}
	return a.Token + "|" + strconv.Itoa(a.Node)
}

func (a Attempt) tombstone() string { return a.Keys.Tombstone(a.Token) }

// Acquire takes the lock. The counter follows the clock, rounded down to quantum, in µs. hint is a counter seen on
// another node, or 0. [ReadAcquired] reads the reply.
func (a Attempt) Acquire(ttl time.Duration, quantum int64, hint uint64) Command {
	return acquireScript.call([]string{a.Lock, a.Fence(), a.tombstone()},
		a.Owner(), milliseconds(ttl), strconv.FormatInt(quantum, 10), decimal(hint))
}

// Raise raises the counter to fence while the lock is held. [ReadOwned] reads the reply.
func (a Attempt) Raise(fence uint64) Command {
	return raiseScript.call([]string{a.Lock, a.Fence()}, a.Owner(), decimal(fence))
}

// Extend makes a held lock last for ttl from now. fence is the token of its lease. [ReadOwned] reads the reply.
func (a Attempt) Extend(ttl time.Duration, fence uint64) Command {
	return extendScript.call([]string{a.Lock, a.Fence()}, a.Owner(), milliseconds(ttl), decimal(fence))
}

// Enqueue takes the lock, or a position in the queue, which the server keeps for lease. With a lease of 0 it does not
// wait. ticket is that of an earlier reply, or 0. A grant is published on channel, or nowhere if channel is empty.
// [ReadPosition] reads the reply.
func (a Attempt) Enqueue(ttl, lease time.Duration, ticket int64, channel string) Command {
	return enqueueScript.call([]string{a.Lock, a.Fence(), a.tombstone(), a.Queue(), a.Waiters()},
		a.Owner(), milliseconds(ttl)+":"+milliseconds(lease)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

// Claim takes over a lock that another owner's release has granted. [ReadPosition] reads the reply.
func (a Attempt) Claim(ttl time.Duration) Command {
	return claimScript.call([]string{a.Lock, a.Fence()}, milliseconds(ttl)+":"+a.Owner())
}

// Release releases what an attempt has, or may have. [ReadOwned] reads the reply to its Command.
type Release struct {
	Attempt
	Tombstone time.Duration // the life of the tombstone; 0: none is needed, because the attempt was executed
	Keep      time.Duration // how long the lock stays taken after its release
	// Certify is the token of the lease. The reply then says whether a newer token was issued. With 0, the script does
	// not look.
	Certify uint64
	Notify  Notify
	Turn    string // for NotifyTurn: the ID of the Turn with which the lock was acquired, or empty
	Leaves  bool   // for NotifyTurn: the Turn ends without a lease
}

// Notify says who is notified when a lock is released.
type Notify uint8

// The waiters that a release can notify.
const (
	NotifyNobody      Notify = iota // for an attempt that failed and that nobody waits for
	NotifySubscribers               // the subscribers of the channel Free
	NotifyQueue                     // the first waiter in the queue, which gets the lock
	NotifyTurn                      // the waiter whose turn it is, or which gets the turn now
)

// Command returns the release as a command.
func (r Release) Command() Command {
	args := milliseconds(r.Tombstone) + ":" + milliseconds(r.Keep) + ":" + decimal(r.Certify)
	keys := []string{r.Lock, r.tombstone(), r.Fence()}
	switch r.Notify {
	case NotifyQueue:
		return handoverScript.call(append(keys, r.Queue(), r.Waiters()), r.Owner(), args)
	case NotifyTurn:
		args = r.Owner() + ":" + args + ":" + r.Turn
		if r.Leaves {
			args += ":"
		}
		return turnReleaseScript.call(append(keys, r.Keys.Turn(), r.Queue(), r.Waiters()), args)
	case NotifySubscribers:
		return releaseScript.call(keys, r.Owner(), args+":"+r.Free())
	default:
		return releaseScript.call(keys, r.Owner(), args+":")
	}
}

// Ask takes a position in the queue for the turn to ask for a lock, or keeps it, as Enqueue does. [ReadStanding] reads
// the reply.
func (k Keys) Ask(id string, lease time.Duration, ticket int64, channel string) Command {
	return turnScript.call([]string{k.Lock, k.Turn(), k.Queue(), k.Waiters()},
		id, milliseconds(lease)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

// Inspect asks for the state of the lock. [ReadState] reads the reply.
func (k Keys) Inspect() Command {
	return inspectScript.call([]string{k.Lock, k.Fence(), k.Queue(), k.Waiters()})
}

// Force takes the lock from the owner whose value it has. tombstone is the life of a tombstone, so that the owner's
// acquisition is not executed later. turns says that waiters queue for the turn to ask, and not for the lock.
// [ReadOwned] reads the reply.
func (k Keys) Force(owner string, tombstone time.Duration, turns bool) Command {
	keys := []string{k.Lock, k.Tombstone(TokenOf(owner)), k.Fence(), k.Queue(), k.Waiters()}
	args := milliseconds(tombstone) + ":" + strconv.Itoa(len(owner)) + ":" + owner
	if turns {
		return forceScript.call(append(keys, k.Turn()), args)
	}
	return forceScript.call(keys, args+k.Free())
}

// milliseconds renders d for Redis, rounded up. A key may live longer than its lease, but not shorter.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

package script

import (
	"strconv"
	"time"
)

// Attempt is one attempt to have a lock on a node.
type Attempt struct {
	Keys
	Token string // unique to the attempt
	// Node is the node's number, from 1, among those of a Redlock: the lock's value ends in it, so that a server that
	// is reached as two nodes shows; see alias.lua. 0: the node decides alone.
	Node int
}

// Owner is the value of the lock while it is the attempt's.
func (a Attempt) Owner() string {
	if a.Node == 0 {
		return a.Token
	}
	return a.Token + "|" + strconv.Itoa(a.Node)
}

func (a Attempt) tombstone() string { return a.Keys.Tombstone(a.Token) }

// Acquire takes the lock. For the counter, the clock is rounded down to quantum, in µs, and hint is a counter seen on
// another node, or 0. [ReadAcquired] reads the reply.
func (a Attempt) Acquire(ttl time.Duration, quantum int64, hint uint64) Command {
	return acquireScript.call([]string{a.Lock, a.Fence(), a.tombstone()},
		a.Owner(), milliseconds(ttl), strconv.FormatInt(quantum, 10), decimal(hint))
}

// Raise raises the counter to fence while the lock is held. [ReadOwned] reads the reply.
func (a Attempt) Raise(fence uint64) Command {
	return raiseScript.call([]string{a.Lock, a.Fence()}, a.Owner(), decimal(fence))
}

// Extend prolongs a held lock, whose token is fence, to ttl from now. [ReadOwned] reads the reply.
func (a Attempt) Extend(ttl time.Duration, fence uint64) Command {
	return extendScript.call([]string{a.Lock, a.Fence()}, a.Owner(), milliseconds(ttl), decimal(fence))
}

// Enqueue takes the lock, or a place in the queue until lease is over; with a lease of 0 it does not wait. ticket is
// that of an earlier reply, or 0. A grant is told on channel; empty: nowhere. [ReadPosition] reads the reply.
func (a Attempt) Enqueue(ttl, lease time.Duration, ticket int64, channel string) Command {
	return enqueueScript.call([]string{a.Lock, a.Fence(), a.tombstone(), a.Queue(), a.Waiters()},
		a.Owner(), milliseconds(ttl)+":"+milliseconds(lease)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

// Claim comes for a lock that was granted by somebody else. [ReadPosition] reads the reply.
func (a Attempt) Claim(ttl time.Duration) Command {
	return claimScript.call([]string{a.Lock, a.Fence()}, milliseconds(ttl)+":"+a.Owner())
}

// Release gives back what an attempt has, or may have. [ReadOwned] reads the reply of its Command.
type Release struct {
	Attempt
	Tombstone time.Duration // how long the attempt is kept from being executed later; 0: it has been
	Keep      time.Duration // how long the lock stays taken nevertheless
	// Certify is the token of the lease, for the certificate that no newer one was issued. 0: do not look.
	Certify uint64
	Notify  Notify
	Turn    string // for NotifyTurn: the ID of the Turn that it was acquired by, if any
	Leaves  bool   // for NotifyTurn: the Turn ends without a lease
}

// Notify says who is told of a lock that is given back.
type Notify uint8

const (
	NotifyNobody      Notify = iota // an attempt that failed, which others did not wait for
	NotifySubscribers               // those that listen to the channel Free
	NotifyQueue                     // the next in the queue, who gets the lock
	NotifyTurn                      // whoever has the turn to ask for it, or the next to have it
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

// Ask takes a place in the queue for the turn to ask for a lock, or keeps it, as Enqueue does. [ReadStanding] reads the
// reply.
func (k Keys) Ask(id string, lease time.Duration, ticket int64, channel string) Command {
	return turnScript.call([]string{k.Lock, k.Turn(), k.Queue(), k.Waiters()},
		id, milliseconds(lease)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

// Inspect asks what is known of the lock. [ReadState] reads the reply.
func (k Keys) Inspect() Command {
	return inspectScript.call([]string{k.Lock, k.Fence(), k.Queue(), k.Waiters()})
}

// Force takes the lock from the owner whose value it has. The owner's acquisition is kept from being executed later for
// as long as tombstone. turns says that waiters queue for a turn, and not for the lock. [ReadOwned] reads the reply.
func (k Keys) Force(owner string, tombstone time.Duration, turns bool) Command {
	keys := []string{k.Lock, k.Tombstone(TokenOf(owner)), k.Fence(), k.Queue(), k.Waiters()}
	args := milliseconds(tombstone) + ":" + strconv.Itoa(len(owner)) + ":" + owner
	if turns {
		return forceScript.call(append(keys, k.Turn()), args)
	}
	return forceScript.call(keys, args+k.Free())
}

// milliseconds renders d for Redis, rounded up: a key may live longer than the lease on it, never shorter.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

package node

import (
	"strconv"
	"time"

	"github.com/golocker/locker/internal/pipeline"
)

// attempt is one attempt to have a lock, by the names of what it touches on a node.
type attempt struct {
	keys
	token  string // unique to the attempt
	number string // what the lock's value ends in on this node; see alias.lua
}

// owner is the value of the lock if it is the attempt's.
func (a attempt) owner() string { return a.token + a.number }

// tombstone is the name of the key that keeps the attempt from being executed after its release.
func (a attempt) tombstone() string { return a.gone + a.token }

// acquire takes the lock. quantum, in µs, is what the clock is rounded down to for the counter, hint a counter seen elsewhere.
func (a attempt) acquire(ttl time.Duration, quantum int64, hint uint64) pipeline.Command {
	return acquireScript.call([]string{a.lock, a.fence, a.tombstone()},
		a.owner(), milliseconds(ttl), strconv.FormatInt(quantum, 10), decimal(hint))
}

func (a attempt) raise(fence uint64) pipeline.Command {
	return raiseScript.call([]string{a.lock, a.fence}, a.owner(), decimal(fence))
}

func (a attempt) extend(ttl time.Duration, fence uint64) pipeline.Command {
	return extendScript.call([]string{a.lock, a.fence}, a.owner(), milliseconds(ttl), decimal(fence))
}

// enqueue takes the lock, or a place in the queue until lease is over. lease 0: it does not wait. ticket is that of an
// earlier reply, or 0; channel is where a grant is told, or empty.
func (a attempt) enqueue(ttl, lease time.Duration, ticket int64, channel string) pipeline.Command {
	return enqueueScript.call([]string{a.lock, a.fence, a.tombstone(), a.queue(), a.waiters()},
		a.token, milliseconds(ttl)+":"+milliseconds(lease)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

// claim comes for a lock that was granted by somebody else.
func (a attempt) claim(ttl time.Duration) pipeline.Command {
	return claimScript.call([]string{a.lock, a.fence}, milliseconds(ttl)+":"+a.token)
}

// release gives back what an attempt has, or may have.
type release struct {
	attempt
	tombstones time.Duration // how long the attempt is kept from being executed later; 0: it has been
	keep       time.Duration // how long the lock stays taken nevertheless
	// fence is the token of the lease, for the certificate that no newer one was issued. 0: do not look.
	fence  uint64
	notify notify
	turn   string // for notifyTurn: the ID of the Turn that it was acquired by, if any
	leaves bool   // for notifyTurn: the Turn ends without a lease
}

// notify says who is told of a lock that is given back.
type notify uint8

const (
	notifyNobody      notify = iota // an attempt that failed, which others did not wait for
	notifySubscribers               // those that called Notify
	notifyQueue                     // the next in the queue, who gets the lock
	notifyTurn                      // whoever has the turn to ask for it, or the next to have it
)

func (r release) command() pipeline.Command {
	args := milliseconds(r.tombstones) + ":" + milliseconds(r.keep) + ":" + decimal(r.fence)
	gone := r.tombstone()
	switch r.notify {
	case notifyQueue:
		return handoverScript.call([]string{r.lock, gone, r.attempt.fence, r.queue(), r.waiters()}, r.owner(), args)
	case notifyTurn:
		args = r.owner() + ":" + args + ":" + r.turn
		if r.leaves {
			args += ":"
		}
		return turnReleaseScript.call([]string{r.lock, gone, r.attempt.fence, r.keys.turn(), r.queue(), r.waiters()}, args)
	case notifySubscribers:
		return releaseScript.call([]string{r.lock, gone, r.attempt.fence}, r.owner(), args+":"+r.free())
	default:
		return releaseScript.call([]string{r.lock, gone, r.attempt.fence}, r.owner(), args+":")
	}
}

// ask takes a place in the queue for the turn to ask for a lock, or keeps it, as enqueue does.
func (k keys) ask(id string, lease time.Duration, ticket int64, channel string) pipeline.Command {
	return turnScript.call([]string{k.lock, k.turn(), k.queue(), k.waiters()},
		id, milliseconds(lease)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

func (k keys) inspect() pipeline.Command {
	return inspectScript.call([]string{k.lock, k.fence, k.queue(), k.waiters()})
}

// force takes the lock from the owner with that value and token, whose acquisition is kept from being executed later for as
// long as tombstones. turns says that waiters queue for a turn, and not for the lock.
func (k keys) force(owner, token string, tombstones time.Duration, turns bool) pipeline.Command {
	names := []string{k.lock, k.gone + token, k.fence, k.queue(), k.waiters()}
	args := milliseconds(tombstones) + ":" + strconv.Itoa(len(owner)) + ":" + owner
	if turns {
		return forceScript.call(append(names, k.turn()), args)
	}
	return forceScript.call(names, args+k.free())
}

// milliseconds renders d for Redis, rounded up: a key may live longer than the lease on it, never shorter.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

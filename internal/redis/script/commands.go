package script

import (
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// Attempt is one attempt to acquire a lock on a node.
type Attempt struct {
	Keys
	Token string // is unique to the attempt
	// Node is the node's number, from 1, among the nodes of a Redlock. The lock's value has it, so that a server with
	// the addresses of two nodes is noticed. A node that decides alone has 1.
	Node  int
	Label string // says to people who has the lock; see locker.Label
	Guard *Guard // nil: none
	// Contended says that the usual case is unlikely. Commands have none then.
	Contended bool
	// Fences is how many tokens Acquire, Raise, Enqueue and Claim ask for. 0 and 1 both mean one.
	Fences int
	// Wants is nil for a lock. Otherwise Enqueue, Claim, Extend, Verify and releases are about an entry of a group.
	Wants *Wants
}

// Acquire takes the lock. The counter follows the clock, rounded down to quantum, in µs. hint is a counter seen on
// another node, or 0. [ReadAcquired] reads the reply.
func (a Attempt) Acquire(ttl time.Duration, quantum int64, hint uint64) Command {
	alone := func() Command {
		keys := a.Guard.keys(a.Lock, a.Wait(), a.Fence())
		args := []string{a.text(), milliseconds(ttl), strconv.FormatInt(quantum, 10), strconv.FormatUint(hint, 10)}
		if a.Guard != nil { // with two more words, the command would be too long; see acquire.lua
			args = append(args[:2], args[2]+":"+args[3]+a.Guard.number())
		}
		if a.Fences > 1 {
			args[len(args)-1] += ":" + strconv.Itoa(a.Fences)
		}
		return acquireScript.of(a.Guard).call(keys, args...).granting(acquires)
	}
	if hint > 0 || a.Contended || a.Fences > 1 { // joined commands draw one token for each lock
		return alone()
	}
	return a.usually(ttl, quantum, alone).granting(acquires)
}

// usually returns the command that acquires the lock if it is free. Otherwise alone is sent.
func (a Attempt) usually(ttl time.Duration, quantum int64, alone func() Command) Command {
	return Command{Usual: &Usual{
		Lock: a.Lock, Text: a.text(), Wait: a.Wait(), Fence: a.Fence(), TTL: ttl, Quantum: quantum, Alone: alone,
		Guard: a.Guard,
	}}
}

// Raise raises the counter to fence while the lock is held, and that of the slot to the last of the tokens from fence
// on. [ReadOwned] reads the reply.
func (a Attempt) Raise(fence uint64) Command {
	args := []string{a.text(), counterText(fence)}
	if a.Fences > 1 {
		args = append(args, counterText(fence+uint64(a.Fences)-1))
	}
	return raiseScript.call([]string{a.Lock, a.Fence()}, args...)
}

// Extend makes a held lock last for ttl from now. fence is the token of its lease. [ReadOwned] reads the reply.
func (a Attempt) Extend(ttl time.Duration, fence uint64) Command {
	if a.Wants != nil {
		return a.extendEntry(ttl, fence)
	}
	return extendScript.call([]string{a.Lock, a.Fence()},
		a.text(), milliseconds(ttl), counterText(fence)).granting(extends)
}

// Verify asks whether the lock is held and no token newer than fence was issued. [ReadOwned] reads the reply.
func (a Attempt) Verify(fence uint64) Command {
	if a.Wants != nil {
		return a.extendEntry(0, fence)
	}
	return verifyScript.call([]string{a.Lock, a.Wait()}, counterText(fence)+a.text())
}

// Enqueue takes the lock, or a position in the queue, which the server keeps for positionTTL. With a positionTTL of
// 0 it does not wait. ticket is that of an earlier reply, or 0. A grant is published on channel, or nowhere if channel
// is empty. [ReadPosition] reads the reply. If it is Whole, all tokens that were asked for belong to the grant.
func (a Attempt) Enqueue(ttl, positionTTL time.Duration, ticket int64, channel string) Command {
	if a.Wants != nil {
		return a.queueForEntry(ttl, positionTTL, ticket, channel)
	}
	alone := func() Command {
		keys := a.Guard.keys(a.Lock, a.Wait(), a.Fence(), a.Queue())
		numbers := milliseconds(ttl) + ":" + milliseconds(positionTTL) + ":" + strconv.FormatInt(ticket, 10) + ":" +
			strconv.Itoa(max(1, a.Fences))
		return enqueueScript.of(a.Guard).call(keys, a.text(), numbers+a.Guard.number()+":"+channel).granting(handsOver)
	}
	if ticket > 0 || a.Contended || a.Fences > 1 { // as in Acquire
		return alone()
	}
	return a.usually(ttl, 1, alone).granting(handsOver)
}

// Claim takes over a lock that another owner's release has granted. [ReadPosition] reads the reply. With one token, the
// lock's key is the only one that a Redis Cluster needs, so it may be claimed while its slot moves.
func (a Attempt) Claim(ttl time.Duration) Command {
	if a.Wants != nil {
		return a.claimEntry(ttl)
	}
	keys, numbers := a.Guard.keys(a.Lock), milliseconds(ttl)+a.Guard.number()
	if a.Fences > 1 {
		keys, numbers = append(keys, a.Fence()), numbers+":"+strconv.Itoa(a.Fences)
	}
	return claimScript.of(a.Guard).call(keys, a.text(), numbers).granting(handsOver)
}

// Release releases what an attempt has, or may have. [ReadOwned] reads the reply to its Command.
type Release struct {
	Attempt
	Tombstone time.Duration // the life of the tombstone; 0: none is needed, because the attempt was executed
	Keep      time.Duration // how long the lock stays taken after its release
	// Certify is the token of the lease. The reply then says whether the owner's lock has a greater one. With 0, the
	// reply does not say so.
	Certify uint64
	Notify  Notify
	Turn    string // for NotifyTurn: the ID of the Turn with which the lock was acquired, or empty
	Leaves  bool   // for NotifyTurn: the Turn ends without a lease
}

// Notify says who is notified when a lock is released.
type Notify uint8

// The waiters that a release can notify.
const (
	NotifyNobody Notify = iota // for an attempt that failed and that nobody waits for
	NotifyQueue                // the first waiter in the queue, which gets the lock
	NotifyTurn                 // the waiter whose turn it is, or which gets the turn now
)

// Command returns the release as a command. In the usual case it has nothing to do but to delete the lock, because the
// value of a lock that others wait for is marked.
func (r Release) Command() Command {
	if r.Wants == nil && !r.Contended && r.Tombstone == 0 && r.Keep == 0 && r.Turn == "" && !r.Leaves {
		return Command{IsRelease: true, Usual: &Usual{Lock: r.Lock, Text: r.value(r.counter()), Alone: r.alone}}
	}
	return r.alone()
}

// counter is the greatest counter with which the lock counts as that of the lease.
func (r Release) counter() string {
	if r.Certify == 0 {
		return anyCounter
	}
	return counterText(r.Certify)
}

// alone is the release as a command that is sent by itself.
func (r Release) alone() Command {
	args := milliseconds(r.Tombstone) + ":" + milliseconds(r.Keep) + ":" + r.counter()
	switch r.Notify {
	case NotifyQueue:
		if r.Wants != nil {
			return groupReleaseScript.of(r.Guard).call(r.Guard.keys(r.group()...), r.text(), args+r.Guard.number())
		}
		keys := r.Guard.keys(r.Lock, r.Wait(), r.Fence(), r.Queue())
		return handoverScript.of(r.Guard).call(keys, r.text(), args+r.Guard.number())
	case NotifyTurn:
		args += ":" + r.Turn
		if r.Leaves {
			args += ":"
		}
		return turnReleaseScript.call([]string{r.Lock, r.Wait(), r.Queue(), r.Keys.Turn()}, r.text(), args)
	default:
		return releaseScript.call([]string{r.Lock, r.Wait()}, r.text(), args)
	}
}

// Export passes the lock on instead of releasing it: its owner value becomes to, for ttl from now. [ReadOwned] reads
// the reply.
func (r Release) Export(to string, ttl time.Duration) Command {
	keys := []string{r.Lock}
	if r.Tombstone > 0 {
		keys = append(keys, r.Wait())
	}
	return exportScript.call(keys, r.text(), textOf(to), r.counter(), milliseconds(ttl)+":"+milliseconds(r.Tombstone)).
		granting(extends)
}

// Resume takes over the lock that was passed on with the owner value from. [ReadResumed] reads the reply.
func (a Attempt) Resume(from string, ttl time.Duration) Command {
	return resumeScript.of(a.Guard).call(a.Guard.keys(a.Lock, a.Fence()), a.text(), textOf(from),
		milliseconds(ttl)+a.Guard.number()).granting(resumes)
}

// textOf is the lock's value without the counter and the label, while an owner value that was passed on has it.
func textOf(owner string) string { return Attempt{Token: owner, Node: 1}.text() }

// Ask takes a position in the queue for the turn to ask for a lock, or keeps it, as Enqueue does. [ReadStanding] reads
// the reply.
func (k Keys) Ask(id string, positionTTL time.Duration, ticket int64, channel string) Command {
	return turnScript.call([]string{k.Lock, k.Wait(), k.Queue(), k.Turn()},
		id, milliseconds(positionTTL)+":"+strconv.FormatInt(ticket, 10)+":"+channel)
}

// Inspect asks for the state of the lock. [ReadState] reads the reply.
func (k Keys) Inspect() Command {
	return inspectScript.call([]string{k.Lock, k.Wait(), k.Fence(), k.Queue()})
}

// Count is Inspect on a node of a Redlock, for the owner of the lock. The waiter that has the turn to ask for the lock
// is not in the queue, and counts as well. It does not if its ID is own, because that is the owner's former turn.
func (k Keys) Count(own string) Command {
	return inspectScript.call([]string{k.Lock, k.Wait(), k.Fence(), k.Queue(), k.Turn()}, own)
}

// Force takes the lock from the owner whose value it has. tombstone is the life of a tombstone, so that the owner's
// acquisition is not executed later. turns says that waiters queue for the turn to ask, and not for the lock.
// g is the guard of the waiters for the lock, or nil. [ReadOwned] reads the reply.
func (k Keys) Force(value string, tombstone time.Duration, turns bool, g *Guard) Command {
	keys := []string{k.Lock, k.Wait(), k.Fence(), k.Queue()}
	args := milliseconds(tombstone) + ":" + value
	switch {
	case turns:
		return forceScript.plain.call(append(keys, k.Turn()), args)
	case g != nil:
		return forceScript.guarded.call(g.keys(keys...), args, g.rest)
	default:
		return forceScript.plain.call(keys, args)
	}
}

// RaiseCounter makes all tokens greater than past that the locks of a hash slot are granted from now on.
// [ReadRaised] reads the reply.
func RaiseCounter(prefix string, slot uint16, past uint64) Command {
	return raiseCounterScript.call([]string{inSlot(slot, prefix, fenceName)}, counterText(past)).granting(raised)
}

// scanned is how many keys a step looks at. That takes it some tenth of a millisecond.
const scanned = "100"

// Scan asks the master of a hash slot for some of its keys, of all slots, that begin with the prefix and with begin.
// cursor is from the reply before, or "0". [ReadPage] reads the reply.
func Scan(slot uint16, prefix, begin, cursor string, cluster bool) Command {
	of := "0"
	if cluster {
		of = "1"
	}
	name := inSlot(slot, prefix, fenceName) // users have the right to it
	return scanScript.call([]string{name}, cursor, literally.Replace(prefix+begin)+"*", scanned, of)
}

// literally makes a pattern of a text.
var literally = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// milliseconds renders d for Redis, rounded up. A key may live longer than its lease, but not shorter.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// Wait returns the command that waits until replicas have what was written on the same connection, for at most timeout.
// The reply is how many have it, possibly more or less than were asked for.
func Wait(replicas int, timeout time.Duration) drivers.Command {
	// The server would wait for ever with a timeout of 0.
	return drivers.Command{"WAIT", strconv.Itoa(replicas), milliseconds(max(timeout, time.Millisecond))}
}

// granting returns c with grants as its Grants.
func (c Command) granting(grants func(drivers.Reply) bool) Command {
	c.Grants = grants
	return c
}

// acquires is the Grants of Acquire.
func acquires(reply drivers.Reply) bool {
	a, _ := ReadAcquired(reply)
	return a.Status == Granted
}

// handsOver is the Grants of Enqueue and Claim.
func handsOver(reply drivers.Reply) bool {
	p, _ := ReadPosition(reply)
	return p.Status == Granted
}

// raised is the Grants of RaiseCounter: replicas have to confirm it.
func raised(reply drivers.Reply) bool { return ReadRaised(reply) == nil }

// resumes is the Grants of Resume.
func resumes(reply drivers.Reply) bool {
	a, _ := ReadResumed(reply)
	return a.Status == Granted
}

// extends is the Grants of Extend and Export.
func extends(reply drivers.Reply) bool {
	o, _ := ReadOwned(reply)
	return o.Status == Done
}

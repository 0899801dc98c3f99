package redlock

import (
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/internal/redis/node"
)

const (
	// minBackoff and maxBackoff bound the pauses of a waiter that has the turn, after an attempt that failed although
	// the lock is free on the node that keeps the queue. Releases are in flight to the other nodes, or the holder does
	// not have that node.
	minBackoff = 2 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// maxFailed is how many attempts in a row may fail while the node that keeps the queue says that the lock is free.
	// After that, the waiter does not trust this node: owners of the lock do not have it, so their releases do not
	// reach it.
	maxFailed = 4
	// overdue is how long a waiter waits for a notification before it asks the nodes anyway.
	overdue = 2 * time.Second
	// faultRetry is how often a waiter asks the nodes while there is no quorum. It is also how long a waiter waits
	// before it asks if there may be none.
	faultRetry = 500 * time.Millisecond
	// soon is the pause before a waiter looks a second time. Each further pause is twice as long, up to what the node
	// asks for. The lock that the waiter saw may have been a failed attempt, whose clean-up notifies nobody. And if the
	// node has failed, the waiter should not miss many turns that others take elsewhere.
	soon = 50 * time.Millisecond
	// ownLooks is how often a waiter looks, within the first 60 ms after an attempt that failed, without taking what the
	// attempt may have got for the lock of another.
	ownLooks = 5
)

// pacing decides when a waiter asks the nodes for the lock, and how long it pauses before it looks at its position in
// the queue again. It is told what the node that keeps the queue says and how attempts end. Like voting, it is rules
// and nothing else: it sends nothing, and times are arguments.
type pacing struct {
	since   time.Time // since when the waiter waits to be notified
	failed  int       // failed attempts in a row since the last notification
	looks   int       // how often it has looked at its position since the last attempt
	ends    time.Time // when the lock on the node that keeps the queue ends, as seen last; zero: it was free
	waived  bool      // it has let one attempt be since the last one; see changed
	moved   bool      // the node that keeps the queue has failed since the last attempt, and others may have
	failing bool      // the last attempt found no quorum
	rested  time.Time // when enough nodes have rested for a quorum; zero: not known
}

// decision is what a waiter does next: it asks the nodes or it does not, and then it pauses.
type decision struct {
	ask bool
	// all says that all nodes are asked at once. That is for a waiter with the turn whose last attempt has not failed,
	// because nobody else should be asking. It is also for a waiter that was not notified for long and has to know
	// whether there is a quorum, which a single node cannot say.
	all    bool
	late   bool          // the waiter was not notified for long
	turn   bool          // it has the turn
	alone  bool          // no node keeps the queue
	others bool          // others have the lock, or are before it in the queue
	pause  time.Duration // before the next look
}

// told says that the turn has come.
func (p *pacing) told() decision {
	p.failed = 0
	return decision{ask: true, all: true, turn: true}
}

// stood says what the node that keeps the queue has answered. remains says that the node may still have what the last
// attempt got there.
func (p *pacing) stood(now time.Time, s node.Standing, remains bool) decision {
	next := decision{turn: s.Mine && s.Left == 0}
	pause := soon
	switch {
	case s.Left > 0 && p.looks < ownLooks && remains:
		pause = minBackoff // the lock may be what the last attempt got, and be gone in a moment
	case !next.turn:
		next.others = true
	}
	pause <<= min(p.looks, 10)
	next.pause = min(s.Again, pause/2+rand.N(pause/2))
	p.looks++
	if p.changed(now, s.Left) {
		p.since = now
	}
	p.hurry(now, s, &next)
	next.ask = next.turn || next.late
	next.all = next.late || next.turn && p.failed == 0
	return next
}

// alone says that no node keeps the queue.
func (p *pacing) alone(now time.Time) decision {
	next := decision{ask: true, alone: true}
	p.hurry(now, node.Standing{}, &next)
	next.all = next.late
	return next
}

// hurry makes the waiter ask the nodes at the latest when pollAfter is over. Waiters that have begun to wait at the
// same time should not all ask at the same time.
func (p *pacing) hurry(now time.Time, s node.Standing, next *decision) {
	rest := p.pollAfter(s) - now.Sub(p.since)
	if next.late = rest <= 0; !next.late {
		next.pause = min(next.pause, rest+rand.N(3*maxBackoff))
	}
}

// pollAfter is how long a waiter does not ask if it is not notified. The node that keeps the queue may have the lock of
// a dead owner that has no other node, or its clean-up may have notified nobody.
func (p *pacing) pollAfter(s node.Standing) time.Duration {
	if p.failing || p.moved {
		return faultRetry
	}
	if s.Left > 0 && s.Rank > 0 { // the waiters before it will find out
		return 3 * overdue
	}
	return overdue
}

// changed records the remaining time of the lock on the node that keeps the queue. It reports whether the lock has
// ended there, so that the waiter that has the turn asks the nodes now or has just done so. If another lock is there,
// it may also be the remains of an attempt that failed, of a client that reaches only this node. So changed believes
// that only once between two attempts, and not while nodes fail.
func (p *pacing) changed(now time.Time, left time.Duration) bool {
	before := p.ends
	if left <= 0 {
		p.ends = time.Time{}
		return !before.IsZero()
	}
	p.ends = now.Add(left)
	if before.IsZero() || now.Before(before) || p.waived || p.moved || p.failing {
		return false
	}
	p.waived = true
	return true
}

// asked says that an attempt begins.
func (p *pacing) asked() { p.looks, p.moved, p.waived = 0, false, false }

// lost says that the attempt of next has failed, and that the waiter goes on. astray says that the node that keeps the
// queue is wrong about the owner. lost reports whether another node has to keep the queue.
func (p *pacing) lost(now time.Time, next *decision, astray bool) (elsewhere bool) {
	p.failed++
	p.since = now
	if next.turn || next.alone {
		next.pause = backoff(p.failed)
	}
	if elsewhere = astray && (next.late || next.turn && p.failed > maxFailed); elsewhere {
		p.failed, next.pause = 0, 0 // a waiter that has no position is not notified
	}
	return elsewhere
}

// quorum says whether the last attempt has found a quorum. If it has not, rest is how long enough nodes have to rest
// until there is one; 0: not known.
func (p *pacing) quorum(now time.Time, found bool, rest time.Duration) {
	p.failing, p.rested = !found, time.Time{}
	if rest > 0 {
		p.rested = now.Add(rest)
	}
}

// wait returns how long to pause before the next look, after next. left is how long the waiter still tolerates that
// there is no quorum. Until there is one, it looks more often, so that it notices the end of a failure. But nodes that
// rest have said when they will grant locks.
func (p *pacing) wait(now time.Time, next decision, left time.Duration) time.Duration {
	switch rest := p.rested.Sub(now); {
	case !p.failing:
		return next.pause
	case rest > 0:
		return min(rest, left) + rand.N(3*maxBackoff)
	default:
		return min(next.pause, faultRetry/2+rand.N(faultRetry/2))
	}
}

// backoff returns the pause after the n-th failed attempt in a row. It doubles each time, and up to half of it is
// random.
func backoff(n int) time.Duration {
	d := maxBackoff
	if n < 6 {
		d = min(maxBackoff, minBackoff<<n)
	}
	return d/2 + rand.N(d/2)
}

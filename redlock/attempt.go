package redlock

import "math/bits"

// nodeSet is a set of nodes by their index.
type nodeSet uint64

// maxNodes keeps an attempt small. Nobody runs more: nine nodes survive four failures.
const maxNodes = 32

func allOf(n int) nodeSet        { return 1<<n - 1 }
func only(i int) nodeSet         { return 1 << i }
func (s nodeSet) has(i int) bool { return s>>i&1 == 1 }
func (s nodeSet) len() int       { return bits.OnesCount64(uint64(s)) }
func (s nodeSet) each(f func(i int)) {
	for ; s != 0; s &= s - 1 {
		f(bits.TrailingZeros64(uint64(s)))
	}
}

type outcome uint8

const (
	undecided outcome = iota
	won
	lost
)

// attempt decides one acquisition. It is the protocol and nothing else: it is told what nodes answered and says what to
// send next; time, connections and goroutines are its owner's. So the same code runs over real nodes and in simulation.
//
// The rules are those of docs/safety.md. A majority grants, each node with its fencing counter; the token is the
// largest of these counters; whoever granted with a lower one is asked to raise its own, which it does only while the
// lock there is still ours; the attempt has won when a majority's counters are at the token.
type attempt struct {
	need int // votes that make a majority

	asked    nodeSet // acquire sent
	granted  nodeSet
	refused  nodeSet // will not grant: held, failed, or no answer expected any more
	counters [maxNodes]uint64

	token  uint64  // chosen when a majority had granted; 0 before
	agreed nodeSet // counter = token, accepted while the lock was ours
	raised nodeSet // raise sent
	failed nodeSet // raise refused or unanswered

	n     int
	first int // in order: asked before the others; -1 when all are asked at once
}

// newAttempt starts an attempt over n nodes, by those that are asked then. With first >= 0 that node is asked alone, and
// the others only if it grants: contenders that agree on a first node do not split the vote. If it fails, the next one
// takes its place.
func newAttempt(n, first int) attempt {
	a := attempt{n: n, need: n/2 + 1, first: first, asked: allOf(n)}
	if first >= 0 {
		a.asked = only(first)
	}
	return a
}

// grant records that node i granted with the given counter. It returns the nodes to ask to acquire, and those to raise
// to a.token.
func (a *attempt) grant(i int, counter uint64) (acquire, raise nodeSet) {
	a.granted |= only(i)
	if a.token != 0 {
		// The token is chosen. A late grant does not agree by itself, even if its counter is at the token: it is
		// asked, like the others, and replaces one that does not answer.
		if a.outcome() == undecided && counter <= a.token {
			raise = only(i)
			a.raised |= raise
		}
		return 0, raise
	}
	a.counters[i] = counter
	if i == a.first {
		a.first = -1
		acquire = allOf(a.n) &^ a.asked
		a.asked |= acquire
	}
	if a.granted.len() < a.need {
		return acquire, 0
	}
	a.granted.each(func(i int) { a.token = max(a.token, a.counters[i]) })
	a.granted.each(func(i int) {
		if a.counters[i] == a.token {
			a.agreed |= only(i)
		}
	})
	if a.agreed.len() < a.need {
		raise = a.granted &^ a.agreed
		a.raised = raise
	}
	return acquire, raise
}

// deny records that node i does not grant. held says that it answered that somebody else has the lock. It returns the
// nodes to ask to acquire.
func (a *attempt) deny(i int, held bool) (acquire nodeSet) {
	a.refused |= only(i)
	switch {
	case i != a.first:
		return 0
	case held: // somebody else was first: do not compete
		a.refused = allOf(a.n)
		return 0
	case a.outcome() == lost:
		return 0
	default:
		return a.skip()
	}
}

// skip is for a first node that fails or does not answer: the next one takes its place. It returns the nodes to ask.
func (a *attempt) skip() (acquire nodeSet) {
	next := (a.first + 1) % a.n
	if a.first < 0 || a.asked.has(next) {
		return 0
	}
	a.first = next
	a.asked |= only(next)
	return only(next)
}

// raise records node i's answer to a raise: accepted only if it said so.
func (a *attempt) raise(i int, accepted bool) {
	if accepted {
		a.agreed |= only(i)
	} else {
		a.failed |= only(i)
	}
}

// outcome says where the attempt stands.
func (a *attempt) outcome() outcome {
	switch {
	case a.token == 0 && a.n-a.refused.len() < a.need:
		return lost
	case a.token == 0:
		return undecided
	case a.agreed.len() >= a.need:
		return won
	case (a.agreed | a.raised&^a.failed | a.asked&^a.granted&^a.refused).len() < a.need:
		return lost
	default:
		return undecided
	}
}

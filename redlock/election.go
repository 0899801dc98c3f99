package redlock

import "math/bits"

// nodeSet is a set of nodes by their index.
type nodeSet uint64

// maxNodes keeps an election small. Nobody runs more: nine nodes survive four failures.
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

// election decides one acquisition. It is the protocol and nothing else: it is told what nodes answered and says what
// to send next; time, connections and goroutines are its owner's. So the same code runs over real nodes and in
// simulation.
//
// The rules are those of docs/safety.md. A majority grants, each node with its fencing counter; the token is the
// largest of these counters; whoever granted with a lower one is asked to raise its own, which it does only while the
// lock there is still ours; the election is won when a majority's counters are at the token.
type election struct {
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

// newElection starts one over n nodes, by those that are asked then. With first >= 0 that node is asked alone, and
// the others only if it grants: contenders that agree on a first node do not split the vote. If it fails, the next one
// takes its place.
func newElection(n, first int) election {
	e := election{n: n, need: n/2 + 1, first: first, asked: allOf(n)}
	if first >= 0 {
		e.asked = only(first)
	}
	return e
}

// grant records that node i granted with the given counter. It returns the nodes to ask to acquire, and those to raise
// to e.token.
func (e *election) grant(i int, counter uint64) (acquire, raise nodeSet) {
	e.granted |= only(i)
	if e.token != 0 {
		// The token is chosen. A late grant does not agree by itself, even if its counter is at the token: it is
		// asked, like the others, and replaces one that does not answer.
		if e.outcome() == undecided && counter <= e.token {
			raise = only(i)
			e.raised |= raise
		}
		return 0, raise
	}
	e.counters[i] = counter
	if i == e.first {
		e.first = -1
		acquire = allOf(e.n) &^ e.asked
		e.asked |= acquire
	}
	if e.granted.len() < e.need {
		return acquire, 0
	}
	e.granted.each(func(i int) { e.token = max(e.token, e.counters[i]) })
	e.granted.each(func(i int) {
		if e.counters[i] == e.token {
			e.agreed |= only(i)
		}
	})
	if e.agreed.len() < e.need {
		raise = e.granted &^ e.agreed
		e.raised = raise
	}
	return acquire, raise
}

// deny records that node i does not grant. held says that it answered that somebody else has the lock. It returns the
// nodes to ask to acquire.
func (e *election) deny(i int, held bool) (acquire nodeSet) {
	e.refused |= only(i)
	switch {
	case i != e.first:
		return 0
	case held: // somebody else was first: do not compete
		e.refused = allOf(e.n)
		return 0
	case e.outcome() == lost:
		return 0
	default:
		return e.skip()
	}
}

// skip is for a first node that fails or does not answer: the next one takes its place. It returns the nodes to ask.
func (e *election) skip() (acquire nodeSet) {
	next := (e.first + 1) % e.n
	if e.first < 0 || e.asked.has(next) {
		return 0
	}
	e.first = next
	e.asked |= only(next)
	return only(next)
}

// raise records node i's answer to a raise: accepted only if it said so.
func (e *election) raise(i int, accepted bool) {
	if accepted {
		e.agreed |= only(i)
	} else {
		e.failed |= only(i)
	}
}

// outcome says where the election stands.
func (e *election) outcome() outcome {
	switch {
	case e.token == 0 && e.n-e.refused.len() < e.need:
		return lost
	case e.token == 0:
		return undecided
	case e.agreed.len() >= e.need:
		return won
	case (e.agreed | e.raised&^e.failed | e.asked&^e.granted&^e.refused).len() < e.need:
		return lost
	default:
		return undecided
	}
}

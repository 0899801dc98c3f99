package redlock

import "math/bits"

// nodeSet is a set of nodes by their index.
type nodeSet uint64

// maxNodes bounds the memory of an election. It is more than anybody needs: nine nodes survive four failures.
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

// election decides one acquisition. It is the protocol and nothing else. It is told the answers of nodes, and says what
// to send next. It knows no time, connections and goroutines, so the same code runs over real nodes and in simulations.
//
// The rules are those of docs/safety.md. A majority grants, each node with its fencing counter. The token is the
// largest of these counters. Each node of the majority with a lower counter is asked to raise it, and does so only
// while this attempt has the lock there. The election is won when a majority has counters at the token.
type election struct {
	need int // votes that make a majority

	asked    nodeSet // nodes that were asked to acquire
	granted  nodeSet
	refused  nodeSet // nodes that will not grant: they said so, failed, or are not expected to answer
	counters [maxNodes]uint64

	token  uint64  // 0 until a majority has granted
	agreed nodeSet // nodes whose counter is at the token while this attempt has the lock there
	raised nodeSet // nodes that were asked to raise
	failed nodeSet // nodes that refused to raise or did not answer

	n     int
	first int // the node that is asked before the others; -1: all are asked at once
}

// newElection starts an election over n nodes. The caller sends the request to the nodes in asked. With first >= 0 that
// is one node, and the others are asked only if it grants. So contenders that agree on a first node do not split the
// vote. If the first node fails, the next one takes its place.
func newElection(n, first int) election {
	e := election{n: n, need: n/2 + 1, first: first, asked: allOf(n)}
	if first >= 0 {
		e.asked = only(first)
	}
	return e
}

// grant records that node i has granted with counter. It returns the nodes to ask to acquire, and the nodes to ask to
// raise their counter to e.token.
func (e *election) grant(i int, counter uint64) (acquire, raise nodeSet) {
	e.granted |= only(i)
	if e.token != 0 {
		// The token is chosen already. A late grant does not agree by itself, even if its counter is at the token. The
		// node is asked to raise like the others, and can stand in for a node that does not answer.
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

// deny records that node i does not grant. held says that somebody else has the lock there. It returns the nodes to ask
// to acquire.
func (e *election) deny(i int, held bool) (acquire nodeSet) {
	e.refused |= only(i)
	switch {
	case i != e.first:
		return 0
	case held: // somebody else was first, so do not compete
		e.refused = allOf(e.n)
		return 0
	case e.outcome() == lost:
		return 0
	default:
		return e.skip()
	}
}

// skip is called when the first node has failed or has not answered in time. The next node takes its place. It returns
// the nodes to ask.
func (e *election) skip() (acquire nodeSet) {
	next := (e.first + 1) % e.n
	if e.first < 0 || e.asked.has(next) {
		return 0
	}
	e.first = next
	e.asked |= only(next)
	return only(next)
}

// raise records node i's answer to a raise. Only an explicit yes counts as accepted.
func (e *election) raise(i int, accepted bool) {
	if accepted {
		e.agreed |= only(i)
	} else {
		e.failed |= only(i)
	}
}

// outcome returns the state of the election.
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

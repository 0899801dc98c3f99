package redlock

import "math/bits"

// nodeSet is a set of nodes by their index.
type nodeSet uint64

// maxNodes bounds the memory of a voting. It is more than anybody needs: nine nodes survive four failures.
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

// voting decides one acquisition. It is the protocol and nothing else. It is told the answers of nodes, and says what
// to send next. It knows no time, connections and goroutines, so the same code runs over real nodes and in simulations.
//
// The rules are those of docs/safety.md. A majority grants, each node with its fencing counter. The token is the
// largest of these counters. Each node of the majority with a lower counter is asked to raise it, and does so only
// while this attempt has the lock there. The acquisition is won when a majority has counters at the token. If the
// attempt asks for several tokens, each grant and each raise also moves the counter of the node's slot to the last one.
type voting struct {
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

// newVoting starts a voting over n nodes. The caller sends the request to the nodes in asked. With first >= 0 that
// is one node, and the others are asked only if it grants. So contenders that agree on a first node do not split the
// vote. If the first node fails, the next one takes its place.
func newVoting(n, first int) voting {
	v := voting{n: n, need: n/2 + 1, first: first, asked: allOf(n)}
	if first >= 0 {
		v.asked = only(first)
	}
	return v
}

// grant records that node i has granted with counter. It returns the nodes to ask to acquire, and the nodes to ask to
// raise their counter to v.token.
func (v *voting) grant(i int, counter uint64) (acquire, raise nodeSet) {
	v.granted |= only(i)
	if v.token != 0 {
		// The token is chosen already. A late grant does not agree by itself, even if its counter is at the token. The
		// node is asked to raise like the others, and can stand in for a node that does not answer.
		if v.outcome() == undecided && counter <= v.token {
			raise = only(i)
			v.raised |= raise
		}
		return 0, raise
	}
	v.counters[i] = counter
	if i == v.first {
		v.first = -1
		acquire = allOf(v.n) &^ v.asked
		v.asked |= acquire
	}
	if v.granted.len() < v.need {
		return acquire, 0
	}
	v.granted.each(func(i int) { v.token = max(v.token, v.counters[i]) })
	v.granted.each(func(i int) {
		if v.counters[i] == v.token {
			v.agreed |= only(i)
		}
	})
	if v.agreed.len() < v.need {
		raise = v.granted &^ v.agreed
		v.raised = raise
	}
	return acquire, raise
}

// deny records that node i does not grant. held says that somebody else has the lock there. It returns the nodes to ask
// to acquire.
func (v *voting) deny(i int, held bool) (acquire nodeSet) {
	v.refused |= only(i)
	switch {
	case i != v.first:
		return 0
	case held: // somebody else was first, so do not compete
		v.refused = allOf(v.n)
		return 0
	case v.outcome() == lost:
		return 0
	default:
		return v.skip()
	}
}

// skip is called when the first node has failed or has not answered in time. The next node takes its place. It returns
// the nodes to ask.
func (v *voting) skip() (acquire nodeSet) {
	next := (v.first + 1) % v.n
	if v.first < 0 || v.asked.has(next) {
		return 0
	}
	v.first = next
	v.asked |= only(next)
	return only(next)
}

// raise records node i's answer to a raise. Only an explicit yes counts as accepted.
func (v *voting) raise(i int, accepted bool) {
	if accepted {
		v.agreed |= only(i)
	} else {
		v.failed |= only(i)
	}
}

// outcome returns the state of the voting.
func (v *voting) outcome() outcome {
	switch {
	case v.token == 0 && v.n-v.refused.len() < v.need:
		return lost
	case v.token == 0:
		return undecided
	case v.agreed.len() >= v.need:
		return won
	case (v.agreed | v.raised&^v.failed | v.asked&^v.granted&^v.refused).len() < v.need:
		return lost
	default:
		return undecided
	}
}

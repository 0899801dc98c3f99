package redlock

import (
	"sync/atomic"
	"time"
)

// health has what acquisitions learn about nodes: how long each has taken to answer, and which do not answer. It is
// advice on how long to wait and which node to ask first. Safety does not depend on it.
type health struct {
	latency [maxNodes]atomic.Int64 // ns
	quiet   atomic.Uint64          // a nodeSet: nodes that failed, or that an operation stopped waiting for
	faulty  atomic.Uint64          // a nodeSet: nodes that failed when they were asked last
}

// answered records that node i has answered, that long after it was asked.
func (h *health) answered(i int, after time.Duration) {
	h.latency[i].Store(int64(after))
	for _, set := range []*atomic.Uint64{&h.quiet, &h.faulty} {
		if nodeSet(set.Load()).has(i) {
			set.And(^uint64(only(i)))
		}
	}
}

// silent records that an operation has stopped waiting for node i. The node may be in order, because a stall of this
// process has the same effect.
func (h *health) silent(i int) { h.quiet.Or(uint64(only(i))) }

// failed records that node i could not be reached, did not answer in time, or refused.
func (h *health) failed(i int) {
	h.silent(i)
	h.faulty.Or(uint64(only(i)))
}

// isFaulty reports whether node i failed when it was asked last.
func (h *health) isFaulty(i int) bool { return nodeSet(h.faulty.Load()).has(i) }

const (
	// minTimeout is for nodes that have been answering. It covers a stall of a busy machine.
	minTimeout = 50 * time.Millisecond
	// quietTimeout is for nodes that did not answer the last time either.
	quietTimeout = 5 * time.Millisecond
)

// timeout returns how long an acquisition waits for nodes after a majority has answered and somebody else holds some
// of it. That is four times what the slowest of the nodes took last, or very short if none of them answered last time.
// If two of five nodes hang, attempts that wait for them with their whole budget keep their grants from each other, and
// none of them wins.
func (h *health) timeout(nodes nodeSet) time.Duration {
	d := quietTimeout
	(nodes &^ nodeSet(h.quiet.Load())).each(func(i int) { d = max(d, h.usual(i)) })
	return d
}

// usual returns how long node i may take to answer if it is in order.
func (h *health) usual(i int) time.Duration {
	return max(minTimeout, 4*time.Duration(h.latency[i].Load()))
}

// expected returns how long the slowest of the nodes may take to answer now: four times what it took last, and at most
// minTimeout. It returns 0 if none of them can be expected to answer.
func (h *health) expected(nodes nodeSet) (d time.Duration) {
	(nodes &^ nodeSet(h.quiet.Load())).each(func(i int) {
		d = max(d, time.Millisecond, 4*time.Duration(h.latency[i].Load()))
	})
	return min(d, minTimeout)
}

// first returns i, or the next node after it that is not known to be silent.
func (h *health) first(i, n int) int {
	quiet := nodeSet(h.quiet.Load())
	for range n {
		if !quiet.has(i) {
			break
		}
		i = (i + 1) % n
	}
	return i
}

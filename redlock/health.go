package redlock

import (
	"sync/atomic"
	"time"
)

// health is what acquisitions learn about nodes: how long each took to answer last, and which do not answer at all. It
// is advice on how long to wait and whom to ask first; safety does not depend on it.
type health struct {
	latency [maxNodes]atomic.Int64 // ns
	quiet   atomic.Uint64          // a nodeSet: those with which an acquisition lost its patience, or that failed
	faulty  atomic.Uint64          // a nodeSet: those that failed when they were asked last, and have not answered since
}

// answered records that node i answered an acquisition that long after its start.
func (h *health) answered(i int, after time.Duration) {
	h.latency[i].Store(int64(after))
	for _, set := range []*atomic.Uint64{&h.quiet, &h.faulty} {
		if nodeSet(set.Load()).has(i) {
			set.And(^uint64(only(i)))
		}
	}
}

// silent records that an acquisition or a release lost its patience with node i. The node may be in order: a stall of
// this process is enough.
func (h *health) silent(i int) { h.quiet.Or(uint64(only(i))) }

// failed records that node i could not be reached, did not answer in time, or refused.
func (h *health) failed(i int) {
	h.silent(i)
	h.faulty.Or(uint64(only(i)))
}

// isFaulty reports whether node i failed when it was asked last.
func (h *health) isFaulty(i int) bool { return nodeSet(h.faulty.Load()).has(i) }

const (
	// minPatience is for nodes that have been answering: it covers a stall of a busy machine.
	minPatience = 50 * time.Millisecond
	// quietPatience is for nodes that did not answer last time either.
	quietPatience = 5 * time.Millisecond
)

// patience is how long an acquisition waits for the given nodes after a majority has answered, some of it for somebody
// else: four times what the slowest of them took last, or nearly nothing if none of them answered last time either. An
// acquisition that waited its whole budget for a hung node would keep from others what it had been granted, and they
// would keep theirs from it: with two of five nodes hung, nobody would get anywhere.
func (h *health) patience(nodes nodeSet) time.Duration {
	d := quietPatience
	(nodes &^ nodeSet(h.quiet.Load())).each(func(i int) {
		d = max(d, minPatience, 4*time.Duration(h.latency[i].Load()))
	})
	return d
}

// expected is how long the slowest of the given nodes may take to answer now: four times what it took last, and no more
// than minPatience. 0: none of them can be expected to answer.
func (h *health) expected(nodes nodeSet) (d time.Duration) {
	(nodes &^ nodeSet(h.quiet.Load())).each(func(i int) {
		d = max(d, time.Millisecond, 4*time.Duration(h.latency[i].Load()))
	})
	return min(d, minPatience)
}

// first returns the node to ask first instead of i: the next that is not known to be silent.
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

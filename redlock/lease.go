package redlock

import (
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/node"
)

// lease is the state of a lock that was acquired. The Client keeps it in Grant.Private.
type lease struct {
	turn   *turn  // the turn that it was acquired with; nil if it did not wait
	waited bool   // the caller has seen others hold the lock
	last   uint64 // the last of its fencing tokens

	mu sync.Mutex
	holding
	// until is when the keys of the last majority may expire. It is not before the end of the Client's lease.
	until   time.Time
	sending []*node.Call // by node; the acquisition that is pending
	marked  bool         // a node has answered that others wait, or have waited
	kept    time.Time    // until when the lock stays taken after its release; zero: not at all
	updates *leaseUpdate // operations in progress, which are told when a pending node has answered
}

// aheadOn returns the counter of node i if it is greater than the token, or 0.
func (l *lease) aheadOn(i int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead[i]
}

// landed reports whether all acquisitions that were sent to node i are known to have been executed.
func (l *lease) landed(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.doubtful.has(i)
}

// wasMarked reports whether a node has answered an extension that others wait, or have waited. The answer may have come
// after the decision of that extension.
func (l *lease) wasMarked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marked
}

// turnElsewhere reports whether the turn is on a node that is not part of the lease. The release does not pass that
// turn on.
func (l *lease) turnElsewhere() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turn != nil && !(l.held | l.pending | l.doubtful).has(l.turn.node)
}

// await notes that the acquisition on node i, of n nodes, is pending. Call with mu held.
func (l *lease) await(i int, c *node.Call, n int) {
	l.pending |= only(i)
	if l.sending == nil {
		l.sending = make([]*node.Call, n)
	}
	l.sending[i] = c
}

// withdraw takes back the pending acquisitions that were not sent yet. Call with mu held.
func (l *lease) withdraw() {
	l.pending.each(func(i int) {
		if l.sending[i].Withdraw() {
			l.pending &^= only(i)
			l.sending[i] = nil
		}
	})
}

// answerIn returns what a vote says to the lease of its acquisition.
func answerIn(v *node.Vote) answer {
	switch {
	case v.Granted:
		return yes
	case v.Doubtful:
		return unknown
	default:
		return no
	}
}

// lastOf returns the last of n fencing tokens from first on.
func lastOf(first uint64, n int) uint64 { return first + uint64(max(1, n)) - 1 }

// reached returns the greatest counter that is known from v, the answer to an acquisition.
func reached(v *node.Vote, req *backend.Request) uint64 {
	if v.Granted {
		return lastOf(v.Counter, req.Fences)
	}
	return v.Counter
}

// late records v, a node's answer to c, an acquisition, after the lease was made.
func (b *majority) late(l *lease, req *backend.Request, c *node.Call, v *node.Vote) {
	i, a := c.Tag, answerIn(v)
	b.hints.note(req.Key, false, reached(v, req))
	l.mu.Lock()
	l.sending[i] = nil // the call is part of a larger value, which can be freed now
	l.over = l.over || time.Now().After(l.until)
	landed := a != unknown && !l.doubtful.has(i)
	if isHeld(v.Err) {
		l.unheard &^= only(i)
	}
	orphan := l.holding.late(i, a, v.Counter, req.Fence, l.turn.on(i) != "")
	for u := l.updates; u != nil; u = u.next {
		if u.absent.has(i) {
			u.absent &^= only(i)
			u.ready <- c // see fanout.ready
		}
	}
	l.mu.Unlock()
	if orphan { // no operation will release it
		b.releaseLater(l, req, i, landed)
	}
}

// releaseLater releases node i in the background. The lock stays taken there no longer than after a release that came
// in time.
func (b *majority) releaseLater(l *lease, req *backend.Request, i int, landed bool) {
	l.mu.Lock()
	kept := l.kept
	l.mu.Unlock()
	own := *req
	own.Keep = max(0, time.Until(kept))
	b.nodes[i].ReleaseLater(&own, landed, l.turn.on(i))
}

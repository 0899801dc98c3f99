package redlock

import (
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// lease is what the backend knows of one acquisition; the Client keeps it, in Grant.Private.
type lease struct {
	turn   *turn // that it was acquired by; nil if it was not waited for
	waited bool  // others have been in the way

	mu sync.Mutex
	holding
	until   time.Time    // when the keys of the last majority may end; not before the Client's
	sending []*node.Call // by node: the acquisition that is pending
	kept    time.Time    // until when the lock stays taken after its release; zero: it does not
	updates *leaseUpdate // are told when a pending node has answered
}

// validity is the Client's: keys of a server whose clock is too fast end before their time.
func validity(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// aheadOn returns the counter of node i if that is ahead of the token, or 0.
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

// turnElsewhere reports that the turn is on a node that the lease does not have, so that no release will pass it on.
func (l *lease) turnElsewhere() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turn != nil && !(l.held | l.pending | l.doubtful).has(l.turn.node)
}

// await notes that the acquisition of node i, of n, goes on. Call with mu held.
func (l *lease) await(i int, c *node.Call, n int) {
	l.pending |= only(i)
	if l.sending == nil {
		l.sending = make([]*node.Call, n)
	}
	l.sending[i] = c
}

// withdraw takes back the acquisitions that were not sent yet. Call with mu held.
func (l *lease) withdraw() {
	l.pending.each(func(i int) {
		if l.sending[i].Withdraw() {
			l.pending &^= only(i)
			l.sending[i] = nil
		}
	})
}

// late records what a node has answered to c, an acquisition, after the lease was there.
func (b *backend) late(l *lease, req *locker.Request, c *node.Call, v node.Vote) {
	i := c.Tag
	b.hints.note(req.Key, false, v.Counter)
	a := no
	switch {
	case v.Granted:
		a = yes
	case v.Doubtful:
		a = unknown
	}
	l.mu.Lock()
	l.sending[i] = nil // it is part of something larger
	l.over = l.over || time.Now().After(l.until)
	landed := a != unknown && !l.doubtful.has(i)
	if isHeld(v.Err) {
		l.unheard &^= only(i)
	}
	orphan := l.holding.late(i, a, v.Counter, req.Fence, l.turn.on(i) != "")
	for u := l.updates; u != nil; u = u.next {
		if u.absent.has(i) {
			u.absent &^= only(i)
			u.ready <- c // has room
		}
	}
	l.mu.Unlock()
	if orphan { // nobody else will, now or any more
		b.releaseLater(l, req, i, landed)
	}
}

// releaseLater releases node i in the background. What is kept is kept no longer than by a release that came in time.
func (b *backend) releaseLater(l *lease, req *locker.Request, i int, landed bool) {
	l.mu.Lock()
	kept := l.kept
	l.mu.Unlock()
	own := *req
	own.Keep = max(0, time.Until(kept))
	b.nodes[i].ReleaseLater(&own, landed, l.turn.on(i))
}

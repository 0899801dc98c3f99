package redlock

import (
	"sync"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// lease is what the backend knows of one acquisition; the Client keeps it, in Grant.Private. A node's part of it is over
// when it has answered, so that a minority's late answers do not hold up anything, and per node the steps keep their
// order: what is released was granted before.
type lease struct {
	turn   *turn // that it was acquired by; nil if it was not waited for
	waited bool  // others have been in the way

	mu      sync.Mutex
	held    nodeSet // granted here
	pending nodeSet // the attempt is on its way; see backend.late
	// ahead has the counters of nodes that granted late and with more than the token. Nobody else's token can lie
	// between: such a node extends and releases by its own counter. See docs/adr/0010-late-grants-ahead-of-the-token.md.
	ahead    map[int]uint64
	released bool    // Release was called: a late grant is released, too
	deleted  nodeSet // the release was confirmed
	waiting  *poll   // are told when a pending node has answered
}

// granted records that node i has granted.
func (l *lease) granted(i int, counter, token uint64) {
	l.held |= only(i)
	if counter > token {
		if l.ahead == nil {
			l.ahead = map[int]uint64{}
		}
		l.ahead[i] = counter
	}
}

// aheadOn returns the counter of node i if that is ahead of the token, or 0.
func (l *lease) aheadOn(i int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ahead[i]
}

// turnElsewhere reports that the turn is on a node that the lease does not have, so that no release will pass it on.
func (l *lease) turnElsewhere() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turn != nil && !(l.held | l.pending).has(l.turn.node)
}

// late records a node's answer that came after the round was won.
func (b *backend) late(l *lease, req *locker.Request, i int, v node.Vote) {
	b.memory.note(req.Key, false, v.Counter)
	l.mu.Lock()
	orphan := l.released && (v.Granted || l.turn.on(i) != "")
	l.pending &^= only(i)
	if v.Granted {
		l.granted(i, v.Counter, req.Fence)
	}
	for w := l.waiting; w != nil; w = w.next {
		w.late <- i // has room
		orphan = orphan && !(v.Granted && w.releases())
	}
	l.mu.Unlock()
	if v.Doubtful {
		b.nodes[i].Undo(req, false)
	}
	if orphan { // released everywhere else, where those who wait have been told
		b.nodes[i].ReleaseLater(req, l.turn.on(i))
	}
}

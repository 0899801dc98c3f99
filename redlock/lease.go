package redlock

import (
	"sync"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// lease is what the backend knows of one acquisition; the Client keeps it, in Grant.Private.
type lease struct {
	turn   *turn // that it was acquired by; nil if it was not waited for
	waited bool  // others have been in the way

	mu sync.Mutex
	holding
	waiting *poll // are told when a pending node has answered
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
	orphan := l.late(i, v.Granted, v.Counter, req.Fence, l.turn.on(i) != "")
	for w := l.waiting; w != nil; w = w.next {
		w.late <- i // has room
	}
	l.mu.Unlock()
	if v.Doubtful {
		b.nodes[i].Undo(req, false)
	}
	if orphan { // released everywhere else, where those who wait have been told
		b.nodes[i].ReleaseLater(req, l.turn.on(i))
	}
}

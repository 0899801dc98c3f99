package redlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/internal/node"
)

const (
	// turnPatience bounds how long the node that keeps the queue may take to answer before the next one takes its
	// place.
	turnPatience = 500 * time.Millisecond
	// soon is the pause before a waiter looks a second time. Each further pause is twice as long, up to what the node
	// asks for. The lock that the waiter saw may have been a failed attempt, whose clean-up notifies nobody. And if the
	// node has failed, the waiter should not miss many turns that others take elsewhere.
	soon = 50 * time.Millisecond
	// ownLooks is how often a waiter looks, within the first 60 ms after an attempt that failed, without taking what the
	// attempt may have got for the lock of another.
	ownLooks = 5
)

// turn is a position in the queue of one node. All clients use the same node as long as it is up. N queues would have N
// orders, so a queue cannot be the lock. It says which waiter asks the quorum next, and a waiter that is not notified
// in time asks anyway. Safety does not depend on turns: a lost, wrong or doubled turn costs a split vote. See
// docs/adr/0014-waiters-queue-on-the-server.md.
type turn struct {
	node int
	*node.Turn
}

// keeper returns the node that keeps the queue for key. If there is a turn, that is the node of the turn.
func (b *backend) keeper(key string, t *turn) int {
	if t != nil {
		return t.node
	}
	return b.hints.fit(key, agreed(key, len(b.nodes)), len(b.nodes))
}

// on returns the turn's ID if node i keeps the turn, or "".
func (t *turn) on(i int) string {
	if t == nil || t.node != i {
		return ""
	}
	return t.ID()
}

// stand takes or keeps a position in the queue. If the node that keeps the queue does not answer, the next node takes
// its place.
func (w *waiter) stand(ctx context.Context) (s node.Standing, err error) {
	n := len(w.b.nodes)
	for range n {
		if w.turn == nil {
			w.take(w.b.keeper(w.req.Key, nil))
		}
		i := w.turn.node
		start := time.Now()
		tctx, cancel := context.WithTimeout(ctx, min(turnPatience, w.b.health.patience(only(i))))
		s, err = w.turn.Ask(tctx)
		cancel()
		if err == nil {
			w.b.health.answered(i, time.Since(start))
			pause := soon
			switch {
			case s.Left > 0 && w.looks < ownLooks && w.last != nil && w.last.mayRemain(i):
				pause = minBackoff // the lock may be what the last attempt got, and be gone in a moment
			case s.Left > 0:
				w.held.Label, w.known = s.Label, true
				fallthrough
			case !s.Mine:
				w.saw(s.Left)
				w.sure = w.sure || w.looks > 0
			}
			d := pause << min(w.looks, 10)
			s.Again = min(s.Again, d/2+rand.N(d/2))
			w.looks++
			return s, nil
		}
		if ctx.Err() != nil {
			return s, err
		}
		w.b.health.silent(i)
		w.leave()
		w.take((i + 1) % n)
		w.moved = true
	}
	return s, err
}

// take makes a turn on node i, or on the next node that is not known to be silent.
func (w *waiter) take(i int) {
	i = w.b.health.first(i, len(w.b.nodes))
	w.turn = &turn{i, w.b.nodes[i].NewTurn(w.req.Key)}
}

// leave gives up the position. The command for that is repeated until it is answered. It also releases what w.req.Token
// has, so no later attempt may use that token.
func (w *waiter) leave() {
	if w.turn != nil {
		req := w.req
		w.turn.Leave(&req, w.last == nil || !w.last.underWay(w.turn.node))
		w.turn, w.attempted = nil, true
	}
}

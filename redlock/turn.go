package redlock

import "github.com/golocker/locker/internal/node"

// turn is a position in the queue of one node. All clients use the same node as long as it is up. N queues would have N
// orders, so a queue cannot be the lock. It says which waiter asks the quorum next, and a waiter that is not notified
// in time asks anyway. Safety does not depend on turns: a lost, wrong or doubled turn costs a split vote. See
// docs/adr/0013-turns-as-advice.md.
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

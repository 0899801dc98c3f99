package redlock

import "github.com/golocker/locker/internal/node"

// turn is a place in the queue of one node, the same node for all clients as long as it is up. N queues would have N
// orders, so no queue can be the lock: it says who asks the quorum next, and a waiter that is not told in time asks
// anyway. Safety never looks at it; a lost, wrong or doubled turn costs a split vote. See
// docs/adr/0013-turns-as-advice.md.
type turn struct {
	node int
	*node.Turn
}

// keeper returns the node that keeps the queue for key: that of the turn, if there is one.
func (b *backend) keeper(key string, t *turn) int {
	if t != nil {
		return t.node
	}
	return b.hints.fit(key, agreed(key, len(b.nodes)), len(b.nodes))
}

// on returns the turn's ID for node i, if that is where it is.
func (t *turn) on(i int) string {
	if t == nil || t.node != i {
		return ""
	}
	return t.ID()
}

package node

import (
	"errors"

	"github.com/golocker/locker/drivers"
)

// isMovingError reports whether err says that a Redis Cluster refused a command because a slot moves; see isMoving.
func (n *Node) isMovingError(err error) bool {
	if !n.sharded || err == nil {
		return false
	}
	var refusal drivers.ServerError
	return errors.As(err, &refusal) && isMoving(refusal)
}

// isMoving reports whether a server of a Redis Cluster has refused a command because its slot moves, or because no
// server has the slot. A redirection is one that the client has not followed, for example to a server that is gone.
func isMoving(reply drivers.Reply) bool {
	refusal, _ := reply.(drivers.ServerError)
	switch refusal.Code() {
	case "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN":
		return true
	}
	return false
}

package redlock

import (
	"errors"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// sameServer is the error of a node that has no vote, because its server has the attempt's lock as another node. A
// server has one vote: each node writes its number into the value of the lock, and a vote counts only if owner and
// number agree. See docs/adr/0025-the-nodes-number-in-the-value.md.
type sameServer struct{ a, b string }

func (e *sameServer) Error() string { return e.a + " and " + e.b + " are the same server" }

// Unwrap makes the error match ErrUnavailable, because for locks the node does not exist.
func (e *sameServer) Unwrap() error { return locker.ErrUnavailable }

func isSameServer(err error) bool {
	return errors.As(err, new(*sameServer))
}

// vote reads the outcome of an acquisition.
func (b *backend) vote(c *node.Call, i int) node.Vote {
	v := c.Vote()
	v.Err = b.name(i, v.Err)
	return v
}

// name returns err, or, if node i has answered that its server is another node as well, an error with the names of
// both.
func (b *backend) name(i int, err error) error {
	var alias *node.Alias
	if !errors.As(err, &alias) {
		return err
	}
	k := alias.Number - 1
	if k == i || k >= len(b.names) {
		return err
	}
	same := &sameServer{b.names[min(i, k)], b.names[max(i, k)]}
	if told := b.duplicates.Or(uint64(only(i))); !nodeSet(told).has(i) {
		b.logger.Error("redlock: two nodes are one server; it has one vote", "error", same)
	}
	return same
}

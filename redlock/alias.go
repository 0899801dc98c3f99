package redlock

import (
	"errors"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// sameServer is why a node has no vote: the server that its address leads to has the attempt's lock as another node. A
// server has one vote, because each node writes its number into the value of the lock, and only "owner and number are
// mine" counts. See docs/adr/0025-the-nodes-number-in-the-value.md.
type sameServer struct{ a, b string }

func (e *sameServer) Error() string { return e.a + " and " + e.b + " are the same server" }

// Unwrap says that the node is not there as far as locks are concerned.
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

// name gives an answer of node i that is no vote, because its server is another node as well, the names of both.
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

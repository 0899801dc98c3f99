package redlock

import (
	"context"
	"fmt"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// Verify implements locker.Verifier. The proof is that a majority answers this call that the lock is the lease's, with
// a counter that is not past the token. Had a greater token been issued before, a node of that majority would have
// granted or raised its lock to that token for another owner. A lock that it grants after that has a greater counter.
//
// This needs nothing but the answers: no clock, and no knowledge of what the nodes said before. So it is not a proof if
// a node granted late with a counter past the token, although such a node extends and releases: see
// docs/adr/0035-verify-by-fresh-answers.md.
func (b *backend) Verify(ctx context.Context, req locker.Request) error {
	l, ok := req.Private.(*lease)
	if !ok {
		return errForeignRequest
	}
	b.calls.Enter()
	defer b.calls.Leave()
	return newLeaseUpdate(b, l, req, opVerify).run(ctx)
}

// errAhead is the answer of a node that has the lock of the lease, with a counter past the token.
var errAhead = fmt.Errorf("%w: it granted late, with a counter past the token", locker.ErrUnavailable)

// said returns what node c.Tag has answered.
func (u *leaseUpdate) said(c *node.Call) error {
	err := c.Owned()
	u.b.logDuplicate(c.Tag, err)
	if err == nil && u.op == opVerify && u.ahead.has(c.Tag) {
		return errAhead
	}
	return err
}

// verified is called when a verification was decided. A lease that a majority has denied is lost, and must not heal.
func (u *leaseUpdate) verified() {
	u.l.mu.Lock()
	defer u.l.mu.Unlock()
	u.l.over = u.l.over || u.tally.outcome() == lost
}

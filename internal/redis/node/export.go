package node

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/script"
)

// Export implements backend.Exporter.
func (n *Node) Export(ctx context.Context, req backend.Request, to string) error {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	if err := n.covers(&req); err != nil {
		return err
	}
	cmd := n.releaseOf(&req, landed(&req), script.NotifyQueue).Export(to, req.TTL)
	err := n.owned(n.grant(ctx, cmd, n.timeout, n.timeout/2, nil))
	var lost *locker.NotHeldError
	if errors.As(err, &lost) && lost.Reason == locker.LostSuperseded {
		n.leave(&req, landed(&req)) // a late request of the owner has the lock, and nobody else would release it
	}
	return err
}

// Resume implements backend.Exporter.
func (n *Node) Resume(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	if err := n.Check(&req); err != nil {
		return backend.Grant{}, err
	}
	if err := n.chores.Backlog(); err != nil {
		return backend.Grant{}, n.fault(err)
	}
	var a script.Acquired
	reply, err := n.grant(ctx, n.attempt(&req).Resume(from, req.TTL), req.TTL, n.moving(req.TTL), nil)
	if err == nil {
		a, err = script.ReadResumed(reply)
	}
	if err == nil {
		err = errorOf(a.Status, locker.HeldError{Remaining: a.Left}, 0)
	}
	if err == nil && n.closed() { // the caller cannot release the lock any more
		err = locker.ErrClosed
	}
	if err != nil {
		if isDoubtful(err) {
			n.giveUp(&req, from)
		}
		return backend.Grant{}, n.fault(err)
	}
	return backend.Grant{Fence: a.Counter}, nil
}

// giveUp undoes an attempt to resume, in the background. The lock is first released from the owner value of the text.
// Once it does not have that, the attempt has been executed, or finds nothing when it arrives.
func (n *Node) giveUp(req *backend.Request, from string) {
	text := *req
	text.Token = from
	first, then := n.undoing(&text, true, script.NotifyQueue), n.undoing(req, true, script.NotifyQueue)
	n.chores.Repeat(time.Now().Add(then.life), func(ctx context.Context) error {
		if err := n.clean(ctx, first); err != nil {
			return err
		}
		return n.clean(ctx, then)
	})
}

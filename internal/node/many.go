package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

var errOneByOne = fmt.Errorf("the locks cannot be acquired in one step: %w", errors.ErrUnsupported)

// AcquireMany implements locker.ManyAcquirer, with one call of a script. Behind a Redis Cluster, the locks have to
// share a hash slot.
func (n *Node) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	return n.acquireMany(ctx, reqs, script.NotifySubscribers)
}

// AcquireMany implements locker.ManyAcquirer.
func (q QueuedNode) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	return q.acquireMany(ctx, reqs, script.NotifyQueue)
}

// AcquireMany implements locker.ManyAcquirer.
func (c *Cluster) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	return c.of(reqs[0].Key).AcquireMany(ctx, reqs)
}

// AcquireMany implements locker.ManyAcquirer.
func (c QueuedCluster) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	return QueuedNode{c.of(reqs[0].Key)}.AcquireMany(ctx, reqs)
}

// acquireMany makes one attempt to acquire all locks. If it has to be undone, notify says who is notified.
func (n *Node) acquireMany(ctx context.Context, reqs []locker.Request, notify script.Notify) ([]locker.Grant, error) {
	n.calls.Enter()
	defer n.calls.Leave()
	attempts := make([]script.Attempt, len(reqs))
	for i := range reqs {
		if err := n.Check(&reqs[i]); err != nil {
			return nil, &locker.Error{Op: "trylock", Key: reqs[i].Key, Err: err}
		}
		attempts[i] = n.attempt(&reqs[i])
	}
	if len(reqs) > script.MaxAll || n.keepsSlots() && !oneSlot(attempts) {
		return nil, errOneByOne
	}
	if n.cleaner.full() {
		return nil, n.fault(pipeline.ErrFull)
	}
	undo := func(landed bool) {
		for i := range reqs {
			n.cleaner.add(n.undoing(&reqs[i], landed, notify))
		}
	}
	late := func(reply drivers.Reply, err error) { // as in Acquire
		if all, _ := script.ReadAll(reply, len(reqs)); err == nil && all.Status == script.Granted {
			undo(true)
		}
	}
	reply, err := n.grant(ctx, script.AcquireAll(attempts, reqs[0].TTL), reqs[0].TTL, late)
	var all script.All
	if err == nil {
		all, err = script.ReadAll(reply, len(reqs))
	}
	var refusal drivers.ServerError
	switch {
	case errors.As(err, &refusal) && script.IsForMany(refusal):
		return nil, errOneByOne
	case err != nil:
		if isDoubtful(err) {
			undo(isShortfall(err))
		}
		return nil, n.fault(err)
	case all.Status == script.Waiting:
		held := &locker.HeldError{Remaining: all.Left, Label: all.Label}
		return nil, &locker.Error{Op: "trylock", Key: reqs[all.Index].Key, Err: held}
	case all.Status == script.Gone:
		undo(true)
		return nil, n.fault(errors.New("some of the locks were taken away before the answer came"))
	case all.Status != script.Granted:
		return nil, errOneByOne
	case n.closed(): // the caller cannot release the locks any more
		undo(true)
		return nil, locker.ErrClosed
	}
	grants := make([]locker.Grant, len(reqs))
	for i, c := range all.Counters {
		grants[i].Fence = c
	}
	return grants, nil
}

// oneSlot reports whether the locks of attempts share a hash slot.
func oneSlot(attempts []script.Attempt) bool {
	for _, a := range attempts {
		if script.Slot(a.Lock) != script.Slot(attempts[0].Lock) {
			return false
		}
	}
	return true
}

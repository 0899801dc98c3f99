package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// guardError says why a node does not grant a lock because of its restart guard. Nothing was granted then.
type guardError struct {
	status script.Status
	left   time.Duration // see script.Acquired
}

func (e *guardError) Error() string { return fmt.Sprintf("status %d of the restart guard", e.status) }

// of returns the error for callers of n.
func (e *guardError) of(n *Node) error {
	switch e.status {
	case script.Resting:
		return &locker.RestingError{Node: n.name, Remaining: e.left}
	case script.OtherGuard:
		return fmt.Errorf("%w: %s: the restart guard of this client is for TTLs of up to %v, and that of other "+
			"clients with the same prefix for up to %v: all must have the same", locker.ErrInvalid, n.name,
			n.maxTTL, script.MaxTTLOf(e.left))
	default:
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, ErrNoGuard})
	}
}

// ErrNoGuard is the error of a node that cannot have a restart guard. It grants nothing.
var ErrNoGuard = errors.New("the restart guard needs INFO inside of scripts: the user needs the right to it " +
	"(ACL: +info), and some managed services do not have it")

// covers returns an error that matches locker.ErrInvalid if the guard does not cover a lock for as long as req says.
func (n *Node) covers(req *locker.Request) error {
	what, d := "TTL", req.TTL
	if req.MinHold > d {
		what, d = "MinHold", req.MinHold
	}
	if n.guard == nil || d <= n.maxTTL {
		return nil
	}
	return fmt.Errorf("%w: %s %v is above the %v that the restart guard allows", locker.ErrInvalid, what, d, n.maxTTL)
}

// touch begins the rest of a node that has to rest, so that it is over earlier. Nobody waits for it. If it fails, the
// first acquisition begins the rest. If each slot has a marker, that is too many to touch.
func (n *Node) touch() {
	if !n.keepsSlots() {
		n.pipeline.Submit(&pipeline.Call{Command: n.guard.Touch()}, func() {})
	}
}

// Bootstrap ends the rest of the node. The caller says that the node has forgotten no lock that may still be held.
func (n *Node) Bootstrap(ctx context.Context) error {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	return n.trust(ctx, 0)
}

func (n *Node) trust(ctx context.Context, slot uint16) error {
	if n.guard == nil {
		return fmt.Errorf("%w: there is no restart guard", locker.ErrInvalid)
	}
	reply, err := n.pipeline.Do(ctx, n.guard.Trust(slot), n.timeout, nil)
	if err == nil {
		var s script.Status
		var left time.Duration
		if s, left, err = script.ReadTouched(reply); err == nil && s != script.Granted {
			err = &guardError{s, left}
		}
	}
	return n.fault(err)
}

// CloseWithin calls the Close of what a bootstrap has used, and returns when ctx ends, if not before. The server may be
// silent, and the driver belongs to the caller. So nothing interrupts the command in flight, and Close then ends in the
// background, with the timeout of that command.
func CloseWithin(ctx context.Context, c io.Closer) error {
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return nil // the bootstrap has failed for the same reason
	}
}

// Bootstrap does for all slots of the cluster what [Node.Bootstrap] does for a node. It stops at the first error.
func (c *Cluster) Bootstrap(ctx context.Context) error {
	n := New(Lend(c.driver), c.options)
	defer func(ctx context.Context) { _ = CloseWithin(ctx, n) }(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	const callers = 4 * pipeline.MaxBatch // as many as the pipeline sends at once
	for i := range callers {
		wg.Go(func() {
			for slot := i; slot < script.Slots && ctx.Err() == nil; slot += callers {
				if err := n.trust(ctx, uint16(slot)); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// Lend returns d as a driver that a Node can own without closing d.
func Lend(d drivers.Driver) drivers.Driver {
	if _, ok := d.(drivers.Cluster); ok {
		return part{d, func() error { return nil }}
	}
	return lent{d}
}

type lent struct{ drivers.Driver }

func (lent) Close() error { return nil }

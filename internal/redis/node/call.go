package node

import (
	"errors"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
)

// Call is one command that was sent to a node. When its outcome is known, it comes through the channel that it was
// started with, unless its caller has left it.
type Call struct {
	// Tag is set by the caller. It tells calls apart that share a channel.
	Tag int

	node  *Node
	ready chan<- *Call
	call  pipeline.Call
}

// Latecomer is told the outcome of a call whose caller did not wait for it. Late is called from another goroutine, and
// must not block it.
type Latecomer interface{ Late(c *Call) }

// Leave is for a caller that stops waiting. It returns whether the command was sent. If it was sent and its outcome is
// not known yet, late is told the outcome when it is known; late may be nil. If the outcome is known already, done is
// true, late is not told, and the call may already be in the channel.
func (c *Call) Leave(late Latecomer) (wasSent, done bool) {
	if c.Withdraw() {
		return false, false
	}
	return true, c.Follow(late)
}

// Follow is for a caller that stops waiting but wants the command to be carried out, even if it was not sent yet. When
// the outcome is known, late is told. If the outcome is known already, done is true, and late is not told.
func (c *Call) Follow(late Latecomer) (done bool) {
	return c.node.pipeline.Follow(&c.call, func() {
		if late != nil {
			late.Late(c)
		}
	})
}

// Withdraw takes back a command that was not sent yet, and reports whether it could. A call that was withdrawn never
// comes through its channel.
func (c *Call) Withdraw() bool { return c.node.pipeline.Withdraw(&c.call) }

// UnderWay reports whether c was sent and its outcome is not known yet.
func (c *Call) UnderWay() bool { return c.node.pipeline.UnderWay(&c.call) }

// of makes c a call of cmd, on n, whose outcome comes through ready. It returns the parameters of Pipeline.Submit.
func (c *Call) of(n *Node, ready chan<- *Call, tag int, cmd script.Command) (call *pipeline.Call, answered func()) {
	c.node, c.ready, c.Tag, c.call.Command = n, ready, tag, cmd
	return &c.call, c.answered
}

func (c *Call) answered() {
	if c.ready != nil {
		c.ready <- c // StartAcquire demands room
	}
}

// Vote is a node's answer to an attempt to acquire.
type Vote struct {
	Granted bool
	// Counter is the fencing counter of the node: the one that it granted, or its present one if somebody else holds
	// the lock.
	Counter uint64
	// Owner is the beginning of the holder's token.
	Owner string
	// Err is nil if Granted is true. Otherwise it is a *locker.HeldError, locker.ErrForeignKey, a *SameServer,
	// locker.ErrClosed, an error that matches locker.ErrInvalid because other clients have another restart guard, or a
	// fault with the name of the node.
	Err error
	// Doubtful says that the attempt may have been executed, or may be executed later, although no grant was seen. The
	// caller has to undo it.
	Doubtful bool
}

// Vote reads the outcome of an acquisition.
func (c *Call) Vote() Vote { return c.node.vote(c.call.Reply, c.call.Err) }

func (n *Node) vote(reply drivers.Reply, err error) Vote {
	if errors.Is(err, pipeline.ErrWithdrawn) {
		// The node is in order. In nearly all cases, somebody else has the lock or waits for it.
		return Vote{Err: &locker.HeldError{}}
	}
	if err != nil {
		return Vote{Err: n.fault(err), Doubtful: !isNotSent(err)}
	}
	a, err := script.ReadAcquired(reply)
	if err == nil {
		err = errorOf(a.Status, locker.HeldError{Remaining: a.Left, Label: a.Label}, a.Node)
	}
	return Vote{
		Granted: a.Status == script.Granted, Counter: a.Counter, Owner: a.Owner,
		Err: n.fault(err), Doubtful: err != nil && !known(err),
	}
}

// Owned reads the outcome of a raise, an extension or a release. It returns nil, locker.ErrNotHeld, a *SameServer, or
// a fault with the name of the node. After a fault the outcome is unknown.
func (c *Call) Owned() error { return c.node.owned(c.call.Reply, c.call.Err) }

func (n *Node) owned(reply drivers.Reply, err error) error {
	if err != nil {
		return n.fault(err)
	}
	o, err := script.ReadOwned(reply)
	if err == nil {
		err = errorOf(o.Status, locker.HeldError{}, o.Node)
	}
	return n.fault(err)
}

// Unfinished reports whether the release has to be repeated. The node has released the lock then, but has skipped many
// dead waiters without finding a live one.
func (c *Call) Unfinished() bool {
	o, _ := script.ReadOwned(c.call.Reply) // with an error, Unfinished is valid as well
	return o.Unfinished
}

// Waited reports whether others wait for the lock that was released, or have waited for the lock that was extended.
func (c *Call) Waited() bool {
	o, _ := script.ReadOwned(c.call.Reply)
	return o.Waited
}

// CounterOptions has the parameters of [Node.StartAcquire] that the request does not have.
type CounterOptions struct {
	// Quantum, in µs, makes the counters of several nodes agree: each node rounds its clock down to a multiple of it. A
	// node that decides alone uses 1.
	Quantum int64
	// Hint is the largest counter that the caller has seen on any node, or 0.
	Hint uint64
}

// StartAcquire sends c, one attempt to acquire a key that [Node.Check] allows. The outcome comes through ready, which
// must have room for every call that shares it.
//
// The same holds for StartRaise, StartExtend and StartRelease. A Call must be zero before and can be used once.
func (n *Node) StartAcquire(c *Call, ready chan<- *Call, tag int, req *backend.Request, a CounterOptions) {
	call, answered := c.of(n, ready, tag, n.attempt(req).Acquire(req.TTL, a.Quantum, a.Hint))
	if err := n.chores.Backlog(); err != nil {
		call.Refuse(err)
		answered()
		return
	}
	n.pipeline.Submit(call, answered)
}

// StartRaise asks the node to raise its counter to req.Fence, and that of the slot to the last of the req.Fences
// tokens.
func (n *Node) StartRaise(c *Call, ready chan<- *Call, tag int, req *backend.Request) {
	n.pipeline.Submit(c.of(n, ready, tag, n.attempt(req).Raise(req.Fence)))
}

// StartExtend sends one extension.
func (n *Node) StartExtend(c *Call, ready chan<- *Call, tag int, req *backend.Request) {
	n.pipeline.Submit(c.of(n, ready, tag, n.attempt(req).Extend(req.TTL, req.Fence)))
}

// StartVerify asks whether the lock is held and the node has issued no token newer than req.Fence. [Call.Owned] reads
// the outcome. See also [Node.StartAcquire].
func (n *Node) StartVerify(c *Call, ready chan<- *Call, tag int, req *backend.Request) {
	n.pipeline.Submit(c.of(n, ready, tag, n.attempt(req).Verify(req.Fence)))
}

// StartRelease sends one release. landed says that all acquisitions of req are known to have been executed. If it is
// false, the release leaves a tombstone, so that none is executed later. turn is the ID of the Turn on this node that
// they were made by, or empty. See also [Node.ReleaseLater] and [Node.Undo].
func (n *Node) StartRelease(c *Call, ready chan<- *Call, tag int, req *backend.Request, landed bool, turn string) {
	r := n.releaseOf(req, landed, script.NotifyTurn)
	r.Turn = turn
	n.pipeline.Submit(c.of(n, ready, tag, r.Command()))
}

// ReleaseLater releases in the background, with the parameters of StartRelease. It repeats the release until the node
// has answered or there can be nothing left to release.
func (n *Node) ReleaseLater(req *backend.Request, landed bool, turn string) {
	c := n.undoing(req, landed, script.NotifyTurn)
	c.Turn = turn
	n.repeat(c)
}

// Undo undoes an attempt that failed, in the background as ReleaseLater does, but notifies no waiter. landed says that
// the attempt is known to have been executed. If it is false, the release leaves a tombstone.
func (n *Node) Undo(req *backend.Request, landed bool) {
	n.repeat(n.undoing(req, landed, script.NotifyNobody))
}

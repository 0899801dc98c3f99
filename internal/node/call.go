package node

import (
	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// Call is one command under way to a node. When its outcome is known, it comes through the channel that it was started
// with, unless it was left before; then what it says is final.
type Call struct {
	// Tag is the caller's, for calls that share a channel.
	Tag int

	node  *Node
	ready chan<- *Call
	call  pipeline.Call
}

// Latecomer learns what became of a call that its caller did not wait for, from a goroutine that it must not block.
type Latecomer interface{ Late(c *Call) }

// Leave is for a caller that does not wait any longer. It reports whether the command was sent. If so, late is told
// when the outcome is known; it may be nil. If the outcome is known already, done is true, late is not told, and the
// call may be on its way through the channel.
func (c *Call) Leave(late Latecomer) (wasSent, done bool) {
	if c.Withdraw() {
		return false, false
	}
	return true, c.Follow(late)
}

// Follow is for a caller that does not wait any longer either, but wants the command to be carried out, also if it was
// not sent yet: late is told when the outcome is known. If it is known already, done is true, and late is not told.
func (c *Call) Follow(late Latecomer) (done bool) {
	return c.node.pipeline.Follow(&c.call, func() {
		if late != nil {
			late.Late(c)
		}
	})
}

// Withdraw takes a command back that was not sent yet, and reports whether it could; nobody is told of it then.
func (c *Call) Withdraw() bool { return c.node.pipeline.Withdraw(&c.call) }

// UnderWay reports that c was sent, and that its outcome is not known yet.
func (c *Call) UnderWay() bool { return c.node.pipeline.UnderWay(&c.call) }

// send submits a command as c, whose outcome comes through ready.
func (n *Node) send(c *Call, ready chan<- *Call, tag int, cmd script.Command) {
	c.node, c.ready, c.Tag, c.call.Command = n, ready, tag, pipeline.Command(cmd)
	if n.closed() {
		c.refuse(pipeline.ErrClosed)
		return
	}
	n.pipeline.Submit(&c.call, c.answered)
}

// refuse resolves a call that is not sent, because of err.
func (c *Call) refuse(err error) {
	c.call.Refuse(err)
	c.answered()
}

func (c *Call) answered() {
	if c.ready != nil {
		c.ready <- c // has room
	}
}

// Vote is a node's answer to an attempt to acquire.
type Vote struct {
	Granted bool
	// Counter is the node's fencing counter: what it granted, or what it has while somebody else holds the lock.
	Counter uint64
	// Owner is the beginning of the holder's token.
	Owner string
	// Err is nil if Granted. Otherwise it is a *locker.HeldError, locker.ErrForeignKey, an *Alias, or a fault that
	// names the node.
	Err error
	// Doubtful: the attempt may have been executed although no grant was seen, or may be yet. It has to be undone.
	Doubtful bool
}

// Vote reads the outcome of an acquisition.
func (c *Call) Vote() Vote { return c.node.vote(c.call.Reply, c.call.Err) }

func (n *Node) vote(reply drivers.Reply, err error) Vote {
	if err != nil {
		return Vote{Err: n.fault(err), Doubtful: !isNotSent(err)}
	}
	v, err := decodeVote(reply)
	if err != nil {
		v.Err, v.Doubtful = n.fault(err), !known(err)
	}
	return v
}

// Owned reads the outcome of a raise, an extension or a release: nil, locker.ErrNotHeld, an *Alias, or a fault that
// leaves it unknown and names the node.
func (c *Call) Owned() error { return c.node.owned(c.call.Reply, c.call.Err) }

func (n *Node) owned(reply drivers.Reply, err error) error {
	if err == nil {
		err = decodeOwned(reply)
	}
	return n.fault(err)
}

// Unfinished reports that the node has released, but did not find the next one yet among many that are dead: the
// release is to be repeated.
func (c *Call) Unfinished() bool {
	o, _ := script.ReadOwned(c.call.Reply) // with an error, it says so nevertheless
	return o.Unfinished
}

// Waited reports that others wait for what was released.
func (c *Call) Waited() bool {
	o, _ := script.ReadOwned(c.call.Reply)
	return o.Waited
}

// Acquisition is what [Node.StartAcquire] needs beyond the request.
type Acquisition struct {
	// Quantum, in µs, makes the counters of several nodes agree: each rounds its clock down to it. 1 for one node.
	Quantum int64
	// Hint is the largest counter seen on any node. 0: none.
	Hint uint64
}

// StartAcquire sends c, one attempt on a key that [Node.Check] allows. It is told through ready, which must have room
// for every call that shares it.
//
// So are StartRaise, StartExtend and StartRelease. c is used once, and was zero before.
func (n *Node) StartAcquire(c *Call, ready chan<- *Call, tag int, req *locker.Request, a Acquisition) {
	if n.cleaner.full() {
		c.node, c.ready, c.Tag = n, ready, tag
		c.refuse(pipeline.ErrFull)
		return
	}
	n.send(c, ready, tag, n.attempt(req).Acquire(req.TTL, a.Quantum, a.Hint))
}

// StartRaise asks the node to raise its counter to req.Fence.
func (n *Node) StartRaise(c *Call, ready chan<- *Call, tag int, req *locker.Request) {
	n.send(c, ready, tag, n.attempt(req).Raise(req.Fence))
}

// StartExtend sends one extension.
func (n *Node) StartExtend(c *Call, ready chan<- *Call, tag int, req *locker.Request) {
	n.send(c, ready, tag, n.attempt(req).Extend(req.TTL, req.Fence))
}

// StartRelease sends one release. landed says that all acquisitions of req are known to have been executed; otherwise
// they are also kept from landing later. turn is the ID of the Turn on this node that they were made by, if any. See
// also [Node.ReleaseLater] and [Node.Undo].
func (n *Node) StartRelease(c *Call, ready chan<- *Call, tag int, req *locker.Request, landed bool, turn string) {
	r := n.releaseOf(req, landed, script.NotifyTurn)
	r.Turn = turn
	n.send(c, ready, tag, r.Command())
}

// ReleaseLater does the same in the background, and goes on until the node has answered or there can be nothing left to
// release.
func (n *Node) ReleaseLater(req *locker.Request, landed bool, turn string) {
	c := n.undoing(req, landed, script.NotifyTurn)
	c.Turn = turn
	n.cleaner.add(c)
}

// Undo undoes an attempt that failed, as ReleaseLater does, but tells nobody. landed says that it is known to have been
// executed; otherwise it is also kept from landing later.
func (n *Node) Undo(req *locker.Request, landed bool) {
	n.cleaner.add(n.undoing(req, landed, script.NotifyNobody))
}

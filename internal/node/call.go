package node

import (
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// Call is one command under way to a node. When its outcome is known, it comes through the channel that it was started
// with, unless it was left before; then what it says is final.
type Call struct {
	// Tag is the caller's, for calls that share a channel.
	Tag int

	node   *Node
	script *script
	cmd    drivers.Command
	ready  chan<- *Call
	// guarded by the queue's mu until resolved
	state callState
	late  func(*Call)

	reply drivers.Reply
	err   error // the outcome is unknown, or matches drivers.ErrNotSent
}

type callState uint8

const (
	waiting callState = iota
	sent
	resolved
)

// Leave is for a caller that does not wait any longer. It reports whether the command was sent. If so, late is called
// when the outcome is known, by a goroutine that it must not block; it may be nil. If the outcome is known already, done
// is true, and late is not called.
func (c *Call) Leave(late func(*Call)) (wasSent, done bool) {
	return c.node.queue.leave(c, late)
}

// Vote is a node's answer to an attempt to acquire.
type Vote struct {
	Granted bool
	// Counter is the node's fencing counter: what it granted, or what it has while somebody else holds the lock.
	Counter uint64
	// Owner is the beginning of the holder's token.
	Owner string
	// Err is nil if Granted. Otherwise it is a *locker.HeldError, locker.ErrForeignKey, or a fault that names the node.
	Err error
	// Doubtful: the attempt may have been executed although no grant was seen, or may be yet. It has to be undone.
	Doubtful bool
}

// Vote reads the outcome of an acquisition.
func (c *Call) Vote() Vote {
	if c.err != nil {
		return Vote{Err: c.node.fault(c.err), Doubtful: !isNotSent(c.err)}
	}
	v, err := decodeVote(c.reply)
	if err != nil {
		v.Err, v.Doubtful = c.node.fault(err), !known(err)
	}
	return v
}

// Owned reads the outcome of a raise, an extension or a release: nil, locker.ErrNotHeld, or a fault that leaves it
// unknown and names the node.
func (c *Call) Owned() error {
	if c.err != nil {
		return c.node.fault(c.err)
	}
	return c.node.fault(decodeOwned(c.reply))
}

// Acquisition is what [Node.StartAcquire] needs beyond the request.
type Acquisition struct {
	// Quantum, in µs, makes the counters of several nodes agree: each rounds its clock down to it. 1 for one node.
	Quantum int64
	// Hint is the largest counter seen on any node. 0: none.
	Hint uint64
}

// StartAcquire sends one attempt on a key that [Node.Check] allows. The channel must have room for every call that shares
// it.
func (n *Node) StartAcquire(ready chan<- *Call, tag int, req *locker.Request, a Acquisition) *Call {
	if n.cleaner.full() {
		return n.resolved(ready, tag, drivers.NotSent(errFull))
	}
	k := keysOf(n.prefix + req.Key)
	return n.start(ready, tag, acquireScript, acquireScript.command([]string{k.lock, k.fence, k.gone + req.Token},
		req.Token, milliseconds(req.TTL), decimal(uint64(a.Quantum)), decimal(a.Hint)))
}

// StartRaise asks the node to raise its counter to req.Fence.
func (n *Node) StartRaise(ready chan<- *Call, tag int, req *locker.Request) *Call {
	k := keysOf(n.prefix + req.Key)
	return n.start(ready, tag, raiseScript, raiseScript.command([]string{k.lock, k.fence},
		req.Token, decimal(req.Fence)))
}

// StartExtend sends one extension.
func (n *Node) StartExtend(ready chan<- *Call, tag int, req *locker.Request) *Call {
	k := keysOf(n.prefix + req.Key)
	return n.start(ready, tag, extendScript, extendScript.command([]string{k.lock, k.fence},
		req.Token, milliseconds(req.TTL), decimal(req.Fence)))
}

// StartRelease sends one release of an acquisition that is known to have been executed. turn is the ID of the Turn on
// this node that it was made by, if any. See also [Node.ReleaseLater] and [Node.Undo].
func (n *Node) StartRelease(ready chan<- *Call, tag int, req *locker.Request, turn string) *Call {
	c := n.undoing(req, true, wakesTurn)
	c.turn = turn
	script, cmd := c.command(decimal(req.Fence))
	return n.start(ready, tag, script, cmd)
}

// ReleaseLater does the same in the background, and goes on until the node has answered or there can be nothing left to
// release.
func (n *Node) ReleaseLater(req *locker.Request, turn string) {
	c := n.undoing(req, true, wakesTurn)
	c.turn = turn
	n.cleaner.add(c)
}

// Undo undoes an attempt that failed, as ReleaseLater does, but tells nobody. landed says that it is known to have been
// executed; otherwise it is also kept from landing later.
func (n *Node) Undo(req *locker.Request, landed bool) {
	n.cleaner.add(n.undoing(req, landed, wakesNobody))
}

func (n *Node) undoing(req *locker.Request, landed bool, w wakes) cleanup {
	c := cleanup{keys: keysOf(n.prefix + req.Key), token: req.Token, ttl: req.TTL, landed: landed, wakes: w}
	if req.Keep > 0 {
		c.keep = time.Now().Add(req.Keep)
	}
	return c
}

func (n *Node) start(ready chan<- *Call, tag int, s *script, cmd drivers.Command) *Call {
	if n.closed() {
		return n.resolved(ready, tag, errClosedUnsent)
	}
	c := &Call{Tag: tag, node: n, script: s, cmd: cmd, ready: ready}
	if err := n.queue.submit(c); err != nil {
		return n.resolved(ready, tag, drivers.NotSent(err))
	}
	return c
}

// resolved returns a call that was not sent.
func (n *Node) resolved(ready chan<- *Call, tag int, err error) *Call {
	c := &Call{Tag: tag, node: n, ready: ready, state: resolved, err: err}
	ready <- c
	return c
}

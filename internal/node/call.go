package node

import (
	"strconv"
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
	words  [10]string // room for cmd; never changed again, for a driver may go on reading after its time was up
	ready  chan<- *Call
	// guarded by the queue's mu until resolved
	state callState
	late  Latecomer

	reply drivers.Reply
	err   error // the outcome is unknown, or matches drivers.ErrNotSent

	// Of an exchange of its own; see queue.alone.
	batch [1]drivers.Command
	end   deadline
}

type callState uint8

const (
	waiting callState = iota
	sent
	resolved
)

// Latecomer learns what became of a call that its caller did not wait for, from a goroutine that it must not block.
type Latecomer interface{ Late(c *Call) }

// Leave is for a caller that does not wait any longer. It reports whether the command was sent. If so, late is told when
// the outcome is known; it may be nil. If the outcome is known already, done is true, late is not told, and the call may
// be on its way through the channel.
func (c *Call) Leave(late Latecomer) (wasSent, done bool) {
	return c.node.queue.leave(c, late)
}

// Follow is for a caller that does not wait any longer either, but wants the command to be carried out, also if it was not
// sent yet: late is told when the outcome is known. If it is known already, done is true, and late is not told.
func (c *Call) Follow(late Latecomer) (done bool) {
	return c.node.queue.follow(c, late)
}

// Withdraw takes a command back that was not sent yet, and reports whether it could; nobody is told of it then.
func (c *Call) Withdraw() bool {
	return c.node.queue.withdraw(c)
}

// UnderWay reports that c was sent, and that its outcome is not known yet.
func (c *Call) UnderWay() bool {
	return c.node.queue.underWay(c)
}

// Vote is a node's answer to an attempt to acquire.
type Vote struct {
	Granted bool
	// Counter is the node's fencing counter: what it granted, or what it has while somebody else holds the lock.
	Counter uint64
	// Owner is the beginning of the holder's token.
	Owner string
	// Err is nil if Granted. Otherwise it is a *locker.HeldError, locker.ErrForeignKey, an *Alias, or a fault that names the node.
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

// Owned reads the outcome of a raise, an extension or a release: nil, locker.ErrNotHeld, an *Alias, or a fault that leaves
// it unknown and names the node.
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

// StartAcquire sends c, one attempt on a key that [Node.Check] allows. It is told through ready, which must have room for
// every call that shares it.
//
// So are StartRaise, StartExtend and StartRelease. c is used once, and was zero before.
func (n *Node) StartAcquire(c *Call, ready chan<- *Call, tag int, req *locker.Request, a Acquisition) {
	c.node, c.ready, c.Tag = n, ready, tag
	if n.cleaner.full() {
		c.refuse(drivers.NotSent(errFull))
		return
	}
	c.acquire(req, a)
	n.send(c)
}

func (c *Call) acquire(req *locker.Request, a Acquisition) {
	var room [96]byte
	owner := c.node.appendOwner(room[:0], req)
	k := partsOf(c.node.prefix, req.Key, req.Token, tombstoneKey, strconv.AppendUint(owner, a.Hint, 10))
	acquireScript.call(c, "3", k.lock, k.derived[fenceKey], k.derived[tombstoneKey],
		k.args[:len(owner)], milliseconds(req.TTL), decimal(uint64(a.Quantum)), k.args[len(owner):])
}

// appendOwner appends the value of the lock that req names; see alias.lua.
func (n *Node) appendOwner(b []byte, req *locker.Request) []byte {
	return append(append(b, req.Token...), n.number...)
}

// StartRaise asks the node to raise its counter to req.Fence.
func (n *Node) StartRaise(c *Call, ready chan<- *Call, tag int, req *locker.Request) {
	c.node, c.ready, c.Tag = n, ready, tag
	var room [64]byte
	k := partsOf(n.prefix, req.Key, "", fenceKey, n.appendOwner(room[:0], req))
	raiseScript.call(c, "2", k.lock, k.derived[fenceKey], k.args, decimal(req.Fence))
	n.send(c)
}

// StartExtend sends one extension.
func (n *Node) StartExtend(c *Call, ready chan<- *Call, tag int, req *locker.Request) {
	c.node, c.ready, c.Tag = n, ready, tag
	c.extend(req)
	n.send(c)
}

func (c *Call) extend(req *locker.Request) {
	var room [64]byte
	k := partsOf(c.node.prefix, req.Key, "", fenceKey, c.node.appendOwner(room[:0], req))
	extendScript.call(c, "2", k.lock, k.derived[fenceKey], k.args, milliseconds(req.TTL), decimal(req.Fence))
}

// StartRelease sends one release. landed says that all acquisitions of req are known to have been executed; otherwise they
// are also kept from landing later. turn is the ID of the Turn on this node that they were made by, if any. See also
// [Node.ReleaseLater] and [Node.Undo].
func (n *Node) StartRelease(c *Call, ready chan<- *Call, tag int, req *locker.Request, landed bool, turn string) {
	c.node, c.ready, c.Tag = n, ready, tag
	c.release(req, tombstoneOf(req, landed), wakesTurn, turn)
	n.send(c)
}

// tombstoneOf is the life in ms of what keeps an acquisition from landing; 0 if it has.
func tombstoneOf(req *locker.Request, landed bool) int64 {
	if landed {
		return 0
	}
	return inMilliseconds(req.TTL + cleanupLife)
}

// release composes the release that [cleanup.command] does, for an attempt that is known to have been executed, or may
// still be, if tombstone, in ms, is not 0.
func (c *Call) release(req *locker.Request, tombstone int64, w wakes, turn string) {
	var room [160]byte
	args := room[:0]
	if w == wakesTurn {
		args = append(c.node.appendOwner(args, req), ':')
	}
	args = append(strconv.AppendInt(args, tombstone, 10), ':')
	args = append(strconv.AppendInt(args, inMilliseconds(max(0, req.Keep)), 10), ':')
	args = strconv.AppendUint(args, req.Fence, 10)
	switch w {
	case wakesNext:
		k := partsOf(c.node.prefix, req.Key, req.Token, waitersKey, args)
		d := &k.derived
		handoverScript.call(c, "5", k.lock, d[tombstoneKey], d[fenceKey], d[queueKey], d[waitersKey], req.Token+c.node.number, k.args)
	case wakesTurn:
		args = append(append(args, ':'), turn...)
		k := partsOf(c.node.prefix, req.Key, req.Token, turnKey, args)
		d := &k.derived
		turnReleaseScript.call(c, "6", k.lock, d[tombstoneKey], d[fenceKey], d[turnKey], d[queueKey], d[waitersKey], k.args)
	default:
		args = append(args, ':')
		if w == wakesPolls {
			args = append(args, keysOf(c.node.prefix+req.Key).free()...)
		}
		k := partsOf(c.node.prefix, req.Key, req.Token, tombstoneKey, args)
		d := &k.derived
		releaseScript.call(c, "3", k.lock, d[tombstoneKey], d[fenceKey], req.Token+c.node.number, k.args)
	}
}

// ReleaseLater does the same in the background, and goes on until the node has answered or there can be nothing left to
// release.
func (n *Node) ReleaseLater(req *locker.Request, landed bool, turn string) {
	c := n.undoing(req, landed, wakesTurn)
	c.turn = turn
	n.cleaner.add(c)
}

// Undo undoes an attempt that failed, as ReleaseLater does, but tells nobody. landed says that it is known to have been
// executed; otherwise it is also kept from landing later.
func (n *Node) Undo(req *locker.Request, landed bool) {
	n.cleaner.add(n.undoing(req, landed, wakesNobody))
}

func (n *Node) undoing(req *locker.Request, landed bool, w wakes) cleanup {
	c := cleanup{keys: keysOf(n.prefix + req.Key), token: req.Token, number: n.number, ttl: req.TTL, landed: landed, wakes: w}
	if req.Keep > 0 {
		c.keep = time.Now().Add(req.Keep)
	}
	return c
}

func (n *Node) start(ready chan<- *Call, tag int, s *script, cmd drivers.Command) *Call {
	c := &Call{Tag: tag, node: n, script: s, cmd: cmd, ready: ready}
	n.send(c)
	return c
}

// send puts c into the queue.
func (n *Node) send(c *Call) {
	err := errClosedUnsent
	if !n.closed() {
		if err = n.queue.submit(c); err == nil {
			return
		}
		err = drivers.NotSent(err)
	}
	c.refuse(err)
}

// refuse resolves a call that was not sent.
func (c *Call) refuse(err error) {
	c.state, c.err = resolved, err
	if c.ready != nil {
		c.ready <- c
	}
}

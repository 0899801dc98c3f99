// Package node implements the lock protocol on one Redis node, which it reaches through a driver. Each step is an
// atomic script. Calls return promptly when a context ends, and attempts whose outcome is not known are undone in the
// background.
package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// Options of a Node.
type Options struct {
	Name    string        // the name of the node in errors, such as its address
	Prefix  string        // is put before every key
	Timeout time.Duration // bounds one exchange; 0: drivers.DefaultTimeout
	// Number, from 1, is the node's number among the nodes of a Redlock. It is part of the value of each lock, so that
	// a server with the addresses of two nodes is noticed. 0 is the same as 1, the number of a node that decides alone.
	Number int
	Names  []string // the names of the nodes of a Redlock, in the order of their numbers
	// BeforeClose is called by Close before anything is closed. Nil: nothing is called.
	BeforeClose func()
	// Guard is the longest TTL of the locks of the prefix, if the node rests after it may have forgotten locks; see
	// guard.lua. 0: it does not rest.
	Guard time.Duration
	// Replicas have to confirm each lock and each extension, on a node that decides alone.
	Replicas pipeline.Replicas

	shards chan struct{} // see shards.open
}

// Node is one Redis node. It is safe for concurrent use.
type Node struct {
	name     string
	prefix   string
	number   int      // from Options
	names    []string // from Options
	driver   drivers.Driver
	timeout  time.Duration // of one exchange
	pipeline *pipeline.Pipeline
	// granting is for commands that grant or prolong a lock. It is the pipeline, or another one if replicas have to
	// confirm them. Then the releases do not wait for replicas, nor behind commands that do.
	granting *pipeline.Pipeline
	cleaner  *cleaner
	inbox    *inbox // for all locks, if shards is nil
	shards   *shards
	// sharded says that the driver is that of a Redis Cluster.
	sharded   bool
	id        string // identifies the node's inboxes
	contended contended
	before    func()        // Options.BeforeClose, or nil
	guard     *script.Guard // nil: none
	maxTTL    time.Duration // with a guard

	closing chan struct{} // closed by Close, and so wakes waiters; Pipeline.Abandon wakes callers that wait for an answer
	// Close waits for calls between closing that channel and closing the pipeline. So each call has added its clean-up
	// by then.
	calls Calls
}

// New returns a Node that owns d.
func New(d drivers.Driver, o Options) *Node {
	if o.Timeout <= 0 {
		o.Timeout = drivers.DefaultTimeout
	}
	closing := make(chan struct{})
	p := pipeline.New(d, o.Timeout)
	granting := p
	if o.Replicas.Want > 0 {
		granting = pipeline.NewReplicated(d, o.Timeout, o.Replicas)
	}
	n := &Node{
		name:     o.Name,
		prefix:   o.Prefix,
		number:   max(1, o.Number),
		names:    o.Names,
		driver:   d,
		timeout:  o.Timeout + o.Replicas.Timeout,
		pipeline: p,
		granting: granting,
		cleaner:  &cleaner{pipeline: p, closing: closing},
		shards:   shardsOf(d, o.shards),
		id:       locker.NewToken(),
		closing:  closing,
		before:   o.BeforeClose,
	}
	p.Unusual, granting.Unusual = n.contended.note, n.contended.note
	_, n.sharded = d.(drivers.Cluster)
	n.inbox = newInbox(p, o.Timeout, script.Inbox(o.Prefix, n.id))
	if s, ok := d.(drivers.Subscriber); ok {
		n.inbox.subscribe = s.Subscribe
	}
	if o.Guard != 0 {
		n.guard, n.maxTTL = script.NewGuard(o.Prefix, o.Guard, n.keepsSlots), o.Guard
		n.touch()
	}
	return n
}

// Check returns an error that matches locker.ErrInvalid if req cannot be acquired: other locks may use its key for
// their counter or queue, or the restart guard does not cover a lock for that long.
func (n *Node) Check(req *locker.Request) error {
	if why := script.Reserved(n.prefix, req.Key); why != "" {
		return fmt.Errorf("%w: %s", locker.ErrInvalid, why)
	}
	return n.covers(req)
}

// Acquire implements locker.Backend for a node that decides alone.
func (n *Node) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	n.calls.Enter()
	defer n.calls.Leave()
	if err := n.Check(&req); err != nil {
		return locker.Grant{}, err
	}
	if n.cleaner.full() {
		return locker.Grant{}, n.fault(pipeline.ErrFull)
	}
	undo := func(landed bool) { n.cleaner.add(n.undoing(&req, landed, script.NotifySubscribers)) }
	// If the caller leaves, the attempt is undone at once, with a tombstone. The attempt may succeed nevertheless, if
	// it was executed first or after the tombstone had expired. That is known only when its reply arrives.
	late := func(reply drivers.Reply, err error) {
		if n.vote(reply, err).Granted {
			undo(true)
		}
	}
	cmd := n.attempt(&req).Acquire(req.TTL, 1, 0)
	v := n.vote(n.grant(ctx, cmd, req.TTL, late))
	if v.Doubtful {
		undo(isShortfall(v.Err))
	}
	// After Close, the caller cannot release the lock any more.
	if v.Granted && n.closed() {
		undo(true)
		return locker.Grant{}, locker.ErrClosed
	}
	return locker.Grant{Fence: v.Counter}, v.Err
}

// attempt returns the attempt of req, with the names that its commands need.
func (n *Node) attempt(req *locker.Request) script.Attempt {
	keys := n.keys(req.Key)
	return script.Attempt{
		Keys: keys, Token: req.Token, Node: n.number, Label: req.Label, Guard: n.guard,
		Contended: n.contended.lately(keys.Lock),
	}
}

func (n *Node) keys(key string) script.Keys {
	keys := script.KeysOf(n.prefix, key)
	keys.Sharded = n.sharded
	return keys
}

// keepsSlots reports whether a command may use only one hash slot. On a server whose driver does not say so, the first
// refusal shows it, to the pipeline whose command was refused.
func (n *Node) keepsSlots() bool { return n.pipeline.KeepsSlots() || n.granting.KeepsSlots() }

func (n *Node) closed() bool {
	select {
	case <-n.closing:
		return true
	default:
		return false
	}
}

// Extend implements locker.Backend.
func (n *Node) Extend(ctx context.Context, req locker.Request) error {
	n.calls.Enter()
	defer n.calls.Leave()
	if err := n.covers(&req); err != nil {
		return err
	}
	return n.owned(n.grant(ctx, n.attempt(&req).Extend(req.TTL, req.Fence), req.TTL, nil))
}

// Release implements locker.Backend. It notifies the callers of Notify.
func (n *Node) Release(ctx context.Context, req locker.Request) error {
	n.calls.Enter()
	defer n.calls.Leave()
	return n.release(ctx, &req, true, script.NotifySubscribers)
}

// release sends a release. If that was not answered or not finished, it goes on in the background. If ctx has a
// deadline, only that ends the call; see locker.Backend.
func (n *Node) release(ctx context.Context, req *locker.Request, landed bool, notify script.Notify) error {
	r := n.releaseOf(req, landed, notify)
	later := undoing(r, req)
	limit := n.timeout
	if end, ok := ctx.Deadline(); ok {
		ctx, limit = context.WithoutCancel(ctx), min(limit, time.Until(end))
	}
	reply, err := n.send(ctx, n.pipeline, r.Command(), limit, limit, nil)
	err = n.owned(reply, err)
	if o, _ := script.ReadOwned(reply); o.Unfinished || err != nil && !errors.Is(err, locker.ErrNotHeld) {
		n.cleaner.add(later)
	}
	return err
}

// Notify implements locker.Notifier.
func (n *Node) Notify(key string, wake func()) (live func() bool, stop func()) {
	keys := n.keys(key)
	channel, in := keys.Free(), n.inboxOf(keys)
	in.follow(channel, func(bool) { wake() })
	return func() bool { return in.live(channel) }, func() { in.ignore(channel) }
}

// Close ends the node. Calls in progress return locker.ErrClosed, each clean-up gets one more try, and the driver is
// closed. Close takes at most one timeout of an exchange and a second. It takes another timeout if callers wait inside
// the driver, because nothing can wake them, and their clean-ups get a try, too. Close returns an error if a command is
// still in flight at the end: the Redis client does not let it be interrupted, and the driver does not own the client.
// The goroutine of that command ends with the client's own timeout.
func (n *Node) Close() error {
	if n.before != nil {
		n.before()
	}
	close(n.closing)
	n.granting.Abandon()
	n.pipeline.Abandon()
	n.calls.Wait() // calls that wait inside the driver return at their own timeout
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout)
	defer cancel()
	n.inbox.close(ctx)
	n.shards.close(ctx)
	n.granting.Drain(ctx) // a command in flight may still have to be undone
	n.pipeline.Drain(ctx)
	n.cleaner.wait(ctx)
	n.granting.Close()
	n.pipeline.Close()
	// If the client belongs to the driver, this also interrupts commands that ignore their context.
	err := n.driver.Close()
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.cleaner.wait(ctx)
	if !n.granting.Drain(ctx) || !n.pipeline.Drain(ctx) {
		err = errors.Join(err, errors.New("a command is still in flight, and the Redis client cannot interrupt it"))
	}
	return err
}

// await waits until ch is closed or ctx ends.
func await(ctx context.Context, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-ctx.Done():
	}
}

// Package node implements the lock protocol on one Redis node, which it reaches through a driver. Each step is an
// atomic script. Calls return promptly when a context ends, and attempts whose outcome is not known are undone in the
// background.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backend/cleanup"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
)

// While a slot of a Redis Cluster moves, commands are sent again after pauses between these.
const (
	movingMinPause = 5 * time.Millisecond
	movingMaxPause = 100 * time.Millisecond
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
//
// A node that decides alone is a backend.Backend, by the methods that have the names of that interface. It keeps a
// queue for each lock on the server: a release grants the lock to the first waiter. So waiters need not poll, nobody
// overtakes them, and each release wakes one of them only. docs/safety.md has the rules.
//
// A Redlock sends to its nodes by the methods whose names begin with Start, which do not wait for the answer, and
// repeats releases by ReleaseLater and Undo. Its waiters queue for a [Turn].
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
	chores   cleanup.Queue
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
	inFlight InFlight
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
		shards:   shardsOf(d, o.shards),
		id:       backend.NewToken(),
		closing:  closing,
		before:   o.BeforeClose,
	}
	n.chores.Timeout = 2 * n.timeout // the wait for a sender, and the exchange
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
func (n *Node) Check(req *backend.Request) error {
	if err := n.covers(req); err != nil {
		return err
	}
	if why := script.Reserved(n.prefix, req.Key); why != "" {
		return fmt.Errorf("%w: %s", locker.ErrInvalid, why)
	}
	return nil
}

// Acquire implements backend.Backend. It is one attempt, and fails while others are in the queue.
func (n *Node) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	if err := n.Check(&req); err != nil {
		return backend.Grant{}, err
	}
	if err := n.chores.Backlog(); err != nil {
		return backend.Grant{}, n.fault(err)
	}
	w := &waiter{n: n, ctx: ctx, req: req}
	p, err := w.enqueue()
	for range mostSteps {
		if err != nil || !p.More {
			break
		}
		p, err = w.enqueue()
	}
	switch {
	case err != nil:
		return backend.Grant{}, w.give(err)
	case p.Status != script.Granted:
		return backend.Grant{}, heldError(p)
	}
	return w.granted(p)
}

// Queue implements backend.Queuer.
func (n *Node) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	if err := n.Check(&req); err != nil {
		return backend.Grant{}, err
	}
	if err := n.chores.Backlog(); err != nil {
		return backend.Grant{}, n.fault(err)
	}
	wait.EndWith(n.closing)
	in := n.inboxOf(n.keys(req.Key))
	w := &waiter{n: n, inbox: in, ctx: ctx, req: req, wait: wait, positionTTL: script.MaxPositionTTL}
	returned := false
	defer func() {
		if !returned { // a hook has panicked
			w.placed = true
			_ = w.give(errPanic)
		}
	}()
	g, err := w.queue()
	returned = true
	return g, err
}

// attempt returns the attempt of req, with the names that its commands need.
func (n *Node) attempt(req *backend.Request) script.Attempt {
	keys := n.keys(req.Key)
	a := script.Attempt{
		Keys: keys, Token: req.Token, Node: n.number, Label: req.Label, Guard: n.guard,
		Contended: n.contended.lately(keys.Lock), Fences: min(req.Fences, backend.MaxFences),
	}
	if g := req.Group; g != nil {
		a.Wants = &script.Wants{N: g.N, Weight: g.Weight, Kind: kinds[g.Kind], From: g.From}
	}
	return a
}

var kinds = map[backend.Kind]script.Kind{
	backend.Shared: script.Shared, backend.Upgradeable: script.Upgradeable, backend.Exclusive: script.Exclusive,
}

func (n *Node) keys(key string) script.Keys {
	return script.KeysOf(n.prefix, key)
}

// inboxOf returns the inbox for the waiters of a lock.
func (n *Node) inboxOf(keys script.Keys) *inbox {
	if n.shards == nil {
		return n.inbox
	}
	slot := script.Slot(keys.Lock)
	n.shards.mu.Lock()
	defer n.shards.mu.Unlock()
	in := n.shards.inboxes[slot]
	if in == nil {
		channel := script.ShardedInbox(n.prefix, n.id, slot)
		in = newInbox(n.pipeline, n.inbox.timeout, channel)
		in.begun = true
		in.subscribe = func(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			return n.shards.subscribe(ctx, channel, l)
		}
		if n.shards.inboxes[slot] = in; n.shards.closed {
			in.cancel()
		}
	}
	return in
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

// Extend implements backend.Backend.
func (n *Node) Extend(ctx context.Context, req backend.Request) error {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	if err := n.covers(&req); err != nil {
		return err
	}
	reply, err := n.extend(ctx, &req)
	if o, _ := script.ReadOwned(reply); err == nil && o.Waited && req.Wanted != nil {
		// Those that have waited may have left. The usual extension must not need the key of the queue as well: while a
		// slot of a Redis Cluster moves, it would be refused, because there is no such key.
		if n.isWanted(ctx, &req) {
			req.Wanted()
		}
	}
	return n.owned(reply, err)
}

// extend sends an extension. If it makes a shared lock of another one, it hands on what that frees.
func (n *Node) extend(ctx context.Context, req *backend.Request) (reply drivers.Reply, err error) {
	a := n.attempt(req)
	if lowers(req) {
		reply, err = n.grant(ctx, a.Share(req.TTL, req.Fence), req.TTL, 0, nil)
		if o, _ := script.ReadOwned(reply); err == nil && o.Unfinished {
			n.handOn(*req)
		}
		// While a slot of a Redis Cluster moves, the lock is extended as it is. The next extension asks for the same.
		if err != nil || !isMoving(reply) {
			return reply, err
		}
	}
	return n.grant(ctx, a.Extend(req.TTL, req.Fence), req.TTL, n.moving(req.TTL), nil)
}

// lowers reports whether an extension is for a shared lock that was granted as another one, as far as is known.
func lowers(req *backend.Request) bool {
	if req.Group == nil || req.Group.Kind != backend.Shared {
		return false
	}
	w, ok := req.Private.(*waiter)
	return !ok || w.req.Group == nil || w.req.Group.Kind != backend.Shared
}

// Capabilities implements backend.Capable.
func (n *Node) Capabilities() backend.Capabilities { return capabilities }

var capabilities = backend.Capabilities{
	Tokens: true, CommonTokens: true, Blocks: true, Order: true, Labels: true, CountsTime: true,
	AnswersWanted: true, Some: true, Groups: true, Kinds: true,
}

// Release implements backend.Backend. If it was not answered or not finished, it goes on in the background. If ctx has
// a deadline, only that ends the call; see backend.Backend.
func (n *Node) Release(ctx context.Context, req backend.Request) error {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	r := n.releaseOf(&req, landed(&req), script.NotifyQueue)
	later := undoing(r, &req)
	limit := n.timeout
	if end, ok := ctx.Deadline(); ok {
		ctx, limit = context.WithoutCancel(ctx), min(limit, time.Until(end))
	}
	reply, err := n.send(ctx, n.pipeline, r.Command(), limit, limit, nil)
	err = n.owned(reply, err)
	if o, _ := script.ReadOwned(reply); o.Unfinished || err != nil && !errors.Is(err, locker.ErrNotHeld) {
		n.repeat(later)
	}
	return err
}

// leave releases in the background, as Undo does, and gives up the position in the queue.
func (n *Node) leave(req *backend.Request, landed bool) {
	n.repeat(n.undoing(req, landed, script.NotifyQueue))
}

// Verify implements backend.Verifier.
func (n *Node) Verify(ctx context.Context, req backend.Request) error {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	cmd := n.attempt(&req).Verify(req.Fence)
	return n.owned(n.send(ctx, n.pipeline, cmd, req.TTL, n.moving(req.TTL), nil))
}

var errOneByOne = fmt.Errorf("the locks cannot be acquired in one step: %w", errors.ErrUnsupported)

// AcquireMany implements backend.ManyAcquirer, with one call of a script. Behind a Redis Cluster, the locks and the
// gates have to share a hash slot.
func (n *Node) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	step := script.Step{Attempts: make([]script.Attempt, len(reqs)), TTL: reqs[0].TTL}
	step.Want, step.Spare = cmp.Or(c.N, len(reqs)), c.Spare
	for i := range reqs {
		if err := n.Check(&reqs[i]); err != nil {
			return nil, &locker.Error{Op: "trylock", Key: reqs[i].Key, Err: err}
		}
		step.Attempts[i] = n.attempt(&reqs[i])
	}
	for _, gate := range c.Gates {
		step.Gates = append(step.Gates, n.keys(gate))
	}
	if len(reqs) > script.MaxStep || n.keepsSlots() && !step.InOneSlot() {
		return nil, errOneByOne
	}
	if err := n.chores.Backlog(); err != nil {
		return nil, n.fault(err)
	}
	undo := func(landed bool) {
		for i := range reqs {
			n.leave(&reqs[i], landed)
		}
	}
	late := func(reply drivers.Reply, err error) { // as in Acquire
		if taken, _ := step.Read(reply); err == nil && taken.Status == script.Granted {
			undo(true)
		}
	}
	reply, err := n.grant(ctx, step.Command(), step.TTL, n.moving(step.TTL), late)
	var taken script.Taken
	if err == nil {
		taken, err = step.Read(reply)
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
	case taken.Status == script.Waiting:
		var key string
		if i := taken.Index - len(reqs); i < 0 {
			key = reqs[taken.Index].Key
		} else {
			key = c.Gates[i]
		}
		held := &locker.HeldError{Remaining: taken.Left, Label: taken.Label}
		return nil, &locker.Error{Op: "trylock", Key: key, Err: held}
	case taken.Status == script.Gone:
		undo(true)
		return nil, n.fault(errors.New("some of the locks were taken away before the answer came"))
	case taken.Status != script.Granted:
		return nil, errOneByOne
	case n.closed(): // the caller cannot release the locks any more
		undo(true)
		return nil, locker.ErrClosed
	}
	grants := make([]*backend.Grant, len(reqs))
	for i, c := range taken.Counters {
		if c > 0 {
			grants[i] = &backend.Grant{Fence: c}
		}
	}
	return grants, nil
}

// grant sends a command that grants or prolongs a lock, and waits for the reply; see [Node.send]. What was granted too
// late has to be undone whether replicas have it or not, so late is not told of a shortfall.
func (n *Node) grant(
	ctx context.Context, cmd script.Command, limit, moving time.Duration, late func(drivers.Reply, error),
) (drivers.Reply, error) {
	if told := late; told != nil && n.granting != n.pipeline {
		late = func(reply drivers.Reply, err error) {
			if isShortfall(err) {
				err = nil
			}
			told(reply, err)
		}
	}
	return n.send(ctx, n.granting, cmd, limit, moving, late)
}

// moving is for how long most commands about a lock with that TTL are sent again while a slot moves.
func (n *Node) moving(ttl time.Duration) time.Duration { return min(ttl, n.timeout) / 2 }

// send sends a command and waits for the reply; see [pipeline.Pipeline.Do].
//
// While a slot of a Redis Cluster moves from one server to another, its keys are in two places, and servers refuse
// scripts that need several of them. A lock that is free is a key that does not exist, so most scripts are refused
// until the slot has arrived, also by the new server. send asks again for as long as moving says. A refusal executes
// nothing, so that changes nothing about what the command may do.
func (n *Node) send(
	ctx context.Context, p *pipeline.Pipeline, cmd script.Command, limit, moving time.Duration,
	late func(drivers.Reply, error),
) (drivers.Reply, error) {
	if !n.sharded {
		return p.Do(ctx, cmd, limit, late)
	}
	limit = min(limit, n.timeout) // of all tries together
	begun := time.Now()
	for pause := movingMinPause; ; pause = min(2*pause, movingMaxPause) {
		reply, err := p.Do(ctx, cmd, limit-time.Since(begun), late)
		if err != nil || !isMoving(reply) || time.Since(begun)+pause > moving {
			return reply, err
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-n.closing:
		}
		t.Stop()
		if ctx.Err() != nil || n.closed() || time.Since(begun) >= limit {
			return reply, nil //nolint:nilerr // the reply says why
		}
	}
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
	n.inFlight.Wait() // calls that wait inside the driver return at their own timeout
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout)
	defer cancel()
	n.inbox.close(ctx)
	n.shards.close(ctx)
	n.granting.Drain(ctx) // a command in flight may still have to be undone
	n.pipeline.Drain(ctx)
	end, _ := ctx.Deadline()
	n.chores.Close(time.Until(end))
	n.granting.Close()
	n.pipeline.Close()
	// If the client belongs to the driver, this also interrupts commands that ignore their context.
	err := n.driver.Close()
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
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

// fault adds the node's name to err. It makes err match locker.ErrUnavailable, unless err already matches another error
// of package locker.
func (n *Node) fault(err error) error {
	if err == nil {
		return nil // as nearly always, and without the memory for what follows
	}
	var same alias
	var guarded *guardError
	switch {
	case errors.As(err, &same):
		return n.named(same)
	case errors.As(err, &guarded):
		return guarded.of(n)
	case errors.Is(err, pipeline.ErrClosed):
		return locker.ErrClosed
	case errors.Is(err, locker.ErrHeld), errors.Is(err, locker.ErrNotHeld), errors.Is(err, locker.ErrForeignKey),
		errors.Is(err, locker.ErrInvalid), errors.Is(err, locker.ErrClosed), errors.Is(err, locker.ErrUnavailable):
		return err
	}
	var short *pipeline.Shortfall
	var refusal drivers.ServerError
	if errors.As(err, &short) {
		err = &locker.NotReplicatedError{Got: short.Got, Want: short.Want, Err: short.Err}
	} else if errors.As(err, &refusal) {
		err = explained(err, refusal)
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, err})
}

// named returns the error of a node that is the same server as the one with the number a.
func (n *Node) named(a alias) error {
	i, k := n.number-1, int(a)-1
	if i == k || max(i, k) >= len(n.names) {
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, a})
	}
	return &SameServer{n.names[min(i, k)], n.names[max(i, k)]}
}

// isMovingError reports whether err says that a Redis Cluster refused a command because a slot moves; see isMoving.
func (n *Node) isMovingError(err error) bool {
	if !n.sharded || err == nil {
		return false
	}
	var refusal drivers.ServerError
	return errors.As(err, &refusal) && isMoving(refusal)
}

// covers returns an error that matches locker.ErrInvalid if the guard does not cover a lock for as long as req says.
func (n *Node) covers(req *backend.Request) error {
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

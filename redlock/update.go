package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/validity"
	"github.com/golocker/locker/internal/redis/node"
)

// leaseUpdate asks the nodes of a lease to extend, to verify or to release, and decides by majority. Nodes whose grant
// is still in flight are asked when it has arrived, so that they can stand in for others that fail.
type leaseUpdate struct {
	fanout
	l   *lease
	req backend.Request
	op  string

	trace voteTrace
	tally tally
	// keeper is the node that keeps the queue, if a release asks it.
	keeper nodeSet
	// absent are the nodes that were pending and have not answered yet. The lease's mu guards it.
	absent nodeSet
	next   *leaseUpdate // the next in the lease's list of updates
	parted bool         // it is not in that list any more
	// ahead are the nodes that are asked to compare with the counter that they granted, which is past the token.
	ahead nodeSet
	calls []node.Call   // by node
	errs  map[int]error // by node
}

func newLeaseUpdate(b *majority, l *lease, req backend.Request, op string) *leaseUpdate {
	return &leaseUpdate{fanout: b.fanout(b.budget), l: l, req: req, op: op, calls: make([]node.Call, len(b.nodes))}
}

func (u *leaseUpdate) releases() bool { return u.op == opRelease }

// run asks the nodes. It waits until a majority has said yes, or a majority cannot say yes any more, or ctx or the
// budget ends.
func (u *leaseUpdate) run(ctx context.Context) error {
	// Close waits until run has returned before it closes the nodes. Each of them then tries its clean-ups once more.
	if u.b.closed() {
		u.join().each(u.unsent)
		u.part()
		return locker.ErrClosed
	}
	waited := false
	defer func() {
		if !waited { // a hook has panicked
			u.trace.mute = true
			u.part()
			u.letGo(u)
		}
	}()
	u.begin(ctx)
	err := u.wait(ctx)
	waited = true
	switch u.op {
	case opExtend:
		u.heal(ctx)
	case opVerify:
		u.verified()
	}
	return err
}

// begin asks the nodes.
func (u *leaseUpdate) begin(ctx context.Context) {
	u.trace = u.b.trace(ctx, u.op)
	ask := u.join()
	// The node that keeps the queue tells the next waiter to ask all nodes. Nodes whose release comes later than that
	// refuse, so the command of this node should be sent last. The Go scheduler runs the sender that was woken last
	// first, and the others in the order in which they were woken. So one node is asked after it.
	if u.releases() {
		u.keeper = ask & only(u.b.keeper(u.req.Key, u.l.turn))
	}
	others := ask &^ u.keeper
	first := others & -others // the lowest
	(others &^ first).each(u.ask)
	u.keeper.each(u.ask)
	first.each(u.ask)
}

// wait waits for the decision.
func (u *leaseUpdate) wait(ctx context.Context) error {
	u.collect(ctx, u)
	u.part()
	u.letGo(u)
	u.l.mu.Lock()
	u.l.review(&u.tally)
	u.l.mu.Unlock()
	switch {
	case u.tally.outcome() == won:
		return nil
	case u.tally.outcome() == lost:
		return u.notHeld()
	case u.b.closed():
		return locker.ErrClosed
	}
	return u.b.quorumError(u.op, noQuorum{}, u.vote)
}

// until implements asker. A release that has won lingers for two reasons. It waits for grants that are still in flight
// to arrive, so that their release is in flight, too, when Unlock returns. Such a grant would look like another holder
// to the next caller of Lock. It also waits until the node that keeps the queue has said whether others wait. Otherwise
// this client could lock again before it knew, and overtake them. A release does not wait for a node that takes longer
// than usual, nor for one that did so the last time.
func (u *leaseUpdate) until() time.Time {
	switch u.tally.outcome() {
	case undecided:
		if u.tally.open() {
			return u.end
		}
	case won:
		if u.releases() && !u.end.IsZero() {
			return u.linger(u.late(), len(u.ready) > 0) // a node whose grant has arrived is asked in any case
		}
	}
	return time.Time{}
}

// late returns the nodes that a release lingers for.
func (u *leaseUpdate) late() nodeSet {
	t := &u.tally
	return t.awaited&^(t.asked|t.yes|t.no|t.silent) | u.keeper&t.unanswered()
}

// overdue implements asker.
func (u *leaseUpdate) overdue() {
	if u.tally.outcome() == won {
		u.late().each(u.b.health.silent)
	}
	u.fanout.overdue()
}

// join adds u to the updates of the lease and returns the nodes to ask.
func (u *leaseUpdate) join() (ask nodeSet) {
	u.l.mu.Lock()
	defer u.l.mu.Unlock()
	if u.releases() {
		u.l.withdraw()
	}
	u.tally, ask = u.l.begin(len(u.calls), u.releases())
	if u.tally.awaited != 0 {
		u.absent = u.tally.awaited
		u.next, u.l.updates = u.l.updates, u
	}
	return ask
}

// part removes u from the updates of the lease, if it has not done so.
func (u *leaseUpdate) part() {
	if u.tally.awaited == 0 || u.parted {
		return
	}
	u.parted = true
	u.l.mu.Lock()
	at := &u.l.updates
	for *at != u {
		at = &(*at).next
	}
	*at = u.next
	unasked := u.l.end(&u.tally)
	u.l.mu.Unlock()
	unasked.each(u.unsent)
}

func (u *leaseUpdate) ask(i int) {
	u.trace.ask(i)
	u.open |= only(i)
	c, req := &u.calls[i], &u.req
	if ahead := u.l.aheadOn(i); ahead > req.Fence {
		own := *req
		own.Fence = ahead
		req = &own
		u.ahead |= only(i)
	}
	switch u.op {
	case opRelease:
		u.b.nodes[i].StartRelease(c, u.ready, i, req, u.l.landed(i), u.l.turn.on(i))
	case opVerify:
		u.b.nodes[i].StartVerify(c, u.ready, i, req)
	default:
		u.b.nodes[i].StartExtend(c, u.ready, i, req)
	}
}

// answer implements asker. c is a call of u, or the acquisition on a node that was pending.
func (u *leaseUpdate) answer(c *node.Call) {
	i := c.Tag
	if c != &u.calls[i] {
		u.arrived(i)
		return
	}
	err := u.heard(c)
	u.trace.answer(i, err)
	u.tally.answer(i, answerOf(err))
	if err != nil {
		if u.errs == nil {
			u.errs = map[int]error{}
		}
		u.errs[i] = err
	}
}

// arrived is called when node i, which was pending, has answered.
func (u *leaseUpdate) arrived(i int) {
	u.l.mu.Lock()
	ask := u.l.arrived(&u.tally, i)
	u.l.mu.Unlock()
	ask.each(u.ask)
}

func answerOf(err error) answer {
	switch {
	case err == nil:
		return yes
	case errors.Is(err, locker.ErrNotHeld):
		return no
	default:
		return unknown
	}
}

// leave implements asker. A command that was not sent yet is withdrawn. A later answer settles node i.
func (u *leaseUpdate) leave(i int) {
	wasSent, done := u.calls[i].Leave(u)
	if done {
		u.answer(&u.calls[i])
		return
	}
	if !wasSent {
		u.unsent(i)
	}
	u.trace.silent(i)
}

// Late is told an answer that comes after the decision.
func (u *leaseUpdate) Late(c *node.Call) {
	u.trace.late(c.Tag, u.heard(c))
}

// heard settles a node that has answered, and returns what it said. A release may have passed the turn to a waiter.
// This client must then queue the next time, so that it does not overtake that waiter.
func (u *leaseUpdate) heard(c *node.Call) error {
	err := u.said(c)
	u.settle(c.Tag, answerOf(err), c.Unfinished())
	switch {
	case !c.Waited():
	case u.releases():
		u.b.hints.contend(u.req.Key)
	default:
		u.l.mu.Lock()
		u.l.marked = true
		u.l.mu.Unlock()
	}
	return err
}

// unsent settles node i, which should have been asked and was not.
func (u *leaseUpdate) unsent(i int) { u.settle(i, unknown, false) }

// settle is called once for each node that was asked or should have been, also if its answer comes after the decision.
func (u *leaseUpdate) settle(i int, a answer, unfinished bool) {
	u.l.mu.Lock()
	if !u.releases() {
		if a == no {
			u.l.deny(i)
		}
		u.l.mu.Unlock()
		return
	}
	later := u.l.settle(i, a)
	u.l.mu.Unlock()
	if later || unfinished {
		u.b.releaseLater(u.l, &u.req, i, u.l.landed(i))
	}
}

// notHeld returns how the lock was lost, as far as any node knows.
func (u *leaseUpdate) notHeld() error {
	known := &locker.NotHeldError{Reason: locker.LostGone}
	for i := range u.calls {
		var e *locker.NotHeldError
		if errors.As(u.errs[i], &e) && e.Reason != locker.LostGone {
			known = e
		}
	}
	return known
}

// vote returns what node i has said.
func (u *leaseUpdate) vote(i int) (Outcome, error) {
	switch err := u.errs[i]; {
	case u.tally.yes.has(i):
		return Agreed, nil
	case u.tally.no.has(i) && u.tally.asked.has(i):
		return Held, err
	case u.tally.no.has(i):
		return NotAsked, nil
	default:
		return faultOf(err), err
	}
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

// healing is an acquisition for a lease that is held, on a node that lacks its lock. The node was not reached, or
// refused because of a fault that has passed, or has lost the key. Nobody waits for a healing.
type healing struct {
	b    *majority
	l    *lease
	req  backend.Request
	sent time.Time
	call node.Call
}

// heal asks the nodes that lack the lock for it again, after an extension. It asks none if the extension was cancelled,
// because the lease may have ended.
func (u *leaseUpdate) heal(ctx context.Context) {
	b, l, now := u.b, u.l, time.Now()
	var refused []*healing
	l.mu.Lock()
	if end := validity.Until(u.start, u.req.TTL); u.tally.outcome() == won && end.After(l.until) {
		l.until = end
	}
	l.over = l.over || now.After(l.until)
	l.heal(&u.tally, b.closed() || errors.Is(ctx.Err(), context.Canceled)).each(func(i int) {
		h := &healing{b: b, l: l, req: u.req, sent: now}
		h.req.Fences = 1
		// The hint makes the counter greater than the tokens of the lease, even if the node has lost its counter and its
		// clock is slow.
		b.nodes[i].StartAcquire(&h.call, nil, i, &h.req, node.CounterOptions{Quantum: quantum, Hint: l.last})
		l.await(i, &h.call, len(b.nodes))
		if h.call.Follow(h) {
			refused = append(refused, h)
		}
	})
	l.mu.Unlock()
	for _, h := range refused {
		h.Late(&h.call)
	}
}

// Late is told the node's answer.
func (h *healing) Late(c *node.Call) {
	v := c.Vote()
	h.b.logDuplicate(c.Tag, v.Err)
	if v.Granted || isHeld(v.Err) {
		h.b.health.answered(c.Tag, time.Since(h.sent))
	}
	h.b.late(h.l, &h.req, c, &v)
}

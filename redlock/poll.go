package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// poll asks the nodes of a lease to extend or to release, and decides by majority. Nodes whose grant is still on its way
// are asked when it has come, so that they can stand in for others that fail.
type poll struct {
	b  *backend
	l  *lease
	op string
	// start sends the question to node i; settle, if not nil, is called once for each node asked, also for those whose
	// answer comes after the decision.
	start    func(i int, ready chan<- *node.Call) *node.Call
	settle   func(i int, err error, unfinished bool)
	releases bool

	votes votes
	tally tally
	asked nodeSet
	ready chan *node.Call
	late  chan int // nodes that were pending and have answered
	calls []*node.Call
	errs  []error
}

func newPoll(b *backend, l *lease, op string, start func(int, chan<- *node.Call) *node.Call, settle func(int, error, bool)) *poll {
	n := len(b.nodes)
	return &poll{
		b: b, l: l, op: op, start: start, settle: settle, releases: settle != nil,
		ready: make(chan *node.Call, n), late: make(chan int, n),
		calls: make([]*node.Call, n), errs: make([]error, n),
	}
}

// run asks and waits until a majority has said yes, or cannot any more, or ctx or the budget ends.
func (p *poll) run(ctx context.Context) error {
	p.b.calls.RLock()
	defer p.b.calls.RUnlock()
	if p.b.closed() {
		if p.releases { // Close waits for this before it closes the nodes, each of which then gets one more try
			p.join().each(func(i int) { p.settle(i, errUnsent, false) })
			p.leave()
		}
		return locker.ErrClosed
	}
	p.votes = p.b.votes(ctx, p.op)
	p.join().each(p.ask)
	budget := time.NewTimer(p.b.budget)
	defer budget.Stop()
waiting:
	for p.tally.outcome() == undecided && p.tally.open() {
		select {
		case c := <-p.ready:
			p.answer(c)
		case i := <-p.late:
			p.arrived(i)
		case <-ctx.Done():
			break waiting
		case <-budget.C:
			break waiting
		case <-p.b.closing:
			break waiting
		}
	}
	if p.releases && p.tally.outcome() == won {
		p.linger(ctx)
	}
	p.leave()
	switch {
	case p.tally.outcome() == won:
		return nil
	case p.tally.outcome() == lost:
		return locker.ErrNotHeld
	case p.b.closed():
		return locker.ErrClosed
	}
	return p.err()
}

// linger waits for grants that are still under way to arrive, so that their release is under way, too, when Unlock returns:
// an attempt that landed after that would look like a holder to whoever locks next. It does not wait for a node that is
// late by more than its habit, and not again for one that was.
func (p *poll) linger(ctx context.Context) {
	var timer <-chan time.Time
	for {
		p.l.mu.Lock()
		pending := p.l.pending
		p.l.mu.Unlock()
		select {
		case i := <-p.late:
			p.arrived(i)
			continue
		default:
		}
		limit := p.b.health.expected(pending)
		if limit == 0 {
			return
		}
		if timer == nil {
			t := time.NewTimer(limit)
			defer t.Stop()
			timer = t.C
		}
		select {
		case c := <-p.ready:
			p.answer(c)
		case i := <-p.late:
			p.arrived(i)
		case <-timer:
			pending.each(p.b.health.silent)
			return
		case <-ctx.Done():
			return
		case <-p.b.closing:
			return
		}
	}
}

// join takes part in the lease and returns the nodes to ask. All that neither have the lock nor may yet say no; those
// that have confirmed an earlier release, yes.
func (p *poll) join() (ask nodeSet) {
	n := len(p.b.nodes)
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.tally = tally{n: n, need: n/2 + 1, no: allOf(n) &^ (p.l.held | p.l.pending)}
	ask = p.l.held
	if p.releases {
		p.l.released = true
		p.tally.yes = p.l.deleted
		ask &^= p.l.deleted
	}
	if p.l.waiting == nil {
		p.l.waiting = map[*poll]struct{}{}
	}
	p.l.waiting[p] = struct{}{}
	return ask
}

func (p *poll) ask(i int) {
	p.asked |= only(i)
	p.votes.ask(i)
	p.calls[i] = p.start(i, p.ready)
}

// arrived is told that node i, which was pending, has answered.
func (p *poll) arrived(i int) {
	p.l.mu.Lock()
	granted := p.l.held.has(i)
	p.l.mu.Unlock()
	if granted {
		p.ask(i)
	} else {
		p.tally.no |= only(i)
	}
}

func (p *poll) answer(c *node.Call) {
	i, err := c.Tag, c.Owned()
	if p.settle != nil {
		p.settle(i, err, c.Unfinished())
	}
	p.errs[i] = err
	p.votes.answer(i, err)
	switch {
	case err == nil:
		p.tally.yes |= only(i)
	case errors.Is(err, locker.ErrNotHeld):
		p.tally.no |= only(i)
	default:
		p.tally.silent |= only(i)
	}
}

var errUnsent = errors.New("not sent")

// leave ends the poll. Whoever has not answered is left alone: the answer settles it when it comes, and a command that
// was not sent yet is not sent any more.
func (p *poll) leave() {
	p.l.mu.Lock()
	delete(p.l.waiting, p)
	close(p.late) // nobody sends any more
	var arrived nodeSet
	for i := range p.late {
		arrived |= only(i) & p.l.held
	}
	p.l.mu.Unlock()
	if p.settle != nil {
		arrived.each(func(i int) { p.settle(i, errUnsent, false) })
	}
	(p.asked &^ (p.tally.yes | p.tally.no | p.tally.silent)).each(func(i int) {
		var late func(*node.Call)
		if p.settle != nil || p.votes.voted != nil {
			late = func(c *node.Call) {
				err := c.Owned()
				if p.settle != nil {
					p.settle(i, err, c.Unfinished())
				}
				p.votes.late(i, err)
			}
		}
		wasSent, done := p.calls[i].Leave(late)
		if done {
			p.answer(p.calls[i])
			return
		}
		p.votes.silent(i)
		if !wasSent && p.settle != nil {
			p.settle(i, errUnsent, false)
		}
	})
}

// err says who did not answer.
func (p *poll) err() error {
	e := &QuorumError{Op: p.op, Need: p.tally.need, Votes: make([]Vote, len(p.calls)), cause: noQuorum{}}
	for i := range e.Votes {
		v := Vote{Node: p.b.names[i], Outcome: NoAnswer, Err: p.errs[i]}
		switch {
		case p.tally.yes.has(i):
			v.Outcome = Agreed
		case p.tally.no.has(i) && p.asked.has(i):
			v.Outcome = Held
		case p.tally.no.has(i):
			v.Outcome = NotAsked
		case v.Err != nil:
			v.Outcome = Failed
		}
		e.Votes[i] = v
	}
	return e
}

package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// quantum is what nodes round their clocks down to, in µs: counters of nodes whose clocks differ by some milliseconds are
// mostly equal, so that one round trip is enough. A greater one would agree more often, and keep tokens from following
// the clock when a node forgets: docs/safety.md.
const quantum = 65536

// backend is the quorum as a locker.Backend.
type backend struct {
	nodes  []*node.Node
	names  []string
	budget time.Duration
	roster *roster
	memory memory

	closing chan struct{}
	// calls is held for reading by every call, and for writing by Close between waking them and closing the nodes, so
	// that each has handed over its clean-up by then.
	calls sync.RWMutex
}

// lease is what the backend knows of one acquisition; the Client keeps it, in Grant.Private. A node's part of it is over
// when it has answered, so that a minority's late answers do not hold up anything, and per node the steps keep their
// order: what is released was granted before.
type lease struct {
	mu   sync.Mutex
	held nodeSet // granted here
	// ahead has the counters of nodes that granted late and with more than the token. Nobody else's token can lie
	// between: such a node extends and releases by its own counter. See docs/adr/0010-late-grants-ahead-of-the-token.md.
	ahead    map[int]uint64
	pending  nodeSet // the attempt is on its way; see backend.late
	released bool    // Release was called: a late grant is released, too
	deleted  nodeSet // the release was confirmed
}

// granted records that node i has granted.
func (l *lease) granted(i int, counter, token uint64) {
	l.held |= only(i)
	if counter > token {
		if l.ahead == nil {
			l.ahead = map[int]uint64{}
		}
		l.ahead[i] = counter
	}
}

// request returns req as node i knows it.
func (l *lease) request(req locker.Request, i int) *locker.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	req.Fence = max(req.Fence, l.ahead[i])
	return &req
}

func (b *backend) closed() bool {
	select {
	case <-b.closing:
		return true
	default:
		return false
	}
}

// Acquire implements locker.Backend.
func (b *backend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.calls.RLock()
	defer b.calls.RUnlock()
	if b.closed() {
		return locker.Grant{}, locker.ErrClosed
	}
	r := newRound(b, req)
	r.run(ctx)
	if r.attempt.outcome() == won {
		return locker.Grant{Fence: r.attempt.token, Private: r.keep()}, nil
	}
	r.undo()
	return locker.Grant{}, r.err()
}

// Extend implements locker.Backend.
func (b *backend) Extend(ctx context.Context, req locker.Request) error {
	l, ok := req.Private.(*lease)
	if !ok {
		return errForeignRequest
	}
	l.mu.Lock()
	held, pending := l.held, l.pending
	l.mu.Unlock()
	return b.poll(ctx, "extend", held, pending, 0, func(i int, ready chan<- *node.Call) *node.Call {
		return b.nodes[i].StartExtend(ready, i, l.request(req, i))
	}, nil)
}

// Release implements locker.Backend.
func (b *backend) Release(ctx context.Context, req locker.Request) error {
	l, ok := req.Private.(*lease)
	if !ok {
		return errForeignRequest
	}
	l.mu.Lock()
	l.released = true
	held, pending, deleted := l.held, l.pending, l.deleted
	l.mu.Unlock()
	return b.poll(ctx, "release", held&^deleted, pending, deleted, func(i int, ready chan<- *node.Call) *node.Call {
		return b.nodes[i].StartRelease(ready, i, l.request(req, i))
	}, func(i int, err error) {
		if err == nil {
			l.mu.Lock()
			l.deleted |= only(i)
			l.mu.Unlock()
		} else if !errors.Is(err, locker.ErrNotHeld) {
			b.nodes[i].Undo(&req, true)
		}
	})
}

var errForeignRequest = errors.New("redlock: the request does not carry what Acquire returned in Grant.Private")

// poll asks the nodes of held and waits until a majority of all has said yes, or cannot any more, or ctx or the budget
// ends. Nodes of pending may yet answer; all others say no, but for those of yes, which have said so before. settle is
// called once for each node asked, also for those whose answer comes later.
func (b *backend) poll(ctx context.Context, op string, held, pending, yes nodeSet,
	start func(i int, ready chan<- *node.Call) *node.Call, settle func(i int, err error),
) error {
	b.calls.RLock()
	defer b.calls.RUnlock()
	if b.closed() {
		return locker.ErrClosed
	}
	n := len(b.nodes)
	t := tally{n: n, need: n/2 + 1, yes: yes, no: allOf(n) &^ (held | pending | yes), silent: pending}
	ready := make(chan *node.Call, n)
	calls := make([]*node.Call, n)
	errs := make([]error, n)
	held.each(func(i int) { calls[i] = start(i, ready) })
	answer := func(c *node.Call) {
		err := c.Owned()
		if settle != nil {
			settle(c.Tag, err)
		}
		errs[c.Tag] = err
		switch {
		case err == nil:
			t.yes |= only(c.Tag)
		case errors.Is(err, locker.ErrNotHeld):
			t.no |= only(c.Tag)
		default:
			t.silent |= only(c.Tag)
		}
	}
	budget := time.NewTimer(b.budget)
	defer budget.Stop()
waiting:
	for t.outcome() == undecided && t.open() {
		select {
		case c := <-ready:
			answer(c)
		case <-ctx.Done():
			break waiting
		case <-budget.C:
			break waiting
		case <-b.closing:
			break waiting
		}
	}
	// Whoever has not answered is left alone: the answer settles it when it comes, and a command that was not sent yet
	// is not sent any more.
	(held &^ (t.yes | t.no | t.silent)).each(func(i int) {
		var late func(*node.Call)
		if settle != nil {
			late = func(c *node.Call) { settle(c.Tag, c.Owned()) }
		}
		switch wasSent, done := calls[i].Leave(late); {
		case done:
			answer(calls[i])
		case !wasSent && settle != nil:
			settle(i, errUnsent)
		}
	})
	switch {
	case t.outcome() == won:
		return nil
	case t.outcome() == lost:
		return locker.ErrNotHeld
	case b.closed():
		return locker.ErrClosed
	}
	e := &QuorumError{Op: op, Need: t.need, Votes: make([]Vote, n), cause: noQuorum{}}
	for i := range e.Votes {
		v := Vote{Node: b.names[i], Outcome: NoAnswer, Err: errs[i]}
		switch {
		case t.yes.has(i):
			v.Outcome = Agreed
		case t.no.has(i) && held.has(i):
			v.Outcome = Held
		case t.no.has(i):
			v.Outcome = NotAsked
		case v.Err != nil:
			v.Outcome = Failed
		}
		e.Votes[i] = v
	}
	return e
}

var errUnsent = errors.New("not sent")

// Close implements io.Closer. Nodes are closed side by side, so that it takes no longer than with one.
func (b *backend) Close() error {
	close(b.closing)
	b.calls.Lock()
	b.calls.Unlock() //nolint:staticcheck // an empty critical section waits for all calls to have left
	b.roster.done.Wait()
	errs := make([]error, len(b.nodes))
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() {
			if err := n.Close(); err != nil {
				errs[i] = &nodeError{b.names[i], err}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

package redlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/redis/settings"
)

// quantum is what nodes round their clocks down to, in µs. Counters of nodes whose clocks differ by some milliseconds
// are then mostly equal, so that one round trip is enough. A greater quantum would make more of them equal, but tokens
// would follow the clock less closely when a node forgets: docs/safety.md.
const quantum = 65536

// majority is the quorum as a backend.Backend.
type majority struct {
	nodes  []*node.Node
	names  []string
	budget time.Duration
	logger *slog.Logger
	hints  hints
	health health
	// faulty says that the last attempt found no quorum. The next call then asks all nodes before it queues.
	faulty atomic.Bool
	// duplicates are the nodes that were found to be the same server as another node. Each was logged.
	duplicates atomic.Uint64
	audit      *settings.Audit

	closing chan struct{}
	// Close waits for calls between closing that channel and closing the nodes. So each call has added its clean-up by
	// then.
	inFlight node.InFlight
}

func (b *majority) closed() bool {
	select {
	case <-b.closing:
		return true
	default:
		return false
	}
}

// check returns why a call with req has to fail before it asks a node, or nil.
func (b *majority) check(req *backend.Request) error {
	if b.closed() {
		return locker.ErrClosed
	}
	return b.nodes[0].Check(req)
}

// Acquire implements backend.Backend.
func (b *majority) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	if err := b.check(&req); err != nil {
		return backend.Grant{}, err
	}
	w := waiter{b: b, req: req}
	return w.attempt(ctx, false)
}

// Queue implements backend.Queuer. If nobody has waited for the key lately, it asks the nodes without queueing. If
// others wait, it waits for its turn, because asking would overtake them and split the vote.
func (b *majority) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	if err := b.check(&req); err != nil {
		return backend.Grant{}, err
	}
	wait.EndWith(b.closing)
	w := &waiter{b: b, req: req, wait: wait}
	if faulty := b.faulty.Load(); faulty || !b.hints.contended(req.Key) {
		asked := time.Now()
		g, err := w.attempt(ctx, faulty)
		if !errors.Is(err, locker.ErrHeld) {
			return g, err
		}
		_ = w.learn(ctx, asked, err)
		w.pacing.failed++
	}
	g, err := w.run(ctx)
	switch {
	case err != nil:
		w.leave()
		err = w.withVotes(err)
	case w.turn != nil:
		w.turn.Used()
	}
	return g, err
}

// Extend implements backend.Backend.
func (b *majority) Extend(ctx context.Context, req backend.Request) error {
	l, ok := req.Private.(*lease)
	if !ok {
		return errForeignRequest
	}
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	if err := b.nodes[0].Check(&req); err != nil { // the TTL may be another one now
		return err
	}
	err := newLeaseUpdate(b, l, req, opExtend).run(ctx)
	if err == nil && req.Wanted != nil && l.wasMarked() && b.othersWait(ctx, req.Key, l) {
		req.Wanted()
	}
	return err
}

// Capabilities implements backend.Capable.
func (b *majority) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Tokens: true, CommonTokens: true, Blocks: true, Labels: true, CountsTime: true, AnswersWanted: true,
	}
}

// othersWait asks the nodes whether somebody waits for the lock of l. A mark alone does not say so, because a waiter
// leaves it behind.
func (b *majority) othersWait(ctx context.Context, key string, l *lease) bool {
	waiting := 0
	b.askAll(ctx, func(i int, ready chan<- *node.Call) *node.Call {
		return b.nodes[i].StartCount(ready, i, key, l.turn.on(i))
	}, func(_ int, c *node.Call) (again bool, err error) {
		s, err := c.State()
		waiting += s.Waiting
		return false, err
	})
	return waiting > 0
}

// Release implements backend.Backend.
func (b *majority) Release(ctx context.Context, req backend.Request) error {
	l, ok := req.Private.(*lease)
	if !ok {
		return errForeignRequest
	}
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	if req.Keep > 0 {
		l.mu.Lock()
		l.kept = time.Now().Add(req.Keep)
		l.mu.Unlock()
	}
	if l.waited {
		b.hints.contend(req.Key)
	}
	err := newLeaseUpdate(b, l, req, opRelease).run(ctx)
	if l.turnElsewhere() {
		b.nodes[l.turn.node].ReleaseLater(&req, true, l.turn.ID())
	}
	return err
}

var errForeignRequest = errors.New("redlock: the request does not carry what Acquire returned in Grant.Private")

// Close implements io.Closer. It closes all nodes at the same time, so that it takes no longer than with one node.
func (b *majority) Close() error {
	b.audit.Close()
	close(b.closing)
	b.inFlight.Wait()
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

// Verify implements backend.Verifier. The proof is that a majority answers this call that the lock is the lease's, with
// a counter that is not past the token. Had a greater token been issued before, a node of that majority would have
// granted or raised its lock to that token for another owner. A lock that it grants after that has a greater counter.
//
// This needs nothing but the answers: no clock, and no knowledge of what the nodes said before. So it is not a proof if
// a node granted late with a counter past the token, although such a node extends and releases: see
// docs/adr/0035-verify-by-fresh-answers.md.
func (b *majority) Verify(ctx context.Context, req backend.Request) error {
	l, ok := req.Private.(*lease)
	if !ok {
		return errForeignRequest
	}
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	return newLeaseUpdate(b, l, req, opVerify).run(ctx)
}

// logDuplicate logs, once for each node, that node i is the same server as another node, if err says so.
func (b *majority) logDuplicate(i int, err error) {
	if err == nil {
		return
	}
	var same *node.SameServer
	if errors.As(err, &same) && !nodeSet(b.duplicates.Or(uint64(only(i)))).has(i) {
		b.logger.Error("redlock: two nodes are one server; it has one vote", "error", same)
	}
}

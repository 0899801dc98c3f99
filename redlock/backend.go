package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
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
	granted := false
	defer func() { // also if a hook has panicked
		switch {
		case !granted:
			w.leave()
		case w.turn != nil:
			w.turn.Used()
		}
	}()
	g, err := w.queue(ctx)
	granted = err == nil
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

// RaiseFences implements inspect.FenceRaiser. It asks all nodes, and succeeds if a majority has raised all of its
// counters. Each later majority has one of these nodes, and a token is greater than the counters of all nodes that have
// granted it.
func (b *majority) RaiseFences(ctx context.Context, past uint64) error {
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	if b.closed() {
		return locker.ErrClosed
	}
	errs := make([]error, len(b.nodes))
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() { errs[i] = n.RaiseFences(ctx, past) })
	}
	wg.Wait()
	agreed := 0
	for _, err := range errs {
		if err == nil {
			agreed++
		}
	}
	if agreed > len(errs)/2 {
		return nil
	}
	return b.quorumError("raise tokens", noQuorum{}, func(i int) (Outcome, error) {
		if errs[i] == nil {
			return Agreed, nil
		}
		return faultOf(errs[i]), errs[i]
	})
}

// Inspect implements inspect.Inspector.
func (b *majority) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	s, err := b.survey(ctx, key)
	if err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	return s.inspection(b.names)
}

// ForceRelease implements inspect.Inspector. Without an owner, it takes the lock from the owner with the most nodes.
// Other owners have an attempt that may be about to win.
func (b *majority) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	b.inFlight.Enter()
	defer b.inFlight.Leave()
	s, err := b.survey(ctx, key)
	if err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	seen, err := s.inspection(b.names)
	target := s.leader(owner)
	switch {
	case target < 0 && err != nil:
		return seen, err // the owner may be on the nodes that did not answer
	case target < 0 && seen.State == inspect.Foreign:
		return seen, locker.ErrForeignKey
	case target < 0 && (owner == "" || len(s.owners()) == 0):
		return seen, fmt.Errorf("%w: the lock is free", locker.ErrNotHeld)
	case target < 0:
		return seen, fmt.Errorf("%w: the lock belongs to another owner, %s…", locker.ErrNotHeld, seen.Owner)
	}
	if seen.Owner != s.states[target].Owner { // the caller has named the owner of a minority
		st := s.states[target]
		seen.Owner, seen.Label, seen.Held, seen.Fence = st.Owner, st.Label, st.Held, st.Fence
	}
	taken := false
	errs := b.askAll(ctx, func(i int, ready chan<- *node.Call) *node.Call {
		// Nodes that have not answered the survey are asked, too. They may have the lock, or get it soon.
		return b.nodes[i].StartForce(ready, i, key, s.states[target], true)
	}, func(i int, c *node.Call) (again bool, err error) {
		err = c.Owned()
		taken = taken || err == nil
		return c.Unfinished(), err
	})
	sure := 0
	for i, err := range errs {
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			sure++
		} else {
			seen.Nodes[i].Err = err
		}
	}
	switch {
	case sure < s.need():
		return seen, fmt.Errorf("%w: release: %d of %d nodes answered, %d are needed",
			noQuorum{}, sure, len(errs), s.need())
	case !taken:
		return seen, fmt.Errorf("%w: the lock changed hands meanwhile", locker.ErrNotHeld)
	}
	return seen, nil
}

// inquiry sends one command to every node and waits for all of them.
type inquiry struct {
	fanout
	send  func(i int, ready chan<- *node.Call) *node.Call
	heard func(i int, c *node.Call) (again bool, err error)
	calls []*node.Call // by node
	errs  []error      // by node; why it has not answered
}

// askAll sends one command to every node, until all have answered, the budget is spent, or ctx has ended. heard is
// called with each answer, and may have the command sent again. askAll returns for each node why it has not answered,
// or nil.
func (b *majority) askAll(ctx context.Context, send func(i int, ready chan<- *node.Call) *node.Call,
	heard func(i int, c *node.Call) (again bool, err error),
) []error {
	n := len(b.nodes)
	q := &inquiry{
		fanout: b.fanout(b.budget), send: send, heard: heard,
		calls: make([]*node.Call, n), errs: make([]error, n),
	}
	for i := range b.nodes {
		q.errs[i] = errSilent
		q.ask(i)
	}
	q.collect(ctx, q)
	q.letGo(q)
	return q.errs
}

func (q *inquiry) ask(i int) {
	q.open |= only(i)
	q.calls[i] = q.send(i, q.ready)
}

func (q *inquiry) until() time.Time {
	if q.open == 0 {
		return time.Time{}
	}
	return q.end
}

func (q *inquiry) answer(c *node.Call) {
	again, err := q.heard(c.Tag, c)
	if q.errs[c.Tag] = err; again {
		q.ask(c.Tag)
	}
}

func (q *inquiry) leave(i int) { q.calls[i].Leave(nil) }

// survey has the answers of all nodes about one lock.
type survey struct {
	states []node.State
	errs   []error // by node; nil: it has answered and has a vote
}

func (b *majority) survey(ctx context.Context, key string) (*survey, error) {
	if err := b.check(&backend.Request{Key: key}); err != nil {
		return nil, err
	}
	s := &survey{states: make([]node.State, len(b.nodes))}
	s.errs = b.askAll(ctx, func(i int, ready chan<- *node.Call) *node.Call {
		return b.nodes[i].StartInspect(ready, i, key)
	}, func(i int, c *node.Call) (again bool, err error) {
		s.states[i], err = c.State()
		return false, err
	})
	for i, err := range s.errs {
		for k := range i {
			if err == nil && s.errs[k] == nil && s.states[i].SameServer(s.states[k]) {
				err = &node.SameServer{A: b.names[k], B: b.names[i]}
			}
		}
		if s.errs[i] = err; err != nil {
			s.states[i] = node.State{Inspection: inspect.Inspection{State: inspect.Unknown}}
		}
	}
	return s, nil
}

func (s *survey) need() int { return len(s.states)/2 + 1 }

// owners returns one node of every owner. Owners with more nodes come first.
func (s *survey) owners() (nodes []int) {
	for i := range s.states {
		first := !slices.ContainsFunc(nodes, func(j int) bool { return s.states[i].SameOwner(s.states[j]) })
		if s.states[i].Owner != "" && first {
			nodes = append(nodes, i)
		}
	}
	slices.SortStableFunc(nodes, func(i, j int) int { return s.nodesOf(j).len() - s.nodesOf(i).len() })
	return nodes
}

// nodesOf returns the nodes where the owner of node i has the lock.
func (s *survey) nodesOf(i int) (same nodeSet) {
	for j := range s.states {
		if s.states[i].SameOwner(s.states[j]) {
			same |= only(j)
		}
	}
	return same
}

// leader returns a node of the owner with the most nodes, among owners whose token begins with prefix. It returns -1 if
// there is none.
func (s *survey) leader(prefix string) int {
	for _, i := range s.owners() {
		if s.states[i].OwnedBy(prefix) {
			return i
		}
	}
	return -1
}

// inspection combines the answers of the nodes.
func (s *survey) inspection(names []string) (inspect.Inspection, error) {
	all := inspect.Inspection{State: inspect.Unknown}
	var answered, free, foreign int
	var left []time.Duration // how long until each node that answered can be free
	for i, st := range s.states {
		all.Nodes = append(all.Nodes, inspect.Node{Name: names[i], Inspection: st.Inspection, Err: s.errs[i]})
		if s.errs[i] != nil {
			continue
		}
		answered++
		all.Waiting += st.Waiting
		switch st.State {
		case inspect.Free:
			free++
			all.Fence = max(all.Fence, st.Fence)
		case inspect.Foreign:
			foreign++
			continue
		}
		left = append(left, st.Remaining)
	}
	need, silent := s.need(), len(s.states)-answered
	leader, most := s.leader(""), 0
	if leader >= 0 {
		most = s.nodesOf(leader).len()
	}
	slices.Sort(left)
	if len(left) >= need {
		all.Remaining = left[need-1]
	}
	switch {
	case foreign >= need || len(s.states)-foreign < need:
		all.State = inspect.Foreign
	case most >= need:
		all.State = s.states[leader].State
	case free >= need:
		all.State = inspect.Free
		return all, nil
	case most+silent < need && free+silent < need:
		all.State = inspect.Split
	}
	if leader >= 0 && all.State != inspect.Foreign {
		all.Owner, all.Label = s.states[leader].Owner, s.states[leader].Label
		all.Held, all.Fence = s.since(leader)
	}
	if all.State == inspect.Unknown {
		return all, fmt.Errorf("%w: %d of %d nodes answered, too few to say who has the lock",
			noQuorum{}, answered, len(s.states))
	}
	return all, nil
}

// since returns how long the owner of node i has had the lock, and the token: the counter that most of the owner's
// nodes have. A node that was not raised has a lower counter, and one that granted late may have a higher one.
func (s *survey) since(i int) (held time.Duration, token uint64) {
	counters := map[uint64]int{}
	s.nodesOf(i).each(func(j int) { counters[s.states[j].Fence]++ })
	s.nodesOf(i).each(func(j int) {
		st := s.states[j]
		if n := counters[st.Fence]; n > counters[token] || n == counters[token] && st.Fence > token {
			held, token = st.Held, st.Fence
		}
	})
	return held, token
}

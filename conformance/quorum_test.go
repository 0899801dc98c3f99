package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/short"
)

func quorumHarness(nodes int, spoil func(q *simpleQuorum), wrapper locker.Middleware) QuorumHarness {
	return QuorumHarness{
		Bubble: notCalled,
		Budget: quorumBudget,
		Store: func(testing.TB) QuorumStore {
			q := newSimpleQuorum(nodes)
			if spoil != nil {
				spoil(q)
			}
			clients := 0
			s := QuorumStore{
				Client: func() locker.Locker {
					l := locker.Locker(locker.NewClient(&quorumClient{q, clients}))
					clients++
					if wrapper != nil {
						l = wrapper(l)
					}
					return l
				},
				Duplicate: func() (locker.Locker, error) {
					if !q.takesTwice {
						return nil, errors.New("twice")
					}
					twice := newSimpleQuorum(nodes)
					copy(twice.nodes, q.nodes[:nodes-1])
					twice.nodes[nodes-1] = q.nodes[0]
					return locker.NewClient(&quorumClient{twice, 0}), nil
				},
			}
			for i, n := range q.nodes {
				s.Nodes = append(s.Nodes, QuorumNode{
					Name: nameOf(i),
					Locked: func(key string) bool {
						i, _ := n.mem.Inspect(context.Background(), key)
						return i.State != inspect.Free
					},
					Down:   n.fail,
					Hang:   n.hang,
					Delete: n.delete,
					Commands: func() int {
						q.mu.Lock()
						defer q.mu.Unlock()
						return q.commands[i]
					},
				})
			}
			return s
		},
	}
}

// hopeful counts an extension from the answer, not from the request.
type hopeful struct {
	locker.Lease
	more time.Duration
}

func (h *hopeful) Until() time.Time { return h.Lease.Until().Add(h.more) }

func (h *hopeful) Extend(ctx context.Context, opts ...locker.Option) error {
	start := time.Now()
	err := h.Lease.Extend(ctx, opts...)
	if err == nil {
		h.more = time.Since(start)
	}
	return err
}

// wrapped passes each lease to wrap.
type wrapped struct {
	locker.Locker
	wrap func(locker.Lease) locker.Lease
}

func (w *wrapped) Unwrap() locker.Locker { return w.Locker }

func (w *wrapped) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := w.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return w.wrap(lease), nil
}

// quorumFlaws are mistakes of a locker over several nodes. fails lists the properties that notice one. No other
// property may notice it, unless it is broad and breaks everything.
var quorumFlaws = []struct {
	name    string
	fails   []string
	broad   bool
	nodes   int // 0: three
	store   func(q *simpleQuorum)
	wrapper locker.Middleware
	change  func(s *QuorumStore)
}{
	{name: "none"},
	{name: "none, of five", nodes: 5},

	{name: "needs all nodes", fails: []string{"SurvivesAMinority"}, broad: true,
		store: func(q *simpleQuorum) { q.need = len(q.nodes) }},
	{name: "half is enough", fails: []string{"RefusesWithoutAMajority", "MajoritiesOverlap", "MinorityExtendsNothing"},
		broad: true,
		store: func(q *simpleQuorum) { q.need = len(q.nodes) / 2 }},
	{name: "faults hide that it is held", fails: []string{"SurvivesAMinority"},
		store: func(q *simpleQuorum) { q.faultsHide = true }},
	{name: "waits for all", fails: []string{"SlowNodeDelaysNobody"},
		store: func(q *simpleQuorum) { q.waitsForAll = true }},
	{name: "forgets nodes that grant late", fails: []string{"LateGrantJoins"},
		store: func(q *simpleQuorum) { q.forgetsLate = true }},
	{name: "calls it unavailable only", fails: []string{"RefusesWithoutAMajority"},
		store: func(q *simpleQuorum) { q.unavailableOnly = true }},
	{name: "has no budget", fails: []string{"RefusesWithoutAMajority", "SlowNodeDelaysNobody", "SplitVotesEnd"},
		broad: true,
		store: func(q *simpleQuorum) { q.patient = true }},
	{name: "does not name the silent nodes", fails: []string{"ErrorsNameTheNodes"},
		store: func(q *simpleQuorum) { q.nameless = true }},
	{name: "leaves what it got without a majority", fails: []string{"RefusalLeavesNothing"},
		store: func(q *simpleQuorum) { q.leavesRefused = true }},
	{name: "undoes an attempt when all have answered", fails: []string{"RefusalLeavesNothing"},
		store: func(q *simpleQuorum) { q.undoesTogether = true }},
	{name: "releases only those that have granted in time", fails: []string{"SilentNodesAreReleased"},
		store: func(q *simpleQuorum) { q.leavesSilent = true }},
	{name: "wants a majority of those that answer", fails: []string{"MajoritiesOverlap"}, nodes: 5,
		store: func(q *simpleQuorum) { q.countsAnswers = true }},
	{name: "any node extends", fails: []string{"MinorityExtendsNothing", "MajorityOutageEnds"},
		store: func(q *simpleQuorum) { q.anyExtends = true }},
	{name: "calls a failed extension unavailable only", fails: []string{"MinorityExtendsNothing"},
		store: func(q *simpleQuorum) { q.extendFaultIsUnavailable = true }},
	{name: "an extension counts from its answer", fails: []string{"LateExtendIsNoValidity"},
		wrapper: func(next locker.Locker) locker.Locker {
			return &wrapped{next, func(l locker.Lease) locker.Lease { return &hopeful{Lease: l} }}
		}},
	{name: "one node ends a lease", fails: []string{"MinorityLossKeeps"},
		store: func(q *simpleQuorum) { q.oneNoIsLoss = true }},
	{name: "never heals", fails: []string{"LeasesHeal"}, store: func(q *simpleQuorum) { q.neverHeals = true }},
	{name: "treats a lock that a majority lacks as unanswered", fails: []string{"MajorityLossEnds"},
		store: func(q *simpleQuorum) { q.notHeldIsFault = true }},
	{name: "reports late that no node confirms", fails: []string{"MajorityOutageEnds"},
		wrapper: func(next locker.Locker) locker.Locker {
			return &wrapped{next, func(l locker.Lease) locker.Lease {
				done := make(chan struct{})
				go func() {
					<-l.Done()
					if lost := (*locker.LostError)(nil); errors.As(l.Err(), &lost) &&
						lost.Reason == locker.LostExpired {
						time.Sleep(time.Second)
					}
					close(done)
				}()
				return &badLease{Lease: l, done: func() <-chan struct{} { return done }}
			}}
		}},
	{name: "leaves what it got in a split vote", fails: []string{"SplitVotesEnd"},
		store: func(q *simpleQuorum) { q.leavesContested = true }},
	{name: "notifies waiters of clean-ups", fails: []string{"CleanupWakesNobody"},
		store: func(q *simpleQuorum) { q.cleanupTells = true }},
	{name: "asks before it locks", fails: []string{"OneCommandPerNode"},
		store: func(q *simpleQuorum) { q.asksTwice = true }},
	{name: "takes a node twice", fails: []string{"DuplicateVotesOnce"},
		store: func(q *simpleQuorum) { q.takesTwice = true }},
}

// Each flaw is noticed by the listed properties and by no others.
func TestQuorumSuiteCatchesFlaws(t *testing.T) {
	t.Parallel()
	for _, f := range short.Part(t, 4, quorumFlaws) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			h := quorumHarness(cmp.Or(f.nodes, 3), f.store, f.wrapper)
			if f.change != nil {
				store := h.Store
				h.Store = func(t testing.TB) QuorumStore {
					s := store(t)
					f.change(&s)
					return s
				}
			}
			wantFailures(t, virtually(t, h, quorumProperties), f.fails, f.broad)
		})
	}
}

// Every property has a flaw that it notices.
func TestEveryQuorumPropertyHasAFlaw(t *testing.T) {
	var alone []string
	for _, f := range quorumFlaws {
		if len(f.fails) == 1 && !f.broad {
			alone = append(alone, f.fails[0])
		}
	}
	eachHasItsOwn(t, quorumProperties, alone)
}

func TestQuorumHooksNotGivenAreSkipped(t *testing.T) {
	h := quorumHarness(3, nil, nil)
	store := h.Store
	h.Store = func(t testing.TB) QuorumStore {
		s := store(t)
		s.Duplicate = nil
		for i, n := range s.Nodes {
			s.Nodes[i] = QuorumNode{Locked: n.Locked}
		}
		return s
	}
	verdicts := virtually(t, h, quorumProperties)
	assert.Empty(t, failures(verdicts))
	for name, v := range verdicts {
		assert.Equal(t, name != "SplitVotesEnd", v.skipped, name)
	}
}

// quorumBudget is how long a simpleQuorum waits for a majority.
const quorumBudget = 300 * time.Millisecond

// simpleQuorum keeps its locks on a majority of several stores. It is as simple as possible, and each flaw breaks one
// part of it.
type simpleQuorum struct {
	nodes    []*store
	mu       sync.Mutex
	wakes    map[string][]*func()
	commands []int

	need                                                              int
	countsAnswers, faultsHide, waitsForAll, forgetsLate               bool
	nameless, unavailableOnly, patient, undoesTogether                bool
	leavesRefused, leavesSilent, leavesContested                      bool
	anyExtends, extendFaultIsUnavailable, oneNoIsLoss, notHeldIsFault bool
	cleanupTells, asksTwice, neverHeals, takesTwice                   bool
}

func newSimpleQuorum(n int) *simpleQuorum {
	q := &simpleQuorum{need: n/2 + 1, wakes: map[string][]*func(){}, commands: make([]int, n)}
	for range n {
		q.nodes = append(q.nodes, newStore())
	}
	return q
}

// quorumClient is the Backend of one client. It asks the nodes in turn, beginning with a different node for each
// client.
type quorumClient struct {
	*simpleQuorum
	first int
}

type vote struct {
	node int
	g    backend.Grant
	err  error
}

// holders records which nodes have granted an attempt.
type holders struct {
	mu       sync.Mutex
	held     []int
	released bool
}

// noMajority is the failure of an operation that too few nodes answered.
type noMajority struct {
	text string
	kind error // the sentinel that it matches beside ErrUnavailable; may be nil
}

func (e *noMajority) Error() string { return e.text }
func (e *noMajority) Is(target error) bool {
	return target == locker.ErrUnavailable || target == e.kind
}

func nameOf(node int) string { return fmt.Sprintf("node-%c", 'a'+node) }

func (q *simpleQuorum) fault(op string, answered []int) error {
	e := &noMajority{"no quorum", locker.ErrNoQuorum}
	if op == "acquire" && q.unavailableOnly || op == "extend" && q.extendFaultIsUnavailable {
		e.kind = nil
	}
	var silent []string
	for i := range q.nodes {
		if !slices.Contains(answered, i) && !q.nameless {
			silent = append(silent, nameOf(i))
		}
	}
	e.text += ", nothing from: " + strings.Join(silent, " ")
	return e
}

func (q *simpleQuorum) count(node int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.commands[node]++
}

func (v *quorumClient) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	n := len(v.nodes)
	votes := make(chan vote, n)
	for rank := range n {
		i := (v.first + rank) % n
		go func() {
			time.Sleep(time.Duration(rank) * 50 * time.Microsecond)
			if v.asksTwice {
				v.count(i)
			}
			v.count(i)
			g, err := v.nodes[i].acquire(context.Background(), req)
			votes <- vote{i, g, err}
		}()
	}
	if v.patient {
		time.Sleep(2 * quorumBudget)
	}
	var granted, answered []int
	var fence uint64
	contested, failed, came := false, false, 0
	decided := func() bool {
		switch open := n - came; {
		case v.waitsForAll, v.countsAnswers && len(granted) < v.need:
			return open == 0
		default:
			hopeless := len(granted)+open < v.need
			return len(granted) >= v.need || hopeless && (len(answered) >= v.need || len(answered)+open < v.need)
		}
	}
	budget := time.NewTimer(quorumBudget)
	defer budget.Stop()
waiting:
	for !decided() {
		select {
		case vote := <-votes:
			came++
			switch {
			case vote.err == nil:
				granted = append(granted, vote.node)
				answered = append(answered, vote.node)
				fence = max(fence, vote.g.Fence)
			case errors.Is(vote.err, locker.ErrHeld):
				contested = true
				answered = append(answered, vote.node)
			default:
				failed = true
			}
		case <-budget.C:
			failed = true
			break waiting
		case <-ctx.Done():
			break waiting
		}
	}
	won := len(granted) >= v.need
	if v.countsAnswers && len(answered) >= v.need {
		won = 2*len(granted) > len(answered)
	}
	l := &holders{held: slices.Clone(granted)}
	go v.settle(req, l, won, contested, votes, n-came)
	switch {
	case won:
		return backend.Grant{Fence: fence, Private: l}, nil
	case contested && len(answered) >= v.need && !(v.faultsHide && failed):
		return backend.Grant{}, &locker.HeldError{}
	}
	return backend.Grant{}, v.fault("acquire", answered)
}

// settle adds late grants to the lease, and undoes grants of failed attempts.
func (v *quorumClient) settle(req backend.Request, l *holders, won, contested bool, votes chan vote, open int) {
	start := time.Now()
	undo := !won && !(v.leavesRefused && !contested) && !(v.leavesContested && contested)
	if undo && !v.undoesTogether {
		for _, i := range l.held {
			go v.undo(i, req)
		}
	}
	for range open {
		vote := <-votes
		late := time.Since(start) > 10*time.Millisecond
		l.mu.Lock()
		switch {
		case vote.err != nil:
		case won && !l.released && !(v.forgetsLate && late):
			l.held = append(l.held, vote.node)
		case late && v.leavesSilent, !won && contested && v.leavesContested:
		default:
			go v.undo(vote.node, req)
		}
		l.mu.Unlock()
	}
	if undo && v.undoesTogether {
		for _, i := range l.held {
			v.undo(i, req)
		}
	}
}

func (v *quorumClient) undo(i int, req backend.Request) {
	_ = v.nodes[i].release(context.Background(), req)
	if v.cleanupTells {
		time.Sleep(5 * time.Millisecond) // notified waiters fail as well, and notify each other
		v.tell(req.Key)
	}
}

// poll asks the nodes of a lease and counts the answers. It returns when a majority agrees or when no more answers will
// come.
func (v *quorumClient) poll(ctx context.Context, nodes []int, ask func(i int) error) (yes, no int, answered []int) {
	votes := make(chan vote, len(nodes))
	for _, i := range nodes {
		v.count(i)
		go func() { votes <- vote{node: i, err: ask(i)} }()
	}
	budget := time.NewTimer(quorumBudget)
	defer budget.Stop()
	for came := 0; came < len(nodes) && (v.waitsForAll || v.oneNoIsLoss || yes < v.need); came++ {
		select {
		case vote := <-votes:
			switch {
			case vote.err == nil:
				yes++
				answered = append(answered, vote.node)
			case errors.Is(vote.err, locker.ErrNotHeld):
				no++
				answered = append(answered, vote.node)
			}
		case <-budget.C:
			return yes, no, answered
		case <-ctx.Done():
			return yes, no, answered
		}
	}
	return yes, no, answered
}

func (v *quorumClient) Extend(ctx context.Context, req backend.Request) error {
	l := req.Private.(*holders)
	l.mu.Lock()
	held := slices.Clone(l.held)
	l.mu.Unlock()
	yes, no, answered := v.poll(ctx, held, func(i int) error { return v.nodes[i].extend(context.Background(), req) })
	switch {
	case v.oneNoIsLoss && no > 0, no > len(v.nodes)-v.need:
		return locker.ErrNotHeld
	case yes >= v.need, v.anyExtends && yes > 0:
		v.heal(req, l)
		return nil
	}
	v.heal(req, l)
	return v.fault("extend", answered)
}

// heal requests the lock from all nodes again. Nodes that have it already are not affected.
func (v *quorumClient) heal(req backend.Request, l *holders) {
	for i, n := range v.nodes {
		go func() {
			if v.neverHeals {
				return
			}
			_, err := n.acquire(context.Background(), req)
			l.mu.Lock()
			defer l.mu.Unlock()
			switch {
			case err != nil:
			case l.released:
				go v.undo(i, req)
			case !slices.Contains(l.held, i):
				l.held = append(l.held, i)
			}
		}()
	}
}

func (v *quorumClient) Release(ctx context.Context, req backend.Request) error {
	l := req.Private.(*holders)
	l.mu.Lock()
	l.released = true
	held := slices.Clone(l.held)
	l.mu.Unlock()
	yes, no, answered := v.poll(ctx, held, func(i int) error {
		return v.nodes[i].release(context.Background(), req)
	})
	v.tell(req.Key)
	switch {
	case yes >= v.need:
		return nil
	case no > len(v.nodes)-v.need && !v.notHeldIsFault:
		return locker.ErrNotHeld
	}
	return v.fault("release", answered)
}

func (q *simpleQuorum) tell(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, wake := range q.wakes[key] {
		go (*wake)()
	}
}

// Notify implements backend.Notifier.
func (q *simpleQuorum) Notify(key string, wake func()) (live func() bool, stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakes[key] = append(q.wakes[key], &wake)
	time.AfterFunc(time.Millisecond, wake)
	return func() bool { return false }, func() { // a split vote notifies nobody
		q.mu.Lock()
		defer q.mu.Unlock()
		q.wakes[key] = slices.DeleteFunc(slices.Clone(q.wakes[key]), func(w *func()) bool { return w == &wake })
	}
}

package conformance

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/short"
)

func quorumHarness(nodes int, spoil func(q *toyQuorum), wrapper locker.Middleware) QuorumHarness {
	return QuorumHarness{
		Bubble: notCalled,
		Budget: toyBudget,
		Store: func(testing.TB) QuorumStore {
			q := newToyQuorum(nodes)
			if spoil != nil {
				spoil(q)
			}
			clients := 0
			s := QuorumStore{
				Client: func() locker.Locker {
					l := locker.Locker(locker.NewClient(&toyVoter{q, clients}))
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
					twice := newToyQuorum(nodes)
					copy(twice.nodes, q.nodes[:nodes-1])
					twice.nodes[nodes-1] = q.nodes[0]
					return locker.NewClient(&toyVoter{twice, 0}), nil
				},
			}
			for i, n := range q.nodes {
				s.Nodes = append(s.Nodes, QuorumNode{
					Name: nameOf(i),
					Locked: func(key string) (locked bool) {
						n.with(func() { _, locked = n.held(key) })
						return locked
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

func (h *hopeful) Extend(ctx context.Context) error {
	start := time.Now()
	err := h.Lease.Extend(ctx)
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
	store   func(q *toyQuorum)
	wrapper locker.Middleware
	change  func(s *QuorumStore)
}{
	{name: "none"},
	{name: "none, of five", nodes: 5},

	{name: "needs all nodes", fails: []string{"SurvivesAMinority"}, broad: true,
		store: func(q *toyQuorum) { q.need = len(q.nodes) }},
	{name: "half is enough", fails: []string{"RefusesWithoutAMajority", "MajoritiesOverlap", "MinorityExtendsNothing"},
		broad: true,
		store: func(q *toyQuorum) { q.need = len(q.nodes) / 2 }},
	{name: "faults hide that it is held", fails: []string{"SurvivesAMinority"},
		store: func(q *toyQuorum) { q.faultsHide = true }},
	{name: "waits for all", fails: []string{"SlowNodeDelaysNobody"},
		store: func(q *toyQuorum) { q.waitsForAll = true }},
	{name: "forgets nodes that grant late", fails: []string{"LateGrantJoins"},
		store: func(q *toyQuorum) { q.forgetsLate = true }},
	{name: "calls it unavailable only", fails: []string{"RefusesWithoutAMajority"},
		store: func(q *toyQuorum) { q.unavailableOnly = true }},
	{name: "has no budget", fails: []string{"RefusesWithoutAMajority", "SlowNodeDelaysNobody", "SplitVotesEnd"},
		broad: true,
		store: func(q *toyQuorum) { q.patient = true }},
	{name: "does not name the silent nodes", fails: []string{"ErrorsNameTheNodes"},
		store: func(q *toyQuorum) { q.nameless = true }},
	{name: "leaves what it got without a majority", fails: []string{"RefusalLeavesNothing"},
		store: func(q *toyQuorum) { q.leavesRefused = true }},
	{name: "undoes an attempt when all have answered", fails: []string{"RefusalLeavesNothing"},
		store: func(q *toyQuorum) { q.undoesTogether = true }},
	{name: "releases only those that have granted in time", fails: []string{"SilentNodesAreReleased"},
		store: func(q *toyQuorum) { q.leavesSilent = true }},
	{name: "wants a majority of those that answer", fails: []string{"MajoritiesOverlap"}, nodes: 5,
		store: func(q *toyQuorum) { q.countsAnswers = true }},
	{name: "any node extends", fails: []string{"MinorityExtendsNothing", "MajorityOutageEnds"},
		store: func(q *toyQuorum) { q.anyExtends = true }},
	{name: "calls a failed extension unavailable only", fails: []string{"MinorityExtendsNothing"},
		store: func(q *toyQuorum) { q.extendFaultIsUnavailable = true }},
	{name: "an extension counts from its answer", fails: []string{"LateExtendIsNoValidity"},
		wrapper: func(next locker.Locker) locker.Locker {
			return &wrapped{next, func(l locker.Lease) locker.Lease { return &hopeful{Lease: l} }}
		}},
	{name: "one node ends a lease", fails: []string{"MinorityLossKeeps"},
		store: func(q *toyQuorum) { q.oneNoIsLoss = true }},
	{name: "never heals", fails: []string{"LeasesHeal"}, store: func(q *toyQuorum) { q.neverHeals = true }},
	{name: "treats a lock that a majority lacks as unanswered", fails: []string{"MajorityLossEnds"},
		store: func(q *toyQuorum) { q.notHeldIsFault = true }},
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
				return &badLease{Lease: l, done: func(locker.Lease) <-chan struct{} { return done }}
			}}
		}},
	{name: "leaves what it got in a split vote", fails: []string{"SplitVotesEnd"},
		store: func(q *toyQuorum) { q.leavesContested = true }},
	{name: "notifies waiters of clean-ups", fails: []string{"CleanupWakesNobody"},
		store: func(q *toyQuorum) { q.cleanupTells = true }},
	{name: "asks before it locks", fails: []string{"OneCommandPerNode"},
		store: func(q *toyQuorum) { q.asksTwice = true }},
	{name: "takes a node twice", fails: []string{"DuplicateVotesOnce"},
		store: func(q *toyQuorum) { q.takesTwice = true }},
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

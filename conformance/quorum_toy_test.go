package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker"
)

// toyBudget is how long a toyQuorum waits for a majority.
const toyBudget = 300 * time.Millisecond

// toyQuorum keeps its locks on a majority of several toys. It is as simple as possible, and each flaw breaks one part
// of it.
type toyQuorum struct {
	nodes    []*toy
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

func newToyQuorum(n int) *toyQuorum {
	q := &toyQuorum{need: n/2 + 1, wakes: map[string][]*func(){}, commands: make([]int, n)}
	for range n {
		q.nodes = append(q.nodes, newToy())
	}
	return q
}

// toyVoter is the Backend of one client. It asks the nodes in turn, beginning with a different node for each client.
type toyVoter struct {
	*toyQuorum
	first int
}

type toyVote struct {
	node int
	g    locker.Grant
	err  error
}

// toyLease records which nodes have granted an attempt.
type toyLease struct {
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

func (q *toyQuorum) fault(op string, answered []int) error {
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

func (q *toyQuorum) count(node int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.commands[node]++
}

func (v *toyVoter) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	n := len(v.nodes)
	votes := make(chan toyVote, n)
	for rank := range n {
		i := (v.first + rank) % n
		go func() {
			time.Sleep(time.Duration(rank) * 50 * time.Microsecond)
			if v.asksTwice {
				v.count(i)
			}
			v.count(i)
			g, err := v.nodes[i].Acquire(context.Background(), req)
			votes <- toyVote{i, g, err}
		}()
	}
	if v.patient {
		time.Sleep(2 * toyBudget)
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
	budget := time.NewTimer(toyBudget)
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
	l := &toyLease{held: slices.Clone(granted)}
	go v.settle(req, l, won, contested, votes, n-came)
	switch {
	case won:
		return locker.Grant{Fence: fence, Private: l}, nil
	case contested && len(answered) >= v.need && !(v.faultsHide && failed):
		return locker.Grant{}, &locker.HeldError{}
	}
	return locker.Grant{}, v.fault("acquire", answered)
}

// settle adds late grants to the lease, and undoes grants of failed attempts.
func (v *toyVoter) settle(req locker.Request, l *toyLease, won, contested bool, votes chan toyVote, open int) {
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

func (v *toyVoter) undo(i int, req locker.Request) {
	n := v.nodes[i]
	for refusals := 0; refusals < 1000; refusals++ {
		_, err := n.answer(context.Background(), func() (locker.Grant, error) {
			n.drop(req)
			return locker.Grant{}, nil
		}, nil)
		if err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if v.cleanupTells {
		time.Sleep(5 * time.Millisecond) // notified waiters fail as well, and notify each other
		v.tell(req.Key)
	}
}

// poll asks the nodes of a lease and counts the answers. It returns when a majority agrees or when no more answers will
// come.
func (v *toyVoter) poll(ctx context.Context, nodes []int, ask func(i int) error) (yes, no int, answered []int) {
	votes := make(chan toyVote, len(nodes))
	for _, i := range nodes {
		v.count(i)
		go func() { votes <- toyVote{node: i, err: ask(i)} }()
	}
	budget := time.NewTimer(toyBudget)
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

func (v *toyVoter) Extend(ctx context.Context, req locker.Request) error {
	l := req.Private.(*toyLease)
	l.mu.Lock()
	held := slices.Clone(l.held)
	l.mu.Unlock()
	yes, no, answered := v.poll(ctx, held, func(i int) error { return v.nodes[i].Extend(context.Background(), req) })
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
func (v *toyVoter) heal(req locker.Request, l *toyLease) {
	for i, n := range v.nodes {
		go func() {
			if v.neverHeals {
				return
			}
			_, err := n.Acquire(context.Background(), req)
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

func (v *toyVoter) Release(ctx context.Context, req locker.Request) error {
	l := req.Private.(*toyLease)
	l.mu.Lock()
	l.released = true
	held := slices.Clone(l.held)
	l.mu.Unlock()
	yes, no, answered := v.poll(ctx, held, func(i int) error {
		err := v.nodes[i].release(context.Background(), req)
		if err == refused {
			go v.undo(i, req)
		}
		return err
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

func (q *toyQuorum) tell(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, wake := range q.wakes[key] {
		go (*wake)()
	}
}

// Notify implements locker.Notifier.
func (q *toyQuorum) Notify(key string, wake func()) (live func() bool, stop func()) {
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

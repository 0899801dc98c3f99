package redlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/validity"
	"github.com/golocker/locker/internal/redis/node"
)

// firstTimeout is how long a first node may take to answer before the next node takes its place. It is a quarter of
// the budget if that is less, so that two first nodes may fail.
const firstTimeout = 50 * time.Millisecond

// acquisition carries out one voting. It sends what the voting asks for, and tells it the answers.
type acquisition struct {
	fanout
	req     backend.Request
	trace   voteTrace
	voting  voting
	hint    uint64
	ballots []ballot // by node
	raises  []raise  // by node; nil: no raise was sent
	seen    nodeSet  // nodes whose votes have come
	held    int      // how many votes before the decision said that somebody else has the lock
	// contested: a node has refused a raise, so somebody else has the lock there by now.
	contested bool

	pace       time.Duration // between first nodes; see firstTimeout
	next       time.Time     // when the next node takes the place of the first one
	votesUntil time.Time     // until when it waits while it competes with others; zero: it has not competed yet
	gaveUp     bool          // it stopped waiting for nodes that had not answered while others had

	lease *lease // what the acquisition has become if it was won; nil: its grants are undone
}

// ballot is the request to one node, and the node's vote.
type ballot struct {
	call node.Call
	vote node.Vote
}

// raise is a request to raise a node's counter, and its outcome.
type raise struct {
	call node.Call
	err  error // nil also while there is no answer
}

// newAcquisition returns an acquisition that has asked no node yet. inTurn says that nobody else should be asking now,
// so that there is no need to ask one node first.
func newAcquisition(ctx context.Context, b *majority, req backend.Request, inTurn bool) *acquisition {
	n, limit := len(b.nodes), min(b.budget, req.TTL/2)
	a := &acquisition{fanout: b.fanout(limit), req: req, ballots: make([]ballot, n), pace: min(firstTimeout, limit/4)}
	a.trace, a.next = b.trace(ctx, opAcquire), a.start.Add(a.pace)
	var first int
	first, a.hint = b.hints.recall(req.Key, n)
	switch {
	case inTurn:
		first = -1
	case first >= 0:
		first = b.health.first(first, n)
	}
	a.voting = newVoting(n, first)
	return a
}

// until implements asker.
func (a *acquisition) until() time.Time {
	switch outcome := a.voting.outcome(); {
	case a.end.IsZero(), outcome == won, outcome == lost && a.held == 0:
		return time.Time{}
	case outcome == lost:
		// If it did not wait for nodes that are about to answer, its requests could be executed after the owner has
		// released the lock, and look like another owner to the next caller.
		return a.linger(a.voting.asked&^a.seen, false)
	}
	until := a.end
	if a.competing() {
		if a.votesUntil.IsZero() {
			a.votesUntil = time.Now().Add(a.b.health.timeout(a.voting.asked &^ a.seen))
		}
		until = earlier(until, a.votesUntil)
	}
	if a.voting.first >= 0 {
		until = earlier(until, a.next)
	}
	return until
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// overdue implements asker.
func (a *acquisition) overdue() {
	switch until := a.until(); {
	case until.Equal(a.end), a.voting.outcome() == lost:
		a.fanout.overdue()
	case until.Equal(a.votesUntil) && a.competing():
		a.gaveUp = true
		a.fanout.overdue()
	default:
		a.acquire(a.voting.skip())
		a.next = time.Now().Add(a.pace)
	}
}

// competing reports whether the acquisition competes with others: a majority has answered, and at least one node says
// that somebody else has the lock. Once a majority has granted, the acquisition waits for raises and does not compete.
func (a *acquisition) competing() bool {
	return a.voting.token == 0 && a.held > 0 && a.seen.len() >= a.voting.need
}

// acquire asks nodes for the lock.
func (a *acquisition) acquire(nodes nodeSet) {
	nodes.each(func(i int) {
		a.trace.ask(i)
		a.open |= only(i)
		with := node.CounterOptions{Quantum: quantum, Hint: a.hint}
		a.b.nodes[i].StartAcquire(&a.ballots[i].call, a.ready, i, &a.req, with)
	})
}

// raise asks nodes to raise their counters to the token. The tag of such a call is the node's index plus the number of
// nodes.
func (a *acquisition) raise(nodes nodeSet) {
	if nodes == 0 {
		return
	}
	n := len(a.ballots)
	a.req.Fence = a.voting.token
	if a.raises == nil {
		a.raises = make([]raise, n)
	}
	nodes.each(func(i int) {
		a.open |= only(n + i)
		a.b.nodes[i].StartRaise(&a.raises[i].call, a.ready, n+i, &a.req)
	})
}

// answer implements asker.
func (a *acquisition) answer(c *node.Call) {
	if i := c.Tag - len(a.ballots); i >= 0 {
		err := c.Owned()
		a.b.logDuplicate(i, err)
		a.contested = a.contested || errors.Is(err, locker.ErrNotHeld)
		a.raises[i].err = err
		a.voting.raise(i, err == nil)
		return
	}
	i := c.Tag
	v := a.note(i)
	if v.Granted {
		acquire, raise := a.voting.grant(i, v.Counter)
		a.acquire(acquire)
		a.raise(raise)
		return
	}
	if isHeld(v.Err) {
		a.held++
	}
	a.acquire(a.voting.deny(i, isHeld(v.Err)))
}

// note records the vote of node i, which has come before the end of the acquisition.
func (a *acquisition) note(i int) *node.Vote {
	v := &a.ballots[i].vote
	*v = a.ballots[i].call.Vote()
	a.seen |= only(i)
	a.heard(i, v)
	a.trace.answer(i, v.Err)
	return v
}

// heard records what the vote of node i says about the node. A broken connection or a timeout is no answer.
func (a *acquisition) heard(i int, v *node.Vote) {
	a.b.logDuplicate(i, v.Err)
	switch {
	case v.Granted, isHeld(v.Err), errors.Is(v.Err, node.ErrGivenUp):
		a.b.health.answered(i, time.Since(a.start))
	case errors.Is(v.Err, locker.ErrUnavailable):
		a.b.health.failed(i)
	}
}

// keep ends an acquisition that was won. It returns the lease, which consists of the nodes that have granted or may do
// so. by is the turn that the acquisition was made with, or nil. waited says that the caller has seen others hold the
// lock. If a hook panics, keep is called again.
func (a *acquisition) keep(by *turn, waited bool) *lease {
	l := a.lease
	if l == nil {
		a.req.Fence = a.voting.token
		l = &lease{
			turn: by, waited: waited, until: validity.Until(a.start, a.req.TTL), last: lastOf(a.voting.token, a.req.Fences),
		}
	}
	// A late answer has to wait until the lease is complete.
	l.mu.Lock()
	defer l.mu.Unlock()
	a.lease = l
	a.letGo(a)
	a.seen.each(func(i int) {
		v := &a.ballots[i].vote
		l.voted(i, answerIn(v), v.Counter, a.voting.token)
	})
	a.b.faulty.Store(false)
	if a.raises == nil && a.held == 0 {
		a.b.hints.converged(a.req.Key)
	} else {
		a.b.hints.note(a.req.Key, false, a.maxCounter())
	}
	return l
}

// undo ends an acquisition that was lost, and returns why it was. It releases what was granted, or may have been. It
// does not wait, because answers of nodes that hang may take long.
func (a *acquisition) undo(ctx context.Context) error {
	a.letGo(a) // requests that were not sent yet are withdrawn before anything is released
	a.seen.each(func(i int) { a.release(i, &a.ballots[i].vote) })
	a.b.hints.note(a.req.Key, a.split(), a.maxCounter())
	err := a.err()
	switch noQuorum := errors.Is(err, locker.ErrNoQuorum); {
	case ctx.Err() != nil: // the nodes may not have had the time to answer
	case noQuorum, a.voting.asked == allOf(len(a.ballots)):
		a.b.faulty.Store(noQuorum)
	}
	return err
}

// abandon ends an acquisition one of whose hooks has panicked, and releases what it has. It does not wait for that.
func (a *acquisition) abandon(by *turn) {
	a.trace.mute = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if a.lease == nil {
		_ = a.undo(ctx)
		return
	}
	a.req.Private = a.keep(by, true)
	_ = a.b.Release(ctx, a.req)
}

// leave implements asker. If the acquisition was lost, a request that was not sent yet is withdrawn. If it was won, the
// request is still sent, so that every node is asked. Late is told the votes that come after this.
func (a *acquisition) leave(tag int) {
	n := len(a.ballots)
	if tag >= n {
		a.raises[tag-n].call.Leave(nil) // a raise that is executed after the release is refused
		return
	}
	var done bool
	c := &a.ballots[tag].call
	if a.lease == nil {
		_, done = c.Leave(a)
	} else if done = c.Follow(a); !done {
		a.lease.await(tag, c, n)
	}
	if done {
		a.note(tag)
		return
	}
	a.trace.silent(tag)
	if a.gaveUp {
		a.b.health.silent(tag)
	}
}

// Late is told a vote that comes after the end of the acquisition.
func (a *acquisition) Late(c *node.Call) {
	v := c.Vote()
	a.heard(c.Tag, &v)
	if a.lease != nil {
		a.b.late(a.lease, &a.req, c, &v)
	} else {
		a.release(c.Tag, &v)
	}
	a.trace.late(c.Tag, v.Err)
}

// release undoes what node i has granted, or may have granted.
func (a *acquisition) release(i int, v *node.Vote) {
	if v.Granted || v.Doubtful {
		a.b.nodes[i].Undo(&a.req, v.Granted)
	}
}

// mayRemain reports whether node i may still have what the acquisition, which was lost, got there. What undoes it may
// still be on its way.
func (a *acquisition) mayRemain(i int) bool {
	v := &a.ballots[i].vote
	return a.voting.asked.has(i) && (!a.seen.has(i) || v.Granted || v.Doubtful)
}

// underWay reports whether node i may still carry out the acquisition. It is called after the end of the acquisition.
// If the request fails, so that its outcome is never known, the acquisition itself leaves a tombstone.
func (a *acquisition) underWay(i int) bool {
	return a.voting.asked.has(i) && a.ballots[i].call.UnderWay()
}

// split reports whether the vote was split: this attempt has some nodes, and nobody has a majority.
func (a *acquisition) split() bool {
	_, most := a.owners()
	return a.voting.granted != 0 && 0 < most && most < a.voting.need
}

// astray reports whether node i is wrong about the owner with the most nodes. Either the lock was free there, granted
// or not, although somebody has a majority, or it belongs to another owner there.
func (a *acquisition) astray(i int) bool {
	owners, most := a.owners()
	switch v := &a.ballots[i].vote; {
	case v.Granted, errors.As(v.Err, new(*locker.GracePeriodError)):
		return most >= a.voting.need
	case isHeld(v.Err), errors.Is(v.Err, locker.ErrForeignKey):
		return owners[v.Owner] < most
	}
	return false
}

// owners returns how many nodes each owner has, and how many the owner with the most nodes has.
func (a *acquisition) owners() (owners map[string]int, most int) {
	owners = map[string]int{}
	for i := range a.ballots {
		if v := &a.ballots[i].vote; isHeld(v.Err) {
			owners[v.Owner]++
			most = max(most, owners[v.Owner])
		}
	}
	return owners, most
}

func (a *acquisition) maxCounter() (c uint64) {
	for i := range a.ballots {
		c = max(c, reached(&a.ballots[i].vote, &a.req))
	}
	return c
}

// err returns why the acquisition was lost.
func (a *acquisition) err() error {
	if a.b.closed() {
		return locker.ErrClosed
	}
	e := a.b.quorumError(opAcquire, a.cause(), a.vote)
	e.raising = a.voting.token != 0
	return e
}

// vote returns what node i has said, in the second round if there was one.
func (a *acquisition) vote(i int) (Outcome, error) {
	switch v := &a.ballots[i].vote; {
	case v.Granted && (a.voting.token == 0 || a.voting.agreed.has(i)):
		return Agreed, nil
	case v.Granted && !a.voting.raised.has(i):
		return NotAsked, nil // to raise its counter: it was ahead of the token, or late
	case v.Granted:
		return a.faultOf(i, a.raises[i].err)
	case !a.voting.asked.has(i):
		return NotAsked, nil
	default:
		return a.faultOf(i, v.Err)
	}
}

// faultOf returns the Outcome of node i, which was asked and has said err, or nothing if that is nil.
func (a *acquisition) faultOf(i int, err error) (Outcome, error) {
	if err == nil && a.voting.outcome() == lost && time.Since(a.start) < a.b.health.usual(i) {
		return NotHeard, nil
	}
	return faultOf(err), err
}

// cause returns whether the acquisition was lost to other owners, or because too few nodes have answered.
func (a *acquisition) cause() error {
	n, need := len(a.ballots), a.voting.need
	decided := a.voting.outcome() == lost // by votes, and not for lack of them
	foreign, mismatched, mismatch := 0, 0, error(nil)
	// How long until each node that is in order can be free. If a node was not needed for the decision, nothing is
	// known of it. It counts as in order if it was in order before.
	var free []time.Duration
	for i := range a.ballots {
		var held *locker.HeldError
		switch v := &a.ballots[i].vote; {
		case v.Granted, v.Err == nil && decided && !a.b.health.isFaulty(i):
			free = append(free, 0)
		case errors.As(v.Err, &held):
			free = append(free, held.Remaining)
		case errors.Is(v.Err, locker.ErrForeignKey):
			foreign++
		case errors.Is(v.Err, locker.ErrInvalid): // another restart guard
			mismatched, mismatch = mismatched+1, v.Err
		}
	}
	slices.Sort(free)
	switch {
	case n-foreign < need:
		return locker.ErrForeignKey
	case n-mismatched < need:
		return mismatch
	case len(free) < need: // too many faults, whoever has the other nodes
		return noQuorum{}
	case a.held == 0 && !a.contested: // nobody else has the lock: votes or raises did not come in time
		return noQuorum{}
	case a.voting.asked != allOf(n): // the first node decided for all
		return &locker.HeldError{Remaining: free[len(free)-1], Label: a.holder()}
	default:
		return &locker.HeldError{Remaining: free[need-1], Label: a.holder()}
	}
}

// holder returns the label of the owner with the most nodes.
func (a *acquisition) holder() string {
	owners, most := a.owners()
	for i := range a.ballots {
		var held *locker.HeldError
		if v := &a.ballots[i].vote; errors.As(v.Err, &held) && owners[v.Owner] == most {
			return held.Label
		}
	}
	return ""
}

package redlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// maxTurn is how long a first node may take to answer before the next one takes its place. It is a quarter of the budget
// if that is less, so that two may fail.
const maxTurn = 50 * time.Millisecond

// round carries out one attempt: it sends what the attempt says and tells it what comes back.
type round struct {
	b       *backend
	req     locker.Request
	start   time.Time
	told    votes
	attempt attempt
	hint    uint64
	room    *room
	used    bool        // a call may still come to the room
	ballots []ballot    // by node
	raises  []node.Call // by node; nil: none was sent
	sent    nodeSet     // who was sent one
	seen    nodeSet     // votes that have come
	held    int         // how many of them were for somebody else
	gaveUp  bool        // on nodes that did not answer while others had
	// raised has what came of raises, by node; contested: a node refused one, so somebody else has its lock by now.
	raised    []error
	contested bool

	lease *lease // that the round has become when it was won; nil: what was granted is undone
}

// ballot is what one node is asked, and says.
type ballot struct {
	call node.Call
	vote node.Vote
}

// newRound starts a round. inTurn: nobody else is expected to ask now, so there is no need to ask one node first.
func newRound(b *backend, req locker.Request, inTurn bool) *round {
	n := len(b.nodes)
	r := &round{b: b, req: req, start: time.Now(), ballots: make([]ballot, n)}
	var first int
	first, r.hint = b.memory.recall(req.Key, n)
	switch {
	case inTurn:
		first = -1
	case first >= 0:
		first = b.health.first(first, n)
	}
	r.attempt = newAttempt(n, first)
	return r
}

// run goes on until the attempt is decided, its budget spent, or ctx ended.
func (r *round) run(ctx context.Context) {
	limit := min(r.b.budget, r.req.TTL/2)
	r.room = r.b.rooms.enter(len(r.ballots), limit)
	r.acquire(r.attempt.asked)
	var late <-chan time.Time
	if r.attempt.first >= 0 {
		t := time.NewTicker(min(maxTurn, limit/4))
		defer t.Stop()
		late = t.C
	}
	var impatient <-chan time.Time
	for r.attempt.outcome() == undecided {
		if impatient == nil && r.competing() {
			t := time.NewTimer(r.b.health.patience(r.attempt.asked &^ r.seen))
			defer t.Stop()
			impatient = t.C
		}
		select {
		case c := <-r.room.ready:
			r.answer(c)
		case <-impatient:
			r.hear()
			if r.competing() { // else a majority has granted meanwhile, and it is raises that are waited for
				r.gaveUp = true
				return
			}
		case <-late:
			r.acquire(r.attempt.skip())
		case <-ctx.Done():
			return
		case <-r.room.timer.C:
			r.hear()
			return
		case <-r.b.closing:
			return
		}
	}
}

// hear counts what has come: a process that was stalled finds answers and the end of its time at once.
func (r *round) hear() {
	for r.attempt.outcome() == undecided {
		select {
		case c := <-r.room.ready:
			r.answer(c)
		default:
			return
		}
	}
}

// competing reports whether the round is at odds with others: a majority has answered, and some of it for somebody else.
func (r *round) competing() bool {
	return r.attempt.token == 0 && r.held > 0 && r.seen.len() >= r.attempt.need
}

func (r *round) acquire(nodes nodeSet) {
	nodes.each(func(i int) {
		r.told.ask(i)
		r.sent |= only(i)
		r.b.nodes[i].StartAcquire(&r.ballots[i].call, r.room.ready, i, &r.req, node.Acquisition{Quantum: quantum, Hint: r.hint})
	})
}

// answer tells the attempt what a call brought back. Raises are tagged with the node's index plus the number of nodes.
func (r *round) answer(c *node.Call) {
	n := len(r.ballots)
	if c.Tag >= n {
		err := r.b.name(c.Tag-n, c.Owned())
		r.contested = r.contested || errors.Is(err, locker.ErrNotHeld)
		r.raised[c.Tag-n] = err
		r.attempt.raise(c.Tag-n, err == nil)
		return
	}
	i := c.Tag
	v := r.note(i)
	r.seen |= only(i)
	if !v.Granted {
		if isHeld(v.Err) {
			r.held++
		}
		r.acquire(r.attempt.deny(i, isHeld(v.Err)))
		return
	}
	acquire, raise := r.attempt.grant(i, v.Counter)
	r.acquire(acquire)
	if raise == 0 {
		return
	}
	r.req.Fence = r.attempt.token
	if r.raises == nil {
		r.raises, r.raised = make([]node.Call, n), make([]error, n)
	}
	raise.each(func(i int) { r.b.nodes[i].StartRaise(&r.raises[i], r.room.ready, n+i, &r.req) })
}

// note records the vote of node i, which has come before the round is settled.
func (r *round) note(i int) *node.Vote {
	v := &r.ballots[i].vote
	*v = r.b.vote(&r.ballots[i].call, i)
	r.heard(i, v)
	r.told.answer(i, v.Err)
	return v
}

// heard records that node i has answered. A connection that failed, or whose time was up, is no answer.
func (r *round) heard(i int, v *node.Vote) {
	switch {
	case errors.Is(v.Err, locker.ErrUnavailable):
		r.b.health.failed(i)
	case v.Granted, isHeld(v.Err):
		r.b.health.answered(i, time.Since(r.start))
	}
}

// keep settles a round that was won: nodes that have granted, or are yet to answer, are part of the lease; what is in
// doubt elsewhere is undone.
func (r *round) keep(turn *turn) *lease {
	r.req.Fence = r.attempt.token
	l := &lease{turn: turn, until: validity(r.start, r.req.TTL)}
	l.mu.Lock() // a late answer waits until all is set
	defer l.mu.Unlock()
	r.lease = l
	r.settle()
	r.b.memory.note(r.req.Key, false, r.maxCounter())
	return l
}

// undo settles a round that was lost: whatever was granted, or may be, is released. It does not wait: the answers of
// nodes that hang may be long in coming.
func (r *round) undo() {
	r.settle()
	r.b.memory.note(r.req.Key, r.split(), r.maxCounter())
}

// settle ends the round. Acquisitions that were not sent yet are only sent if it was won: then every node is asked, and of who
// has not answered Late is told.
func (r *round) settle() {
	(r.attempt.raised &^ (r.attempt.agreed | r.attempt.failed)).each(func(i int) {
		_, done := r.raises[i].Leave(nil) // a raise that is executed after the release is refused
		r.used = r.used || done
	})
	r.sent.each(func(i int) {
		if !r.seen.has(i) {
			if !r.leave(i) {
				r.told.silent(i)
				if r.gaveUp {
					r.b.health.silent(i)
				}
				return
			}
			r.used = true
			r.note(i)
		}
		r.known(i)
	})
	r.b.rooms.leave(r.room, r.used)
}

// leave stops waiting for node i's vote. It reports whether that is there.
func (r *round) leave(i int) (done bool) {
	c := &r.ballots[i].call
	if r.lease == nil {
		_, done = c.Leave(r)
		return done
	}
	if done = c.Follow(r); !done {
		r.lease.await(i, c, len(r.ballots))
	}
	return done
}

// underWay reports, once the round is settled, whether node i may yet carry out the acquisition. If it fails, so that its outcome
// is never known, the round itself keeps it from landing later.
func (r *round) underWay(i int) bool { return r.sent.has(i) && r.ballots[i].call.UnderWay() }

// known settles a vote that has come in time.
func (r *round) known(i int) {
	v := &r.ballots[i].vote
	switch {
	case r.lease == nil:
		r.release(i, v)
	case v.Granted:
		r.lease.grant(i, v.Counter, r.attempt.token)
	case v.Doubtful:
		r.lease.doubt(i)
	}
}

// Late is told of a vote that comes after the round was settled.
func (r *round) Late(c *node.Call) {
	v := r.b.vote(c, c.Tag)
	r.heard(c.Tag, &v)
	if r.lease != nil {
		r.b.late(r.lease, &r.req, c.Tag, v)
	} else {
		r.release(c.Tag, &v)
	}
	r.told.late(c.Tag, v.Err)
}

// release undoes what node i has granted, or may have.
func (r *round) release(i int, v *node.Vote) {
	if v.Granted || v.Doubtful {
		r.b.nodes[i].Undo(&r.req, v.Granted)
	}
}

// split reports whether the vote was split: some nodes were ours, and nobody has a majority.
func (r *round) split() bool {
	_, most := r.owners()
	return r.attempt.granted != 0 && 0 < most && most < r.attempt.need
}

// astray reports whether node i knows nothing of the one who has most of the lock: it had it free although somebody has a
// majority, or has it as somebody else's.
func (r *round) astray(i int) bool {
	owners, most := r.owners()
	switch v := &r.ballots[i].vote; {
	case v.Granted:
		return most >= r.attempt.need
	case isHeld(v.Err), errors.Is(v.Err, locker.ErrForeignKey):
		return owners[v.Owner] < most
	}
	return false
}

// owners returns how many nodes have said that they are whose, and how many whoever has the most has.
func (r *round) owners() (owners map[string]int, most int) {
	owners = map[string]int{}
	for i := range r.ballots {
		if v := &r.ballots[i].vote; isHeld(v.Err) {
			owners[v.Owner]++
			most = max(most, owners[v.Owner])
		}
	}
	return owners, most
}

func (r *round) maxCounter() (c uint64) {
	for i := range r.ballots {
		c = max(c, r.ballots[i].vote.Counter)
	}
	return c
}

// err says why the round was lost.
func (r *round) err() error {
	if r.b.closed() {
		return locker.ErrClosed
	}
	n := len(r.ballots)
	decided := r.attempt.outcome() == lost // by votes, and not for want of them
	e := &QuorumError{Op: "acquire", Need: r.attempt.need, Votes: make([]Vote, n), raising: r.attempt.token != 0}
	foreign := 0
	// When each node that is in order can be free; of one that was not needed for the decision nothing is known, and it
	// is taken to be in order if it was before.
	var free []time.Duration
	for i := range e.Votes {
		vote := &r.ballots[i].vote
		v := Vote{Node: r.b.names[i], Outcome: NoAnswer, Err: vote.Err}
		var held *locker.HeldError
		switch {
		case vote.Granted:
			v.Outcome = Agreed
			if r.attempt.token != 0 && !r.attempt.agreed.has(i) { // and was lost in the second round
				v.Outcome = NoAnswer
				if r.raised != nil && r.raised[i] != nil {
					v.Outcome, v.Err = Failed, r.raised[i]
				}
				if isSameServer(v.Err) {
					v.Outcome = Duplicate
				}
			}
			free = append(free, 0)
		case errors.As(v.Err, &held):
			v.Outcome = Held
			free = append(free, held.Remaining)
		case errors.Is(v.Err, locker.ErrForeignKey):
			v.Outcome = Failed
			foreign++
		case isSameServer(v.Err):
			v.Outcome = Duplicate
		case v.Err != nil:
			v.Outcome = Failed
		default:
			if !r.sent.has(i) {
				v.Outcome = NotAsked
			}
			if decided && !r.b.health.isFaulty(i) {
				free = append(free, 0)
			}
		}
		e.Votes[i] = v
	}
	slices.Sort(free)
	switch {
	case n-foreign < e.Need:
		e.cause = locker.ErrForeignKey
	case len(free) < e.Need: // too many faults, whoever holds the rest
		e.cause = noQuorum{}
	case r.held == 0 && !r.contested: // nobody else is there: votes or raises did not come in time
		e.cause = noQuorum{}
	case r.attempt.asked != allOf(n): // the first node decided for all
		e.cause = &locker.HeldError{Remaining: free[len(free)-1]}
	default:
		e.cause = &locker.HeldError{Remaining: free[e.Need-1]}
	}
	return e
}

// answers is how many nodes are up, and have said whose the lock is there.
func (e *QuorumError) answers() (n int) {
	for _, v := range e.Votes {
		if v.Outcome == Agreed || v.Outcome == Held {
			n++
		}
	}
	return n
}

package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// turn is a place in the queue of one node, which all clients take for the same as long as it is up. N queues would have
// N orders, so no queue can be the lock: it says who asks the quorum next, and whoever is not told in time asks anyway.
// Safety never looks at it; a lost, wrong or doubled turn costs a split vote. See docs/adr/0013-turns-as-advice.md.
type turn struct {
	node int
	*node.Turn
}

// keeper returns the node that keeps the queue for key: that of the turn, if there is one.
func (b *backend) keeper(key string, t *turn) int {
	if t != nil {
		return t.node
	}
	return b.memory.fit(key, agreed(key, len(b.nodes)), len(b.nodes))
}

// on returns the turn's ID for node i, if that is where it is.
func (t *turn) on(i int) string {
	if t == nil || t.node != i {
		return ""
	}
	return t.ID()
}

const (
	// turnPatience bounds how long the node that keeps the queue may take to answer before the next one takes its place.
	turnPatience = 500 * time.Millisecond
	// minBackoff and maxBackoff are the pauses of one whose turn it is after an attempt that failed although the queue's
	// node has the lock free: releases are on their way to the others, or the holder does not have that node.
	minBackoff = 2 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// maxFailed is how many attempts in a row fail before the node that says that the lock is free is not believed any
	// more: those who have the lock do not have that node, so their releases do not reach it.
	maxFailed = 4
	// soon is when a waiter looks a second time, and twice as long after that a third time, and so on, until it does so no
	// more often than the node wants it to. The lock that it saw may have been an attempt that failed, whose clean-up
	// tells nobody; and if the node has failed, that should not cost it many of the turns that others take elsewhere.
	soon = 50 * time.Millisecond
	// overdue is how long a waiter is content not to be told before it asks anyway.
	overdue = 2 * time.Second
	// faultRetry is how often a waiter asks a quorum that was lost when it asked last, and how long it waits until it
	// asks one that may be.
	faultRetry = 500 * time.Millisecond
	// silence is how long an attempt may go unanswered before it counts as one that failed.
	silence = time.Second
)

// Queue implements locker.Queuer. It asks all nodes at once if nobody has been waiting for the key lately. Otherwise that
// would be to push in, and would split the vote: it waits for its turn.
func (b *backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.calls.Enter()
	defer b.calls.Leave()
	if b.closed() {
		return locker.Grant{}, locker.ErrClosed
	}
	if err := b.nodes[0].Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	q := &queueing{b: b, req: req, trace: locker.TraceFrom(ctx)}
	if faulty := b.faulty.Load(); faulty || !b.memory.contended(req.Key) {
		if g, err := q.attempt(ctx, faulty); !errors.Is(err, locker.ErrHeld) {
			return g, err
		}
	}
	g, err := q.run(ctx)
	switch {
	case err != nil:
		q.leave()
	case q.turn != nil:
		q.turn.Used()
	}
	return g, err
}

// queueing is one call of Queue.
type queueing struct {
	b     *backend
	req   locker.Request
	trace *locker.Trace
	turn  *turn // nil while it has no place

	attempted bool         // req.Token has been used
	last      *acquisition // in which it was; nil: in none
	failed    int          // attempts in a row, since it was told last
	astray    bool         // the queue's node knows nothing of the one who has most of the lock
	looks     int          // at its place, since the last attempt
	moved     bool         // the queue's node has failed since then: others may have
	faulty    time.Time    // since when there has been no quorum; zero: there is one
	fault     error        // the last attempt's, since then

	seen  bool          // that others hold the lock
	sure  bool          // and that it was no attempt, or what is left of one while there is no quorum
	left  time.Duration // of the lock, as it was seen last
	votes *QuorumError  // of the last attempt that found it held
}

// attempt asks the quorum, with a fresh token each time: a clean-up of an earlier attempt may be under way. all says that all
// nodes are asked at once: nobody else should be asking when it is one's turn (if the vote was split, somebody was), and
// one who has not been told for long wants to know whether there is a quorum, which a single node cannot say.
func (q *queueing) attempt(ctx context.Context, all bool) (locker.Grant, error) {
	if q.attempted {
		q.req.Token = locker.NewToken()
	}
	q.attempted, q.looks, q.moved = true, 0, false
	if q.turn != nil {
		select {
		case <-q.turn.News: // it is being acted upon
		default:
		}
	}
	sent := time.Now()
	q.last = newAcquisition(q.b, q.req, all)
	g, err := q.last.run(ctx, q.turn)
	if err == nil {
		g.Token, g.Sent = q.req.Token, sent
		g.Private.(*lease).waited = q.seen
		return g, nil
	}
	q.failed++
	q.astray = q.turn != nil && q.last.astray(q.turn.node)
	var held *locker.HeldError
	if errors.As(err, &held) {
		q.saw(held.Remaining)
		q.votes = nil
		errors.As(err, &q.votes)
		q.sure = q.sure || q.votes.answers() >= q.votes.Need
	}
	return locker.Grant{}, err
}

// run waits for the turn, and asks when it has come, until an attempt wins.
func (q *queueing) run(ctx context.Context) (locker.Grant, error) {
	start, told := time.Now(), false
	for {
		if err := q.over(ctx); err != nil {
			return locker.Grant{}, err
		}
		var s node.Standing
		mine, lost, late := told, false, false
		if told {
			q.failed, q.sure = 0, true
		} else {
			var err error
			s, err = q.stand(ctx)
			if over := q.over(ctx); over != nil {
				return locker.Grant{}, over
			}
			lost = err != nil // no node keeps a queue
			mine = s.Mine && s.Left == 0
			rest := q.patience(s) - time.Since(start)
			if late = rest <= 0; !late { // not all of those who began to wait together ask together
				s.Again = min(s.Again, rest+rand.N(3*maxBackoff))
			}
		}
		if mine || lost || late {
			asked := time.Now()
			g, err := q.attempt(ctx, late || mine && q.failed == 0)
			if err == nil {
				if late && g.Private.(*lease).turnElsewhere() {
					q.b.memory.unfit(q.req.Key, q.turn.node)
				}
				return g, nil
			}
			if !q.bears(ctx, err, time.Since(asked)) {
				return locker.Grant{}, err
			}
			start = time.Now()
			if mine || lost {
				s.Again = backoff(q.failed)
			}
			if q.astray && (late || mine && q.failed > maxFailed) {
				q.b.memory.unfit(q.req.Key, q.turn.node)
				q.leave()
			}
		}
		if q.req.Waiting != nil {
			q.req.Waiting(q.left)
			q.req.Waiting = nil
		}
		if q.fault != nil {
			s.Again = min(s.Again, faultRetry/2+rand.N(faultRetry/2))
		}
		told = q.sleep(ctx, s.Again)
	}
}

// patience is how long a waiter does not ask, if nobody tells it to. The lock on the queue's node may be all that there
// is of it, left behind by somebody who died, or the node's clean-up may have told nobody.
func (q *queueing) patience(s node.Standing) time.Duration {
	if q.fault != nil || q.moved {
		return faultRetry
	}
	if s.Left > 0 && s.Rank > 0 { // those before it will find out
		return 3 * overdue
	}
	return overdue
}

// bears reports whether to wait on after an attempt that failed, and took so long. Faults are not waited for, except by
// those who have been waiting for the lock.
func (q *queueing) bears(ctx context.Context, err error, took time.Duration) bool {
	switch {
	case errors.Is(err, locker.ErrHeld):
		q.failing(nil, 0)
		return true
	case ctx.Err() != nil && q.seen && took < silence: // it was left before it could be answered, and says nothing
		return true
	case !q.sure && ctx.Err() == nil || !q.seen || !errors.Is(err, locker.ErrNoQuorum):
		return false
	}
	q.failing(err, took)
	return ctx.Err() != nil || time.Since(q.faulty) < q.req.Patience
}

// failing records what the last attempt, which took so long, said of the quorum: nil, if it answered.
func (q *queueing) failing(fault error, took time.Duration) {
	if fault == nil && q.fault == nil {
		return
	}
	if q.fault == nil {
		q.faulty = time.Now().Add(-took)
	}
	q.fault = fault
	if q.req.Failing != nil {
		q.req.Failing(q.faulty, fault)
	}
}

// stand takes a place, or keeps it. If the node that keeps the queue does not answer, the next one takes over.
func (q *queueing) stand(ctx context.Context) (s node.Standing, err error) {
	n := len(q.b.nodes)
	for range n {
		if q.turn == nil {
			q.take(q.b.keeper(q.req.Key, nil))
		}
		i := q.turn.node
		start := time.Now()
		tctx, cancel := context.WithTimeout(ctx, min(turnPatience, q.b.health.patience(only(i))))
		s, err = q.turn.Ask(tctx)
		cancel()
		if err == nil {
			q.b.health.answered(i, time.Since(start))
			if !s.Mine || s.Left > 0 {
				q.saw(s.Left)
				q.sure = q.sure || q.looks > 0
			}
			d := soon << min(q.looks, 10)
			s.Again = min(s.Again, d/2+rand.N(d/2))
			q.looks++
			return s, nil
		}
		if ctx.Err() != nil {
			return s, err
		}
		q.b.health.silent(i)
		q.leave()
		q.take((i + 1) % n)
		q.moved = true
	}
	return s, err
}

// take makes a place on node i, or on the next that is not known to be silent.
func (q *queueing) take(i int) {
	i = q.b.health.first(i, len(q.b.nodes))
	q.turn = &turn{i, q.b.nodes[i].NewTurn(q.req.Key)}
}

// leave gives the place up. That is sent until it is answered, and releases what there is by q.req.Token: no attempt to come
// may have the same.
func (q *queueing) leave() {
	if q.turn != nil {
		req := q.req
		q.turn.Leave(&req, q.last == nil || !q.last.underWay(q.turn.node))
		q.turn, q.attempted = nil, true
	}
}

// sleep returns after d or on news, and reports whether it was told to ask.
func (q *queueing) sleep(ctx context.Context, d time.Duration) (told bool) {
	start := time.Now()
	t := time.NewTimer(d)
	defer t.Stop()
	var news <-chan bool
	if q.turn != nil {
		news = q.turn.News
	}
	reason := locker.WakePoll
	select {
	case told = <-news:
		reason = locker.WakeHint
		if told {
			reason = locker.WakeHandover
		}
	case <-t.C:
	case <-q.req.Closing:
		return false
	case <-q.b.closing:
		return false
	case <-ctx.Done():
		return false
	}
	if q.trace != nil && q.trace.Woken != nil {
		q.trace.Woken(locker.Wake{Reason: reason, Slept: time.Since(start)})
	}
	return told
}

// saw records that others hold the lock, or are to have it first. Whoever asks at once from now on pushes in.
func (q *queueing) saw(left time.Duration) {
	q.seen, q.left = true, left
	q.b.memory.contend(q.req.Key)
}

// over returns why there is no point in waiting on.
func (q *queueing) over(ctx context.Context) error {
	select {
	case <-q.req.Closing:
		return locker.ErrClosed
	case <-q.b.closing:
		return locker.ErrClosed
	default:
	}
	switch {
	case ctx.Err() == nil:
		return nil
	case q.fault != nil:
		return q.fault
	case !q.seen:
		return errNoTurn
	case q.votes == nil:
		return &locker.HeldError{Remaining: q.left}
	}
	e := *q.votes
	e.cause = &locker.HeldError{Remaining: q.left}
	return &e
}

var errNoTurn = fmt.Errorf("%w: no node has said yet whose turn it is", locker.ErrUnavailable)

// backoff is the pause after the n-th attempt in a row that failed: doubled each time, up to half of it random.
func backoff(n int) time.Duration {
	d := maxBackoff
	if n < 6 {
		d = min(maxBackoff, minBackoff<<n)
	}
	return d/2 + rand.N(d/2)
}

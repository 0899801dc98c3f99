package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
	"github.com/golocker/locker/lockertrace"
)

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

// Queue implements locker.Queuer. It asks all nodes at once if nobody has been waiting for the key lately. Otherwise
// that would be to push in, and would split the vote: it waits for its turn.
func (b *backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.calls.Enter()
	defer b.calls.Leave()
	if b.closed() {
		return locker.Grant{}, locker.ErrClosed
	}
	if err := b.nodes[0].Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	w := &waiter{b: b, req: req, trace: lockertrace.From(ctx)}
	if faulty := b.faulty.Load(); faulty || !b.hints.contended(req.Key) {
		if g, err := w.attempt(ctx, faulty); !errors.Is(err, locker.ErrHeld) {
			return g, err
		}
	}
	g, err := w.run(ctx)
	switch {
	case err != nil:
		w.leave()
	case w.turn != nil:
		w.turn.Used()
	}
	return g, err
}

// waiter is one call of Queue.
type waiter struct {
	b     *backend
	req   locker.Request
	trace *lockertrace.Trace
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

// attempt asks the quorum, with a fresh token each time: a clean-up of an earlier attempt may be under way. all says
// that all nodes are asked at once: nobody else should be asking when it is one's turn (if the vote was split, somebody
// was), and one who has not been told for long wants to know whether there is a quorum, which a single node cannot say.
func (w *waiter) attempt(ctx context.Context, all bool) (locker.Grant, error) {
	if w.attempted {
		w.req.Token = locker.NewToken()
	}
	w.attempted, w.looks, w.moved = true, 0, false
	if w.turn != nil {
		select {
		case <-w.turn.News: // it is being acted upon
		default:
		}
	}
	sent := time.Now()
	w.last = newAcquisition(w.b, w.req, all)
	g, err := w.last.run(ctx, w.turn)
	if err == nil {
		g.Token, g.Sent = w.req.Token, sent
		g.Private.(*lease).waited = w.seen
		return g, nil
	}
	w.failed++
	w.astray = w.turn != nil && w.last.astray(w.turn.node)
	var held *locker.HeldError
	if errors.As(err, &held) {
		w.saw(held.Remaining)
		w.votes = nil
		errors.As(err, &w.votes)
		w.sure = w.sure || w.votes.answers() >= w.votes.Need
	}
	return locker.Grant{}, err
}

// run waits for the turn, and asks when it has come, until an attempt wins.
func (w *waiter) run(ctx context.Context) (locker.Grant, error) {
	start, told := time.Now(), false
	for {
		if err := w.over(ctx); err != nil {
			return locker.Grant{}, err
		}
		var s node.Standing
		mine, lost, late := told, false, false
		if told {
			w.failed, w.sure = 0, true
		} else {
			var err error
			s, err = w.stand(ctx)
			if over := w.over(ctx); over != nil {
				return locker.Grant{}, over
			}
			lost = err != nil // no node keeps a queue
			mine = s.Mine && s.Left == 0
			rest := w.patience(s) - time.Since(start)
			if late = rest <= 0; !late { // not all of those who began to wait together ask together
				s.Again = min(s.Again, rest+rand.N(3*maxBackoff))
			}
		}
		if mine || lost || late {
			asked := time.Now()
			g, err := w.attempt(ctx, late || mine && w.failed == 0)
			if err == nil {
				if late && g.Private.(*lease).turnElsewhere() {
					w.b.hints.unfit(w.req.Key, w.turn.node)
				}
				return g, nil
			}
			if !w.bears(ctx, err, time.Since(asked)) {
				return locker.Grant{}, err
			}
			start = time.Now()
			if mine || lost {
				s.Again = backoff(w.failed)
			}
			if w.astray && (late || mine && w.failed > maxFailed) {
				w.b.hints.unfit(w.req.Key, w.turn.node)
				w.leave()
			}
		}
		if w.req.Waiting != nil {
			w.req.Waiting(w.left)
			w.req.Waiting = nil
		}
		if w.fault != nil {
			s.Again = min(s.Again, faultRetry/2+rand.N(faultRetry/2))
		}
		told = w.sleep(ctx, s.Again)
	}
}

// patience is how long a waiter does not ask, if nobody tells it to. The lock on the queue's node may be all that there
// is of it, left behind by somebody who died, or the node's clean-up may have told nobody.
func (w *waiter) patience(s node.Standing) time.Duration {
	if w.fault != nil || w.moved {
		return faultRetry
	}
	if s.Left > 0 && s.Rank > 0 { // those before it will find out
		return 3 * overdue
	}
	return overdue
}

// bears reports whether to wait on after an attempt that failed, and took so long. Faults are not waited for, except by
// those who have been waiting for the lock.
func (w *waiter) bears(ctx context.Context, err error, took time.Duration) bool {
	switch {
	case errors.Is(err, locker.ErrHeld):
		w.failing(nil, 0)
		return true
	case ctx.Err() != nil && w.seen && took < silence: // it was left before it could be answered, and says nothing
		return true
	case !w.sure && ctx.Err() == nil || !w.seen || !errors.Is(err, locker.ErrNoQuorum):
		return false
	}
	w.failing(err, took)
	return ctx.Err() != nil || time.Since(w.faulty) < w.req.Patience
}

// failing records what the last attempt, which took so long, said of the quorum: nil, if it answered.
func (w *waiter) failing(fault error, took time.Duration) {
	if fault == nil && w.fault == nil {
		return
	}
	if w.fault == nil {
		w.faulty = time.Now().Add(-took)
	}
	w.fault = fault
	if w.req.Failing != nil {
		w.req.Failing(w.faulty, fault)
	}
}

// stand takes a place, or keeps it. If the node that keeps the queue does not answer, the next one takes over.
func (w *waiter) stand(ctx context.Context) (s node.Standing, err error) {
	n := len(w.b.nodes)
	for range n {
		if w.turn == nil {
			w.take(w.b.keeper(w.req.Key, nil))
		}
		i := w.turn.node
		start := time.Now()
		tctx, cancel := context.WithTimeout(ctx, min(turnPatience, w.b.health.patience(only(i))))
		s, err = w.turn.Ask(tctx)
		cancel()
		if err == nil {
			w.b.health.answered(i, time.Since(start))
			if !s.Mine || s.Left > 0 {
				w.saw(s.Left)
				w.sure = w.sure || w.looks > 0
			}
			d := soon << min(w.looks, 10)
			s.Again = min(s.Again, d/2+rand.N(d/2))
			w.looks++
			return s, nil
		}
		if ctx.Err() != nil {
			return s, err
		}
		w.b.health.silent(i)
		w.leave()
		w.take((i + 1) % n)
		w.moved = true
	}
	return s, err
}

// take makes a place on node i, or on the next that is not known to be silent.
func (w *waiter) take(i int) {
	i = w.b.health.first(i, len(w.b.nodes))
	w.turn = &turn{i, w.b.nodes[i].NewTurn(w.req.Key)}
}

// leave gives the place up. That is sent until it is answered, and releases what there is by w.req.Token: no attempt to
// come may have the same.
func (w *waiter) leave() {
	if w.turn != nil {
		req := w.req
		w.turn.Leave(&req, w.last == nil || !w.last.underWay(w.turn.node))
		w.turn, w.attempted = nil, true
	}
}

// sleep returns after d or on news, and reports whether it was told to ask.
func (w *waiter) sleep(ctx context.Context, d time.Duration) (told bool) {
	start := time.Now()
	t := time.NewTimer(d)
	defer t.Stop()
	var news <-chan bool
	if w.turn != nil {
		news = w.turn.News
	}
	reason := lockertrace.WakePoll
	select {
	case told = <-news:
		reason = lockertrace.WakeHint
		if told {
			reason = lockertrace.WakeHandover
		}
	case <-t.C:
	case <-w.req.Closing:
		return false
	case <-w.b.closing:
		return false
	case <-ctx.Done():
		return false
	}
	if w.trace != nil && w.trace.Woken != nil {
		w.trace.Woken(lockertrace.Wake{Reason: reason, Slept: time.Since(start)})
	}
	return told
}

// saw records that others hold the lock, or are to have it first. Whoever asks at once from now on pushes in.
func (w *waiter) saw(left time.Duration) {
	w.seen, w.left = true, left
	w.b.hints.contend(w.req.Key)
}

// over returns why there is no point in waiting on.
func (w *waiter) over(ctx context.Context) error {
	select {
	case <-w.req.Closing:
		return locker.ErrClosed
	case <-w.b.closing:
		return locker.ErrClosed
	default:
	}
	switch {
	case ctx.Err() == nil:
		return nil
	case w.fault != nil:
		return w.fault
	case !w.seen:
		return errNoTurn
	case w.votes == nil:
		return &locker.HeldError{Remaining: w.left}
	}
	e := *w.votes
	e.cause = &locker.HeldError{Remaining: w.left}
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

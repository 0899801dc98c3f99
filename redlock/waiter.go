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
	// minBackoff and maxBackoff bound the pauses of a waiter that has the turn, after an attempt that failed although
	// the lock is free on the node that keeps the queue. Releases are in flight to the other nodes, or the holder does
	// not have that node.
	minBackoff = 2 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// maxFailed is how many attempts in a row may fail while the node that keeps the queue says that the lock is free.
	// After that, the waiter does not trust this node: owners of the lock do not have it, so their releases do not
	// reach it.
	maxFailed = 4
	// overdue is how long a waiter waits for a notification before it asks the nodes anyway.
	overdue = 2 * time.Second
	// faultRetry is how often a waiter asks the nodes while there is no quorum. It is also how long a waiter waits
	// before it asks if there may be none.
	faultRetry = 500 * time.Millisecond
	// silence is how long an attempt may be unanswered before it counts as failed.
	silence = time.Second
)

const (
	// turnPatience bounds how long the node that keeps the queue may take to answer before the next one takes its
	// place.
	turnPatience = 500 * time.Millisecond
	// soon is the pause before a waiter looks a second time. Each further pause is twice as long, up to what the node
	// asks for. The lock that the waiter saw may have been a failed attempt, whose clean-up notifies nobody. And if the
	// node has failed, the waiter should not miss many turns that others take elsewhere.
	soon = 50 * time.Millisecond
	// ownLooks is how often a waiter looks, within the first 60 ms after an attempt that failed, without taking what the
	// attempt may have got for the lock of another.
	ownLooks = 5
)

// waiter is one call of Queue.
type waiter struct {
	b     *backend
	req   locker.Request
	trace *lockertrace.Trace
	turn  *turn // nil while it has no position

	attempted bool         // req.Token has been used
	last      *acquisition // the last acquisition; nil: there was none
	failed    int          // failed attempts in a row since the last notification
	astray    bool         // the node that keeps the queue is wrong about the owner; see acquisition.astray
	looks     int          // how often it has looked at its position since the last attempt
	ends      time.Time    // when the lock on the node that keeps the queue ends, as seen last; zero: it was free
	waived    bool         // it has let one attempt be since the last one; see changed
	moved     bool         // the node that keeps the queue has failed since the last attempt, and others may have
	faulty    time.Time    // since when there has been no quorum; zero: there is one
	fault     error        // the error of the last attempt without a quorum
	rested    time.Time    // when enough nodes have rested for a quorum, according to that error; zero: not known

	seen bool // others hold the lock
	// sure says that another client has, or had, a lease. It is false if what was seen may be the remains of a failed
	// attempt, which stay while there is no quorum.
	sure bool
	held locker.HeldError // the lock, as it was seen last
	// known says that held is set. Others may be ahead in the queue even if the queue's node does not have the lock, so
	// held may not be set although seen is.
	known bool
	votes *QuorumError // the votes of the last attempt that found the lock held
}

// attempt asks the quorum. Each attempt has a fresh token, because a clean-up of an earlier one may be in progress. all
// says that all nodes are asked at once. That is for a waiter with the turn whose last attempt has not failed, because
// nobody else should be asking. It is also for a waiter that was not notified for long and has to know whether there is
// a quorum, which a single node cannot say.
func (w *waiter) attempt(ctx context.Context, all bool) (locker.Grant, error) {
	if w.attempted {
		w.req.Token = locker.NewToken()
	}
	w.attempted, w.looks, w.moved, w.waived = true, 0, false, false
	if w.turn != nil {
		select {
		case <-w.turn.News: // this attempt acts on it
		default:
		}
	}
	a := newAcquisition(ctx, w.b, w.req, all)
	w.last = a
	a.acquire(a.election.asked)
	a.collect(ctx, a)
	// After Close, the caller cannot release the lock any more.
	if a.election.outcome() != won || w.b.closed() {
		return locker.Grant{}, a.undo(ctx)
	}
	l := a.keep(w.turn, w.seen)
	return locker.Grant{Fence: a.election.token, Token: w.req.Token, Sent: a.start, Private: l}, nil
}

// learn records what the last attempt, which failed with err, has found.
func (w *waiter) learn(err error) {
	w.failed++
	w.astray = w.turn != nil && w.last.astray(w.turn.node)
	var held *locker.HeldError
	if errors.As(err, &held) {
		w.held.Label, w.known = held.Label, true
		w.saw(held.Remaining)
		w.votes = nil
		errors.As(err, &w.votes)
		w.sure = w.sure || w.votes.answers() >= w.votes.Need
	}
}

// run waits for the turn and makes an attempt when it has come, until an attempt wins.
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
			lost = err != nil // no node keeps the queue
			mine = s.Mine && s.Left == 0
			if !lost && w.changed(s.Left) {
				start = time.Now()
			}
			rest := w.patience(s) - time.Since(start)
			// Waiters that have begun to wait at the same time should not all ask at the same time.
			if late = rest <= 0; !late {
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
			w.learn(err)
			if !w.tolerates(ctx, err, time.Since(asked)) {
				return locker.Grant{}, err
			}
			start = time.Now()
			if mine || lost {
				s.Again = backoff(w.failed)
			}
			if w.astray && (late || mine && w.failed > maxFailed) {
				w.b.hints.unfit(w.req.Key, w.turn.node)
				w.leave()
				// Another node keeps the queue now. A waiter that has no position there is not notified.
				w.failed, s.Again = 0, 0
			}
		}
		if w.req.Waiting != nil && w.known {
			w.req.Waiting(w.heldError())
			w.req.Waiting = nil
		}
		told = w.sleep(ctx, w.pause(s.Again))
	}
}

// changed records the remaining time of the lock on the node that keeps the queue. It reports whether the lock has
// ended there, so that the waiter that has the turn asks the nodes now or has just done so. If another lock is there,
// it may also be the remains of an attempt that failed, of a client that reaches only this node. So changed believes
// that only once between two attempts, and not while nodes fail.
func (w *waiter) changed(left time.Duration) bool {
	before, now := w.ends, time.Now()
	if left <= 0 {
		w.ends = time.Time{}
		return !before.IsZero()
	}
	w.ends = now.Add(left)
	if before.IsZero() || now.Before(before) || w.waived || w.moved || w.fault != nil {
		return false
	}
	w.waived = true
	return true
}

// sleep returns after d or when news comes. It reports whether the waiter was told to ask.
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
		reason = lockertrace.WakeNotify
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

// saw records that others hold the lock, or come first. Callers of this client that ask at once from now on would
// overtake them.
func (w *waiter) saw(left time.Duration) {
	w.seen, w.held.Remaining = true, left
	w.b.hints.contend(w.req.Key)
}

// backoff returns the pause after the n-th failed attempt in a row. It doubles each time, and up to half of it is
// random.
func backoff(n int) time.Duration {
	d := maxBackoff
	if n < 6 {
		d = min(maxBackoff, minBackoff<<n)
	}
	return d/2 + rand.N(d/2)
}

// stand takes or keeps a position in the queue. If the node that keeps the queue does not answer, the next node takes
// its place.
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
			pause := soon
			switch {
			case s.Left > 0 && w.looks < ownLooks && w.last != nil && w.last.mayRemain(i):
				pause = minBackoff // the lock may be what the last attempt got, and be gone in a moment
			case s.Left > 0:
				w.held.Label, w.known = s.Label, true
				fallthrough
			case !s.Mine:
				w.saw(s.Left)
				w.sure = w.sure || w.looks > 0
			}
			d := pause << min(w.looks, 10)
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

// take makes a turn on node i, or on the next node that is not known to be silent.
func (w *waiter) take(i int) {
	i = w.b.health.first(i, len(w.b.nodes))
	w.turn = &turn{i, w.b.nodes[i].NewTurn(w.req.Key)}
}

// leave gives up the position. The command for that is repeated until it is answered. It also releases what w.req.Token
// has, so no later attempt may use that token.
func (w *waiter) leave() {
	if w.turn != nil {
		req := w.req
		w.turn.Leave(&req, w.last == nil || !w.last.underWay(w.turn.node))
		w.turn, w.attempted = nil, true
	}
}

// patience is how long a waiter does not ask if it is not notified. The node that keeps the queue may have the lock of
// a dead owner that has no other node, or its clean-up may have notified nobody.
func (w *waiter) patience(s node.Standing) time.Duration {
	if w.fault != nil || w.moved {
		return faultRetry
	}
	if s.Left > 0 && s.Rank > 0 { // the waiters before it will find out
		return 3 * overdue
	}
	return overdue
}

// pause returns how long to wait before the next look, if the node that keeps the queue asks for again. While there is
// no quorum, the waiter looks more often, so that it notices the end of a failure. But nodes that rest have said when
// they will grant locks.
func (w *waiter) pause(again time.Duration) time.Duration {
	switch rest := time.Until(w.rested); {
	case w.fault == nil:
		return again
	case rest > 0:
		return min(rest, w.req.Patience-time.Since(w.faulty)) + rand.N(3*maxBackoff)
	default:
		return min(again, faultRetry/2+rand.N(faultRetry/2))
	}
}

// tolerates reports whether to wait on after an attempt that failed with err and took that long. Only a caller that has
// been waiting for the lock tolerates faults.
func (w *waiter) tolerates(ctx context.Context, err error, took time.Duration) bool {
	switch {
	case errors.Is(err, locker.ErrHeld):
		w.failing(nil, 0)
		return true
	// The context ended before the attempt could be answered.
	case ctx.Err() != nil && w.seen && took < silence:
		return true
	case !w.sure && ctx.Err() == nil || !w.seen || !errors.Is(err, locker.ErrNoQuorum):
		return false
	}
	w.failing(err, took)
	return ctx.Err() != nil || time.Since(w.faulty) < w.req.Patience
}

// failing records the outcome of the last attempt, which took that long: nil if there was a quorum.
func (w *waiter) failing(fault error, took time.Duration) {
	if fault == nil && w.fault == nil {
		return
	}
	if w.fault == nil {
		w.faulty = time.Now().Add(-took)
	}
	w.fault, w.rested = fault, time.Time{}
	var votes *QuorumError
	if errors.As(fault, &votes) && votes.rest() > 0 {
		w.rested = time.Now().Add(votes.rest())
	}
	if w.req.Failing != nil {
		w.req.Failing(w.faulty, fault)
	}
}

// heldError returns the lock as it was seen last.
func (w *waiter) heldError() *locker.HeldError {
	held := w.held
	return &held
}

// over returns why the waiter has to stop, or nil.
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
		return w.heldError()
	}
	e := *w.votes
	e.cause = w.heldError()
	return &e
}

var errNoTurn = fmt.Errorf("%w: no node has said yet whose turn it is", locker.ErrUnavailable)

package redlock

import (
	"context"
	"errors"
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

// Queue implements locker.Queuer. If nobody has waited for the key lately, it asks the nodes without queueing. If
// others wait, it waits for its turn, because asking would overtake them and split the vote.
func (b *backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.calls.Enter()
	defer b.calls.Leave()
	if err := b.check(&req); err != nil {
		return locker.Grant{}, err
	}
	w := &waiter{b: b, req: req, trace: lockertrace.From(ctx)}
	if faulty := b.faulty.Load(); faulty || !b.hints.contended(req.Key) {
		g, err := w.attempt(ctx, faulty)
		if !errors.Is(err, locker.ErrHeld) {
			return g, err
		}
		w.learn(err)
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

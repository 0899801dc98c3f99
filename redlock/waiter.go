package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/node"
)

// turnTimeout bounds how long the node that keeps the queue may take to answer before the next one takes its place.
const turnTimeout = 500 * time.Millisecond

// waiter is one call of Queue, or of Acquire, which makes one attempt.
type waiter struct {
	b      *majority
	req    backend.Request
	wait   backend.Wait // nil for Acquire
	turn   *turn        // nil while it has no position
	pacing pacing

	attempted bool         // req.Token has been used
	last      *acquisition // the last acquisition; nil: there was none
	seen      bool         // others hold the lock, or come first
	votes     *QuorumError // the votes of the last attempt that found the lock held
}

// attempt asks the quorum. Each attempt has a fresh token, because a clean-up of an earlier one may be in progress. all
// says that all nodes are asked at once. That is for a waiter with the turn whose last attempt has not failed, because
// nobody else should be asking. It is also for a waiter that was not notified for long and has to know whether there is
// a quorum, which a single node cannot say.
func (w *waiter) attempt(ctx context.Context, all bool) (backend.Grant, error) {
	if w.attempted {
		w.req.Token = backend.NewToken()
	}
	w.attempted = true
	w.pacing.asked()
	if w.turn != nil {
		select {
		case <-w.turn.News: // this attempt acts on it
		default:
		}
	}
	if w.wait != nil {
		w.req.Fences = w.wait.Fences()
	}
	req := w.req
	req.Fences = max(1, req.Fences)
	a := newAcquisition(ctx, w.b, req, all)
	w.last = a
	returned := false
	defer func() {
		if !returned { // a hook has panicked
			a.abandon(w.turn)
		}
	}()
	a.acquire(a.voting.asked)
	a.collect(ctx, a)
	// After Close, the caller cannot release the lock any more.
	if a.voting.outcome() != won || w.b.closed() {
		err := a.undo(ctx)
		returned = true
		return backend.Grant{}, err
	}
	l := a.keep(w.turn, w.seen)
	returned = true
	return backend.Grant{
		Fence: a.voting.token, Fences: req.Fences, Token: req.Token, Sent: a.start, Private: l,
	}, nil
}

// learn records what the last attempt, which was made at asked and failed with err, has found. It returns nil if the
// waiter goes on, and otherwise the error to return. Only a caller that has been waiting for a lease of somebody else
// tolerates that there is no quorum.
func (w *waiter) learn(ctx context.Context, asked time.Time, err error) error {
	var held *locker.HeldError
	if errors.As(err, &held) {
		w.votes = nil
		errors.As(err, &w.votes)
		w.pacing.quorum(time.Now(), true, 0)
		w.saw()
		w.wait.Held(held)
		return nil
	}
	if !errors.Is(err, locker.ErrNoQuorum) || !w.seen {
		return err
	}
	if _, end := w.wait.Failed(ctx, asked, err); end != nil {
		return end
	}
	var votes *QuorumError
	errors.As(err, &votes)
	w.pacing.quorum(time.Now(), false, votes.rest())
	return nil
}

// queue asks the nodes, and waits for the turn if the lock is held.
func (w *waiter) queue(ctx context.Context) (backend.Grant, error) {
	if faulty := w.b.faulty.Load(); faulty || !w.b.hints.contended(w.req.Key) {
		asked := time.Now()
		g, err := w.attempt(ctx, faulty)
		if !errors.Is(err, locker.ErrHeld) {
			return g, err
		}
		_ = w.learn(ctx, asked, err)
		w.pacing.failed++
	}
	g, err := w.run(ctx)
	return g, w.withVotes(err)
}

// run waits for the turn and makes an attempt when it has come, until an attempt wins.
func (w *waiter) run(ctx context.Context) (backend.Grant, error) {
	w.pacing.since = time.Now()
	_, w.pacing.failing = w.wait.Left() // since an earlier call
	for told := false; ; {
		next, err := w.look(ctx, told)
		if err != nil {
			return backend.Grant{}, err
		}
		if next.ask {
			asked := time.Now()
			g, err := w.attempt(ctx, next.all)
			if err == nil {
				if next.late && g.Private.(*lease).turnElsewhere() {
					w.b.hints.unfit(w.req.Key, w.turn.node)
				}
				return g, nil
			}
			if err := w.learn(ctx, asked, err); err != nil {
				return backend.Grant{}, err
			}
			if w.pacing.lost(time.Now(), &next, w.turn != nil && w.last.astray(w.turn.node)) {
				w.b.hints.unfit(w.req.Key, w.turn.node)
				w.leave()
			}
		}
		var news <-chan bool
		if w.turn != nil {
			news = w.turn.News
		}
		left, _ := w.wait.Left()
		pause := w.pacing.wait(time.Now(), next, left)
		if told, err = w.wait.Sleep(ctx, pause, news); err != nil {
			return backend.Grant{}, err
		}
	}
}

// look returns what to do next. told says that a message has given the waiter the turn.
func (w *waiter) look(ctx context.Context, told bool) (decision, error) {
	if err := w.wait.Ended(ctx); err != nil || told {
		return w.pacing.told(), err
	}
	s, placed := w.stand(ctx)
	if end := w.wait.Ended(ctx); end != nil {
		return decision{}, end
	}
	if !placed {
		return w.pacing.alone(time.Now()), nil
	}
	next := w.pacing.stood(time.Now(), s, w.last != nil && w.last.mayRemain(w.turn.node))
	if next.others {
		w.saw()
		var held error // nil: not known. One node does not show that there is a quorum again.
		if s.Left > 0 && !w.pacing.failing {
			held = &locker.HeldError{Label: s.Label, Remaining: s.Left}
		}
		w.wait.Held(held)
	}
	return next, nil
}

// saw records that others hold the lock, or come first. Callers of this client that ask at once from now on would
// overtake them.
func (w *waiter) saw() {
	w.seen = true
	w.b.hints.contend(w.req.Key)
}

// withVotes adds the votes of the last attempt that found the lock held to err, with which the wait has ended.
func (w *waiter) withVotes(err error) error {
	if w.votes == nil || !isHeld(err) || errors.As(err, new(*QuorumError)) {
		return err
	}
	e := *w.votes
	e.cause = err
	return &e
}

// stand takes or keeps a position in the queue. If the node that keeps the queue does not answer, the next node takes
// its place. It returns false if no node does.
func (w *waiter) stand(ctx context.Context) (s node.Standing, placed bool) {
	n := len(w.b.nodes)
	for range n {
		if w.turn == nil {
			w.take(w.b.keeper(w.req.Key, nil))
		}
		i := w.turn.node
		start := time.Now()
		tctx, cancel := context.WithTimeout(ctx, min(turnTimeout, w.b.health.timeout(only(i))))
		closing := w.wait.Closing() // the goroutine may run when the call has ended
		go func() {                 // Close ends the wait for a node that hangs
			select {
			case <-closing:
				cancel()
			case <-tctx.Done():
			}
		}()
		s, err := w.turn.Ask(tctx)
		cancel()
		if err == nil {
			w.b.health.answered(i, time.Since(start))
			return s, true
		}
		if w.wait.Ended(ctx) != nil {
			break
		}
		w.b.health.silent(i)
		w.leave()
		w.take((i + 1) % n)
		w.pacing.moved = true
	}
	return node.Standing{}, false
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

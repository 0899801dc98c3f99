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
// Safety never looks at it; a lost, wrong or doubled turn costs a split vote.
type turn struct {
	node int
	*node.Turn
}

// on returns the turn's ID for node i, if that is where it is.
func (t *turn) on(i int) string {
	if t == nil || t.node != i {
		return ""
	}
	return t.ID()
}

const (
	// turnPatience is how long the node that keeps the queue may take to answer before the next one takes its place.
	turnPatience = 100 * time.Millisecond
	// minBackoff and maxBackoff are the pauses of one whose turn it is after an attempt that failed although the queue's
	// node has the lock free: releases are on their way to the others, or the holder does not have that node.
	minBackoff = 2 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// overdue is how long a waiter is content not to be told while the queue's node has the lock free.
	overdue = 2 * time.Second
)

// Queue implements locker.Queuer. It asks all nodes at once if nobody has been waiting for the key lately. Otherwise that
// would be to push in, and would split the vote: it waits for its turn.
func (b *backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.calls.RLock()
	defer b.calls.RUnlock()
	if b.closed() {
		return locker.Grant{}, locker.ErrClosed
	}
	if err := b.nodes[0].Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	q := &queueing{b: b, req: req, trace: locker.TraceFrom(ctx)}
	if !b.memory.contended(req.Key) {
		if g, err := q.attempt(ctx); !errors.Is(err, locker.ErrHeld) {
			return g, err
		}
	}
	b.memory.contend(req.Key)
	g, err := q.run(ctx)
	if q.turn != nil {
		q.turn.Leave(err == nil) // if acquired, the release will pass it on
	}
	return g, err
}

// queueing is one call of Queue.
type queueing struct {
	b         *backend
	req       locker.Request
	trace     *locker.Trace
	turn      *turn // nil while it has no place
	attempted bool  // req.Token has been used
	failed    int   // attempts in a row, since it was told last
	seen      error // what was learnt of the lock last, if that was that it is held
}

// attempt asks the quorum, with a fresh token each time.
func (q *queueing) attempt(ctx context.Context) (locker.Grant, error) {
	if q.attempted {
		q.req.Token = locker.NewToken()
	}
	q.attempted = true
	sent := time.Now()
	g, err := q.b.attempt(ctx, newRound(q.b, q.req, q.turn != nil), q.turn)
	if err == nil {
		g.Token, g.Sent = q.req.Token, sent
		return g, nil
	}
	q.failed++
	if errors.Is(err, locker.ErrHeld) {
		q.seen = err
	}
	return locker.Grant{}, err
}

// run waits for the turn, and asks when it has come, until an attempt wins.
func (q *queueing) run(ctx context.Context) (locker.Grant, error) {
	start := time.Now()
	for told := false; ; {
		var s node.Standing
		ask := told
		if !told {
			var err error
			s, err = q.stand(ctx)
			// If no node keeps a queue, ask now and then. Nor does it hurt to ask where nobody says that it is this one's
			// turn although the lock is free: whose turn it is may have died, or be waiting on another node.
			ask = err != nil || s.Left == 0 && (s.Mine || time.Since(start) > overdue)
		}
		if err := q.over(ctx); err != nil {
			return locker.Grant{}, err
		}
		if ask {
			if told {
				q.failed = 0
			}
			g, err := q.attempt(ctx)
			switch {
			case err == nil:
				q.b.memory.contend(q.req.Key)
				return g, nil
			case !errors.Is(err, locker.ErrHeld) && (ctx.Err() == nil || q.seen == nil):
				return locker.Grant{}, err
			}
			start = time.Now()
			s.Again = backoff(q.failed)
		}
		if q.req.Waiting != nil {
			q.req.Waiting(s.Left)
			q.req.Waiting = nil
		}
		told = q.sleep(ctx, s.Again)
	}
}

// stand takes a place, or keeps it. If the node that keeps the queue does not answer, the next one takes over.
func (q *queueing) stand(ctx context.Context) (node.Standing, error) {
	var last error
	n := len(q.b.nodes)
	first := q.b.health.first(agreed(q.req.Key, n), n)
	for k := range n {
		if q.turn == nil {
			i := (first + k) % n
			q.turn = &turn{i, q.b.nodes[i].NewTurn(q.req.Key)}
		}
		tctx, cancel := context.WithTimeout(ctx, turnPatience)
		s, err := q.turn.Ask(tctx)
		cancel()
		if err == nil {
			if !s.Mine || s.Left > 0 {
				q.seen = &locker.HeldError{Remaining: s.Left}
			}
			return s, nil
		}
		if ctx.Err() != nil {
			return s, err
		}
		last = err
		q.b.health.silent(q.turn.node)
		q.turn.Leave(false)
		q.turn = nil
	}
	return node.Standing{}, last
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
	case q.seen != nil:
		return q.seen
	default:
		return errNoTurn
	}
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

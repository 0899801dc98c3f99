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

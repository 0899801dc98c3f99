package node

import (
	"context"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// QueuedNode is a Node that keeps a queue for each lock on the server. A release grants the lock to the first waiter.
// So waiters need not poll, nobody overtakes them, and each release wakes one of them only. docs/safety.md has the
// rules.
type QueuedNode struct{ *Node }

// Acquire implements locker.Backend. It is one attempt, and fails while others are in the queue.
func (q QueuedNode) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	q.calls.Enter()
	defer q.calls.Leave()
	if err := q.Check(&req); err != nil {
		return locker.Grant{}, err
	}
	if q.cleaner.full() {
		return locker.Grant{}, q.fault(pipeline.ErrFull)
	}
	w := &waiter{q: q, ctx: ctx, req: req}
	p, err := w.enqueue()
	switch {
	case err != nil:
		return locker.Grant{}, w.give(err)
	case p.Status != script.Granted:
		return locker.Grant{}, heldError(p)
	}
	return w.granted(p)
}

// Queue implements locker.Queuer.
func (q QueuedNode) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	q.calls.Enter()
	defer q.calls.Leave()
	if err := q.Check(&req); err != nil {
		return locker.Grant{}, err
	}
	if q.cleaner.full() {
		return locker.Grant{}, q.fault(pipeline.ErrFull)
	}
	in := q.inboxOf(q.keys(req.Key))
	w := &waiter{q: q, inbox: in, ctx: ctx, req: req, positionTTL: script.MaxPositionTTL}
	if in.live(in.name) { // the subscription is open, because others have waited lately
		w.listen()
		defer w.ignore()
	}
	asked := time.Now()
	p, err := w.enqueue()
	switch {
	case q.isMovingError(err) && ctx.Err() == nil: // waits as for a lock that is held
		w.failing(q.fault(err), asked)
	case err != nil:
		return locker.Grant{}, w.give(err)
	case p.Status == script.Granted:
		return w.granted(p)
	default:
		w.seesHeld(p)
	}
	if w.news == nil {
		w.listen()
		defer w.ignore()
		if in.live(in.name) {
			w.hear(false)
		}
	}
	return w.wait(p)
}

// Release implements locker.Backend.
func (q QueuedNode) Release(ctx context.Context, req locker.Request) error {
	q.calls.Enter()
	defer q.calls.Leave()
	w, ok := req.Private.(*waiter)
	landed := !ok || !w.stragglers()
	return q.release(ctx, &req, landed, script.NotifyQueue)
}

// leave releases in the background, as Undo does, and gives up the position in the queue.
func (q QueuedNode) leave(req *locker.Request, landed bool) {
	q.cleaner.add(q.undoing(req, landed, script.NotifyQueue))
}

// seesHeld tells the caller, once, that somebody else has the lock.
func (w *waiter) seesHeld(p script.Position) {
	if w.req.Waiting != nil {
		w.req.Waiting(heldError(p))
		w.req.Waiting = nil
	}
}

// heldError says who has the lock that a waiter at p waits for.
func heldError(p script.Position) *locker.HeldError {
	return &locker.HeldError{Remaining: p.Left, Label: p.Label}
}

package node

import (
	"context"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// recall is the context of an exchange that a caller carries out itself although it may have to leave, because its own context
// ends or the node is closed. Its Done channel is closed then, and not by its deadline, which such a driver keeps to unasked; see
// drivers.Interruptible.
//
// Recalls that were not needed are used again, with their channels and functions: anew for each call these would be most of what
// that allocates.
type recall struct {
	context.Context // the caller's, for its values
	leaving         Leaving
	end             time.Time
	queue           *queue
	ended           func()        // callerEnded
	stop            func() bool   // stopped
	done            chan struct{} // closed when the caller has to leave

	// guarded by queue.mu
	kept      bool   // somebody may have r for longer than the exchange; see Value
	why       error  // the caller had to leave; nil: it has not
	interrupt func() // the driver's, to be called then
	lingers   *time.Timer
}

// recall returns one for an exchange that begins now. Call with mu held.
func (q *queue) recall(ctx context.Context, l Leaving, limit time.Duration) *recall {
	var r *recall
	if last := len(q.recalls) - 1; last >= 0 {
		r = q.recalls[last]
		q.recalls = q.recalls[:last]
	} else {
		r = &recall{queue: q, done: make(chan struct{})}
		r.ended, r.stop = r.callerEnded, r.stopped
	}
	r.Context, r.leaving, r.end = ctx, l, time.Now().Add(limit)
	q.inside = append(q.inside, r)
	return r
}

// exchange sends c, as single does, from the goroutine of the caller, which may be called away.
func (r *recall) exchange(c *Call) result {
	unhook := context.AfterFunc(r.leaving.Ctx, r.ended)
	answer := r.queue.single(r, c)
	unhooked := unhook()

	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.inside, r); i >= 0 {
		q.inside = slices.Delete(q.inside, i, i+1)
	}
	switch {
	case r.why != nil && isNotSent(answer.err): // the driver's reason is that its context has ended
		answer.err = drivers.NotSent(r.why)
	case r.why != nil && answer.err != nil:
		answer.err = r.why
	case r.lingers != nil:
		r.lingers.Stop()
	case unhooked && r.why == nil && !r.kept && len(q.recalls) < maxLanes: // nothing that was meant for this call can meet the next
		r.Context, r.leaving = nil, Leaving{}
		q.recalls = append(q.recalls, r)
	}
	return answer
}

func (r *recall) Deadline() (time.Time, bool) { return r.end, true }
func (r *recall) Done() <-chan struct{}       { return r.done }

func (r *recall) Err() error {
	select {
	case <-r.done:
		return context.Canceled
	default:
	}
	if time.Now().Before(r.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// Value is asked when a context is derived from r, if not before: when the driver dials, say, which may go on for longer than the
// exchange. Then r cannot be anybody else's.
func (r *recall) Value(key any) any {
	r.queue.mu.Lock()
	r.kept = true
	values := r.Context
	r.queue.mu.Unlock()
	if values == nil {
		return nil // nobody's
	}
	return values.Value(key)
}

// OnLeave implements what drivers.OnLeave asks for.
func (r *recall) OnLeave(interrupt func()) (stop func() bool) {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	if r.why != nil {
		go interrupt()
	} else {
		r.interrupt = interrupt
	}
	return r.stop
}

func (r *recall) stopped() bool {
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	interrupt := r.interrupt
	r.interrupt = nil
	return interrupt != nil // else somebody has taken it, and calls it
}

// callerEnded is told that the caller's context has ended, which is not always the end.
func (r *recall) callerEnded() {
	rest := time.Until(r.leaving.Least)
	if rest <= 0 {
		r.leave(errNoAnswer)
		return
	}
	r.queue.mu.Lock()
	defer r.queue.mu.Unlock()
	if slices.Contains(r.queue.inside, r) {
		r.lingers = time.AfterFunc(rest, func() { r.leave(errNoAnswer) })
	}
}

// leave has the caller leave.
func (r *recall) leave(why error) {
	r.queue.mu.Lock()
	var interrupt func()
	if r.why == nil {
		r.why = why
		close(r.done)
		interrupt, r.interrupt = r.interrupt, nil
	}
	r.queue.mu.Unlock()
	if interrupt != nil {
		interrupt()
	}
}

// recallAll has all callers that wait in the driver leave that can, now and from now on.
func (q *queue) recallAll() {
	q.mu.Lock()
	q.recalled = true
	inside := slices.Clone(q.inside)
	q.mu.Unlock()
	for _, r := range inside {
		r.leave(locker.ErrClosed)
	}
}

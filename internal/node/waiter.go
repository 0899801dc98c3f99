package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/lockertrace"
)

const (
	// untoldPoll is how often a waiter looks that cannot be told, at the latest: its driver has no subscriptions, or
	// its connection is just being made.
	untoldPoll = 100 * time.Millisecond
	// silence is how long a request may go unanswered before it counts as one that failed.
	silence = time.Second
)

// waiter is one call that wants a lock. When it has got it, it is the Private of its Grant.
type waiter struct {
	q     QueuedNode
	ctx   context.Context
	req   locker.Request
	lease time.Duration // 0: it does not wait

	news   chan bool // has room for one: true when it was told, false when it can be told from now on; nil before listen
	placed bool      // the server has it in its queue, or may
	ticket int64     // its place in the queue, should the server forget it
	missed int       // how often it was granted the lock and came too late
	start  time.Time // when the last request was sent

	unanswered time.Time   // when the first of those requests was sent that went unanswered since the last answer; zero: none
	fault      error       // what became of the last of these; nil: none
	gone       atomic.Bool // it has given up, and says so to the server
	// astray is how many requests for the lock, or a place in the queue, went unanswered so far. Claims are not among
	// them: they take nothing.
	astray atomic.Int32
}

// stragglers reports whether a request may still be executed. Should that be after the release, it would take the lock,
// or a place in the queue, for nobody: the release has to leave a tombstone.
func (w *waiter) stragglers() bool { return w.astray.Load() != 0 }

// maxMissed is how often a waiter that was too late to claim the lock goes back to its place. After that, whatever
// stalls it, it queues up anew, instead of stalling those behind it again.
const maxMissed = 3

func (w *waiter) listen() {
	if w.news == nil {
		w.news = make(chan bool, 1)
	}
	w.q.inbox.expect(w.req.Token, w.hear)
}

func (w *waiter) hear(told bool) { ring(w.news, told) }

func (w *waiter) ignore() { w.q.inbox.ignore(w.req.Token) }

// do sends one command and waits for what its reply says.
func (w *waiter) do(cmd script.Command, late func(drivers.Reply, error)) (script.Position, error) {
	w.start = time.Now()
	reply, err := w.q.do(w.ctx, cmd, w.req.TTL, late)
	if err != nil {
		return script.Position{}, err
	}
	return decodePosition(reply)
}

// late is told of the outcome of a command that was not waited for. If the waiter has given up, it has said so to the
// server. If it was granted the lock nevertheless (that was executed first, or so late that the tombstone was gone),
// that is known only now. Until it gives up, it learns of a grant by its next request, or has done so already: then it
// holds the lock.
func (w *waiter) late(p script.Position) {
	if w.gone.Load() && p.Status == script.Granted {
		w.q.leave(&w.req, true)
	}
}

// enqueue takes the lock, or a place in the queue, or keeps it.
func (w *waiter) enqueue() (script.Position, error) {
	// What was said before, the reply knows better. A message about a grant that has been seen, and missed, would be
	// taken for another grant that was missed.
	select {
	case <-w.news:
	default:
	}
	channel := ""
	if w.news != nil && w.q.inbox.live(w.q.inbox.name) {
		channel = w.q.inbox.name
	}
	p, err := w.do(w.q.attempt(&w.req).Enqueue(w.req.TTL, w.lease, w.ticket, channel), func(reply drivers.Reply, err error) {
		var p script.Position
		if err == nil {
			p, err = decodePosition(reply)
		}
		if !isDoubtful(err) {
			w.astray.Add(-1) // it may come here before enqueue has counted it
		}
		w.late(p)
	})
	if isDoubtful(err) { // perhaps by the word of something on the way, which has sent the request on
		w.astray.Add(1)
	}
	if err == nil && p.Status != script.Granted && w.ticket == 0 {
		w.ticket = p.Ticket
	}
	return p, err
}

// claim comes for a lock that was granted by somebody else.
func (w *waiter) claim() (script.Position, error) {
	p, err := w.do(w.q.attempt(&w.req).Claim(w.req.TTL), func(reply drivers.Reply, err error) {
		if p, unread := decodePosition(reply); err == nil && unread == nil {
			w.late(p)
		}
	})
	if err == nil && p.Status != script.Granted {
		if w.missed++; w.missed == maxMissed {
			w.missed, w.ticket = 0, 0
		}
	}
	return p, err
}

// granted makes a grant of a place that is one. A lock granted by somebody else, or by an earlier delivery of the same
// request, lives less long than the TTL from now: it is claimed.
func (w *waiter) granted(p script.Position) (locker.Grant, error) {
	if !p.Whole && p.Left < w.req.TTL {
		w.placed = true
		var err error
		if p, err = w.claim(); err != nil {
			return locker.Grant{}, w.give(err)
		}
		if p.Status != script.Granted { // its window was over
			return locker.Grant{}, w.give(errTooLate)
		}
	}
	return w.grant(p)
}

func (w *waiter) grant(p script.Position) (locker.Grant, error) {
	if w.q.closed() { // too late to be released by the caller
		w.placed = true
		return locker.Grant{}, w.give(locker.ErrClosed)
	}
	w.ctx, w.req.Waiting, w.req.Failing = nil, nil, nil // not to be kept for as long as the lock is
	return locker.Grant{Fence: p.Counter, Token: w.req.Token, Sent: w.start, Private: w}, nil
}

var errTooLate = errors.New("the lock was granted, and taken by somebody else before the answer came")

// wait waits for the lock from a place in the queue.
func (w *waiter) wait(p script.Position) (locker.Grant, error) {
	w.placed = true
	t := time.NewTimer(w.pause(p))
	defer t.Stop()
	for {
		slept := time.Now()
		reason := lockertrace.WakePoll
		select {
		case told := <-w.news:
			reason = lockertrace.WakeHint
			if told {
				reason = lockertrace.WakeHandover
			}
		case <-t.C:
		case <-w.req.Closing:
			return locker.Grant{}, w.give(locker.ErrClosed)
		case <-w.q.closing:
			return locker.Grant{}, w.give(locker.ErrClosed)
		case <-w.ctx.Done():
			return locker.Grant{}, w.give(w.seen(p))
		}
		if trace := lockertrace.From(w.ctx); trace != nil && trace.Woken != nil {
			trace.Woken(lockertrace.Wake{Reason: reason, Slept: time.Since(slept)})
		}
		asked := time.Now()
		next, err := w.look(reason == lockertrace.WakeHandover)
		switch {
		case err == nil && next.Status == script.Granted:
			return w.grant(next)
		case err == nil:
			p = next
			w.failing(nil, asked)
		case w.ctx.Err() != nil && time.Since(asked) < silence: // it was left before it could be answered, and says nothing
			return locker.Grant{}, w.give(w.seen(p))
		default:
			if isFault(err) {
				w.failing(w.q.fault(err), asked)
			}
			if w.ctx.Err() != nil || !isFault(err) || time.Since(w.unanswered) > w.req.Patience {
				return locker.Grant{}, w.give(err)
			}
		}
		t.Reset(w.pause(p))
	}
}

// failing records what became of the last request, which was sent then: nil, if it was answered.
func (w *waiter) failing(fault error, asked time.Time) {
	if fault == nil && w.fault == nil {
		return
	}
	switch {
	case fault == nil:
		w.unanswered = time.Time{}
	case w.fault == nil:
		w.unanswered = asked
	}
	w.fault = fault
	if w.req.Failing != nil {
		w.req.Failing(w.unanswered, fault)
	}
}

// seen is what the last contact with the server came to.
func (w *waiter) seen(p script.Position) error {
	if w.fault != nil {
		return w.fault
	}
	return &locker.HeldError{Remaining: p.Left}
}

// look asks how things stand, and claims the lock if it was granted.
func (w *waiter) look(told bool) (p script.Position, err error) {
	if !told {
		p, err = w.resume()
		if err != nil || p.Status != script.Granted || p.Whole || p.Left >= w.req.TTL {
			return p, err
		}
	}
	p, err = w.claim()
	if err == nil && p.Status != script.Granted { // an old message, or its window is over: back to its place
		return w.resume()
	}
	return p, err
}

// resume goes back to its place, as a new attempt if the old one was given up for it: an operator has taken the lock
// from it, before it came for that.
func (w *waiter) resume() (script.Position, error) {
	p, err := w.enqueue()
	if !errors.Is(err, errGivenUp) {
		return p, err
	}
	w.ignore()
	if w.stragglers() {
		w.q.leave(&w.req, false) // that its tombstone lives for long enough
	}
	w.req.Token, w.missed = locker.NewToken(), 0
	w.listen()
	return w.enqueue()
}

// pause is how long to wait for news.
func (w *waiter) pause(p script.Position) time.Duration {
	if !w.unanswered.IsZero() {
		// Soon, for it may have been granted the lock, and less and less so.
		d := min(max(time.Since(w.unanswered), untoldPoll), time.Second)
		return d/2 + rand.N(d/2)
	}
	if p.More {
		return 0
	}
	d := script.ClaimWindow*3/4 + rand.N(script.ClaimWindow/2)
	if w.news == nil || !w.q.inbox.live(w.q.inbox.name) {
		d = untoldPoll/2 + rand.N(untoldPoll/2)
	}
	if p.Rank == 0 && p.Left > 0 {
		d = min(d, p.Left+time.Millisecond) // its holder may have died
	}
	return d
}

// give gives the attempt up, unless it is sure that the server knows nothing of it, and returns why.
func (w *waiter) give(err error) error {
	if w.placed || isDoubtful(err) {
		w.gone.Store(true)
		w.q.leave(&w.req, !w.stragglers())
	}
	return w.q.fault(err)
}

// decodePosition reads the reply to enqueue and claim. An error says that the waiter is in no queue.
func decodePosition(reply drivers.Reply) (script.Position, error) {
	p, err := script.ReadPosition(reply)
	if err == nil && p.Status != script.Waiting {
		err = errorOf(p.Status, p.Left, 0)
	}
	return p, err
}

// isFault reports whether err is something that may pass: the server did not answer, or refused for now.
func isFault(err error) bool {
	return !errors.Is(err, locker.ErrForeignKey) && !errors.Is(err, pipeline.ErrClosed) && !errors.Is(err, errGivenUp)
}

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
)

// FIFO is a Node whose locks are waited for in a queue on the server, and handed over from one owner to the next: nobody
// polls, nobody overtakes, and no herd wakes. docs/safety.md has the rules.
type FIFO struct{ *Node }

const (
	// untoldPoll is how often a waiter looks that cannot be told, at the latest: its driver has no subscriptions, or its
	// connection is just being made.
	untoldPoll = 100 * time.Millisecond
	// silence is how long a request may go unanswered before it counts as one that failed.
	silence = time.Second
)

// Acquire implements locker.Backend: one attempt, behind those who wait.
func (f FIFO) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	f.calls.Enter()
	defer f.calls.Leave()
	if err := f.Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	if f.cleaner.full() {
		return locker.Grant{}, f.fault(pipeline.ErrFull)
	}
	w := f.waiter(ctx, req, 0)
	p, err := w.enqueue()
	switch {
	case err != nil:
		return locker.Grant{}, w.give(err)
	case !p.granted:
		return locker.Grant{}, &locker.HeldError{Remaining: p.left}
	}
	return w.granted(p)
}

// Queue implements locker.Queuer.
func (f FIFO) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	f.calls.Enter()
	defer f.calls.Leave()
	if err := f.Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	if f.cleaner.full() {
		return locker.Grant{}, f.fault(pipeline.ErrFull)
	}
	w := f.waiter(ctx, req, maxLease)
	if f.inbox.live(f.inbox.name) { // others have waited here lately
		w.listen()
		defer w.ignore()
	}
	p, err := w.enqueue()
	switch {
	case err != nil:
		return locker.Grant{}, w.give(err)
	case p.granted:
		return w.granted(p)
	}
	if req.Waiting != nil {
		req.Waiting(p.left)
	}
	if w.news == nil {
		w.listen()
		defer w.ignore()
		if f.inbox.live(f.inbox.name) {
			w.hear(false)
		}
	}
	return w.wait(p)
}

// Release implements locker.Backend.
func (f FIFO) Release(ctx context.Context, req locker.Request) error {
	f.calls.Enter()
	defer f.calls.Leave()
	w, ok := req.Private.(*waiter)
	landed := !ok || !w.stragglers()
	return f.release(ctx, &req, landed, notifyQueue)
}

// waiter is one call that wants a lock. When it has got it, it is the Private of its Grant.
type waiter struct {
	f     FIFO
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
	// astray is how many requests for the lock, or a place in the queue, went unanswered so far. Claims are not among them:
	// they take nothing.
	astray atomic.Int32
}

// stragglers reports whether a request may still be executed. Should that be after the release, it would take the lock, or a
// place in the queue, for nobody: the release has to leave a tombstone.
func (w *waiter) stragglers() bool { return w.astray.Load() != 0 }

// maxMissed is how often a waiter that was too late to claim the lock goes back to its place. After that, whatever stalls
// it, it queues up anew, instead of stalling those behind it again.
const maxMissed = 3

func (f FIFO) waiter(ctx context.Context, req locker.Request, lease time.Duration) *waiter {
	return &waiter{f: f, ctx: ctx, req: req, lease: lease}
}

func (w *waiter) listen() {
	if w.news == nil {
		w.news = make(chan bool, 1)
	}
	w.f.inbox.expect(w.req.Token, w.hear)
}

func (w *waiter) hear(told bool) { ring(w.news, told) }

func (w *waiter) ignore() { w.f.inbox.ignore(w.req.Token) }

// do sends one command and waits for what its reply says.
func (w *waiter) do(cmd pipeline.Command, late func(drivers.Reply, error)) (place, error) {
	w.start = time.Now()
	reply, err := w.f.pipeline.Do(w.ctx, cmd, w.req.TTL, late)
	if err != nil {
		return place{}, err
	}
	return decodePlace(reply)
}

// late is told of the outcome of a command that was not waited for. If the waiter has given up, it has said so to the server.
// If it was granted the lock nevertheless (that was executed first, or so late that the tombstone was gone), that is known
// only now. Until it gives up, it learns of a grant by its next request, or has done so already: then it holds the lock.
func (w *waiter) late(p place) {
	if w.gone.Load() && p.granted {
		w.f.leave(&w.req, true)
	}
}

// enqueue takes the lock, or a place in the queue, or keeps it.
func (w *waiter) enqueue() (place, error) {
	// What was said before, the reply knows better. A message about a grant that has been seen, and missed, would be taken for
	// another grant that was missed.
	select {
	case <-w.news:
	default:
	}
	channel := ""
	if w.news != nil && w.f.inbox.live(w.f.inbox.name) {
		channel = w.f.inbox.name
	}
	p, err := w.do(w.f.attempt(&w.req).enqueue(w.req.TTL, w.lease, w.ticket, channel), func(reply drivers.Reply, err error) {
		var p place
		if err == nil {
			p, err = decodePlace(reply)
		}
		if !isDoubtful(err) {
			w.astray.Add(-1) // it may come here before enqueue has counted it
		}
		w.late(p)
	})
	if isDoubtful(err) { // perhaps by the word of something on the way, which has sent the request on
		w.astray.Add(1)
	}
	if err == nil && !p.granted && w.ticket == 0 {
		w.ticket = p.ticket
	}
	return p, err
}

// claim comes for a lock that was granted by somebody else.
func (w *waiter) claim() (place, error) {
	p, err := w.do(w.f.attempt(&w.req).claim(w.req.TTL), func(reply drivers.Reply, err error) {
		if p, unread := decodePlace(reply); err == nil && unread == nil {
			w.late(p)
		}
	})
	if err == nil && !p.granted {
		if w.missed++; w.missed == maxMissed {
			w.missed, w.ticket = 0, 0
		}
	}
	return p, err
}

// granted makes a grant of a place that is one. A lock granted by somebody else, or by an earlier delivery of the same
// request, lives less long than the TTL from now: it is claimed.
func (w *waiter) granted(p place) (locker.Grant, error) {
	if p.left < w.req.TTL {
		w.placed = true
		var err error
		if p, err = w.claim(); err != nil {
			return locker.Grant{}, w.give(err)
		}
		if !p.granted { // its window was over
			return locker.Grant{}, w.give(errTooLate)
		}
	}
	return w.grant(p)
}

func (w *waiter) grant(p place) (locker.Grant, error) {
	if w.f.closed() { // too late to be released by the caller
		w.placed = true
		return locker.Grant{}, w.give(locker.ErrClosed)
	}
	w.ctx, w.req.Waiting, w.req.Failing = nil, nil, nil // not to be kept for as long as the lock is
	return locker.Grant{Fence: p.counter, Token: w.req.Token, Sent: w.start, Private: w}, nil
}

var errTooLate = errors.New("the lock was granted, and taken by somebody else before the answer came")

// wait waits for the lock from a place in the queue.
func (w *waiter) wait(p place) (locker.Grant, error) {
	w.placed = true
	t := time.NewTimer(w.pause(p))
	defer t.Stop()
	for {
		slept := time.Now()
		reason := locker.WakePoll
		select {
		case told := <-w.news:
			reason = locker.WakeHint
			if told {
				reason = locker.WakeHandover
			}
		case <-t.C:
		case <-w.req.Closing:
			return locker.Grant{}, w.give(locker.ErrClosed)
		case <-w.f.closing:
			return locker.Grant{}, w.give(locker.ErrClosed)
		case <-w.ctx.Done():
			return locker.Grant{}, w.give(w.seen(p))
		}
		if trace := locker.TraceFrom(w.ctx); trace != nil && trace.Woken != nil {
			trace.Woken(locker.Wake{Reason: reason, Slept: time.Since(slept)})
		}
		asked := time.Now()
		next, err := w.look(reason == locker.WakeHandover)
		switch {
		case err == nil && next.granted:
			return w.grant(next)
		case err == nil:
			p = next
			w.failing(nil, asked)
		case w.ctx.Err() != nil && time.Since(asked) < silence: // it was left before it could be answered, and says nothing
			return locker.Grant{}, w.give(w.seen(p))
		default:
			if isFault(err) {
				w.failing(w.f.fault(err), asked)
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
func (w *waiter) seen(p place) error {
	if w.fault != nil {
		return w.fault
	}
	return &locker.HeldError{Remaining: p.left}
}

// look asks how things stand, and claims the lock if it was granted.
func (w *waiter) look(told bool) (p place, err error) {
	if !told {
		p, err = w.resume()
		if err != nil || !p.granted || p.left >= w.req.TTL {
			return p, err
		}
	}
	p, err = w.claim()
	if err == nil && !p.granted { // an old message, or its window is over: back to its place
		return w.resume()
	}
	return p, err
}

// resume goes back to its place, as a new attempt if the old one was given up for it: an operator has taken the lock from it,
// before it came for that.
func (w *waiter) resume() (place, error) {
	p, err := w.enqueue()
	if !errors.Is(err, errGivenUp) {
		return p, err
	}
	w.ignore()
	if w.stragglers() {
		w.f.leave(&w.req, false) // that its tombstone lives for long enough
	}
	w.req.Token, w.missed = locker.NewToken(), 0
	w.listen()
	return w.enqueue()
}

// pause is how long to wait for news.
func (w *waiter) pause(p place) time.Duration {
	if !w.unanswered.IsZero() {
		// Soon, for it may have been granted the lock, and less and less so.
		d := min(max(time.Since(w.unanswered), untoldPoll), time.Second)
		return d/2 + rand.N(d/2)
	}
	if p.more {
		return 0
	}
	d := claimWindow*3/4 + rand.N(claimWindow/2)
	if w.news == nil || !w.f.inbox.live(w.f.inbox.name) {
		d = untoldPoll/2 + rand.N(untoldPoll/2)
	}
	if p.rank == 0 && p.left > 0 {
		d = min(d, p.left+time.Millisecond) // its holder may have died
	}
	return d
}

// give gives the attempt up, unless it is sure that the server knows nothing of it, and returns why.
func (w *waiter) give(err error) error {
	if w.placed || isDoubtful(err) {
		w.gone.Store(true)
		w.f.leave(&w.req, !w.stragglers())
	}
	return w.f.fault(err)
}

// leave releases in the background, like Undo, and gives up the place in the queue.
func (f FIFO) leave(req *locker.Request, landed bool) {
	f.cleaner.add(f.undoing(req, landed, notifyQueue))
}

// place is where a waiter stands.
type place struct {
	granted bool
	counter uint64        // granted: the token
	left    time.Duration // the remaining time of the lock, of whoever has it, MaxTTL: all of it; 0: not known
	rank    int           // how many are before it, or just 1; -1: it does not wait
	ticket  int64
	more    bool // ask again at once: the server has not finished looking for the next
}

// decodePlace reads the reply of enqueue.lua and claim.lua.
func decodePlace(reply drivers.Reply) (place, error) {
	if c, ok := reply.(int64); ok && c > 0 {
		return place{granted: true, counter: uint64(c), left: locker.MaxTTL}, nil
	}
	n, err := integers(nil, reply)
	switch {
	case err != nil:
		return place{}, err
	case len(n) == 3 && n[0] == 1 && n[1] > 0:
		return place{granted: true, counter: uint64(n[1]), left: span(n[2])}, nil
	case len(n) == 5 && n[0] == 0:
		return place{left: remaining(n[1]), rank: int(n[2]), ticket: n[4], more: n[3] == 0}, nil
	case len(n) == 1 && n[0] == 0:
		return place{}, nil
	case len(n) == 1 && n[0] == -1:
		return place{}, errGivenUp
	case len(n) == 1 && n[0] == -2:
		return place{}, locker.ErrForeignKey
	}
	return place{}, unexpected(reply)
}

// isFault reports whether err is something that may pass: the server did not answer, or refused for now.
func isFault(err error) bool {
	return !errors.Is(err, locker.ErrForeignKey) && !errors.Is(err, pipeline.ErrClosed) && !errors.Is(err, errGivenUp)
}

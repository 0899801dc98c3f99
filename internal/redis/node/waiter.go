package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

const (
	// untoldPoll is the longest pause between two requests of a waiter that cannot be notified, because its driver has
	// no subscriptions or its connection is still being made.
	untoldPoll = 100 * time.Millisecond
	// foreignPoll is the longest pause of a waiter that polls because another library has the lock. The waiters of such
	// libraries poll about as often.
	foreignPoll = 200 * time.Millisecond
	// behindPoll is the shortest pause between two requests of a waiter behind the first one, however short the TTL is.
	behindPoll = 500 * time.Millisecond
	// stagger is the time between the requests of two waiters, one behind the other, when the TTL of the lock ends. The
	// pause grows with the place in the queue, up to maxStagger places.
	stagger, maxStagger = 5 * time.Millisecond, 10
)

// waiter is one call that wants a lock. When it has acquired the lock, it is the Private of the Grant.
type waiter struct {
	n     *Node
	inbox *inbox
	ctx   context.Context
	req   backend.Request
	wait  backend.Wait // nil: it does not wait
	// positionTTL is how long the server keeps its position in the queue without a request; 0: it does not wait.
	positionTTL time.Duration

	// news has room for one; nil before listen. It receives true for a notification, and false when notifications have
	// begun to arrive.
	news   chan bool
	placed bool      // the server has it in its queue, or may have
	ticket int64     // its position in the queue, in case the server forgets it
	missed int       // how often it was granted the lock and claimed it too late
	start  time.Time // when the last request was sent

	gone atomic.Bool // the waiter has given up, and its release is sent to the server
	// astray counts the requests for the lock, or for a position in the queue, that have not been answered. Claims are
	// not counted, because they take nothing.
	astray atomic.Int32
}

// stragglers reports whether a request may still be executed. If that happens after the release, the request takes the
// lock, or a position in the queue, for a waiter that is gone. The release then has to leave a tombstone.
func (w *waiter) stragglers() bool { return w.astray.Load() != 0 }

// maxMissed is how often a waiter that has claimed the lock too late returns to its position. After that, it joins at
// the end of the queue, so that it does not delay the waiters behind it again.
const maxMissed = 3

func (w *waiter) listen() {
	if w.news == nil {
		w.news = make(chan bool, 1)
	}
	w.inbox.expect(w.req.Token, w.hear)
}

func (w *waiter) hear(told bool) { ring(w.news, told) }

// ring sends to news without blocking. A true replaces an older value that was not received yet.
func ring(news chan bool, told bool) {
	if told {
		select {
		case <-news:
		default:
		}
	}
	select {
	case news <- told:
	default:
	}
}

func (w *waiter) ignore() { w.inbox.ignore(w.req.Token) }

// late is told the outcome of a command that was not waited for. If the waiter has given up, it has sent a release. The
// waiter may have been granted the lock nevertheless, because the command was executed first, or after the tombstone
// had expired. Then late releases the lock. If the waiter has not given up, it learns of the grant by its next request.
func (w *waiter) late(p script.Position) {
	if w.gone.Load() && p.Status == script.Granted {
		w.n.leave(&w.req, true)
	}
}

// enqueue takes the lock, or takes or keeps a position in the queue.
func (w *waiter) enqueue() (script.Position, error) {
	// The reply is newer than a notification that has come before it. A notification of a grant that the waiter has
	// seen and missed would look like another missed grant.
	select {
	case <-w.news:
	default:
	}
	channel := ""
	if w.news != nil && w.inbox.live() {
		channel = w.inbox.channel
	}
	a := w.attempt()
	cmd := a.Enqueue(w.req.TTL, w.positionTTL, w.ticket, channel)
	w.start = time.Now()
	p, err := w.decode(w.n.grant(w.ctx, cmd, w.req.TTL, w.n.moving(w.req.TTL), func(reply drivers.Reply, err error) {
		p, err := w.decode(reply, err)
		if !isDoubtful(err) {
			w.astray.Add(-1) // this may run before enqueue has counted
		}
		w.late(p)
	}))
	// Something between the client and the server may have answered, and passed the request on.
	if isDoubtful(err) && !isShortfall(err) {
		w.astray.Add(1)
	}
	if err == nil && p.Status != script.Granted && w.ticket == 0 {
		w.ticket = p.Ticket
	}
	if p.Whole {
		p.Fences = a.Fences
	}
	if p.More && p.Status != script.Waiting {
		w.n.handOn(w.req)
	}
	return p, err
}

// attempt returns the attempt of a command that draws tokens.
func (w *waiter) attempt() script.Attempt {
	if w.wait != nil {
		w.req.Fences = w.wait.Fences()
	}
	return w.n.attempt(&w.req)
}

// claim takes over a lock that was granted by somebody else's release.
func (w *waiter) claim() (script.Position, error) {
	a := w.attempt()
	moving := w.n.moving(w.req.TTL)
	if a.Fences > 1 {
		moving = 0
	}
	p, err := w.claimAs(a, moving)
	// While a slot of a Redis Cluster moves, the lock and the counter may be in two places. The lock alone is in one.
	if a.Fences > 1 && w.n.isMovingError(err) {
		a.Fences = 1
		p, err = w.claimAs(a, w.n.moving(w.req.TTL))
	}
	switch {
	case err != nil:
	case p.Status == script.Granted:
		p.Whole = true // from now
		p.Fences = min(p.Fences, a.Fences)
	default:
		if w.missed++; w.missed == maxMissed {
			w.missed, w.ticket = 0, 0
		}
	}
	return p, err
}

// claimAs sends the claim of a, again for as long as moving while a slot moves.
func (w *waiter) claimAs(a script.Attempt, moving time.Duration) (script.Position, error) {
	w.start = time.Now()
	return w.decode(w.n.grant(w.ctx, a.Claim(w.req.TTL), w.req.TTL, moving, func(reply drivers.Reply, err error) {
		if p, err := w.decode(reply, err); err == nil {
			w.late(p)
		}
	}))
}

// granted returns the Grant of a position that has the lock. If the lock was granted by somebody else, or by an earlier
// delivery of the same request, it ends earlier than the TTL from now. The waiter then claims it. It does so even if
// the whole TTL is left, because replicas have to confirm what the claim writes.
func (w *waiter) granted(p script.Position) (backend.Grant, error) {
	if !p.Whole {
		w.placed = true
		var err error
		if p, err = w.claim(); err != nil {
			return backend.Grant{}, w.give(err)
		}
		if p.Status != script.Granted { // the time to claim it was over
			return backend.Grant{}, w.give(errTooLate)
		}
	}
	// After Close, the caller cannot release the lock any more.
	if w.n.closed() {
		w.placed = true
		return backend.Grant{}, w.give(locker.ErrClosed)
	}
	// The grant keeps the waiter for as long as the lock is held. It needs neither.
	w.ctx, w.wait = nil, nil
	return backend.Grant{
		Fence: p.Counter, Fences: p.Fences, Permits: p.Permits, Token: w.req.Token, Sent: w.start, Private: w,
	}, nil
}

var errPanic = errors.New("a hook has panicked")

var errTooLate = errors.New("the lock was granted, and taken by somebody else before the answer came")

// queue takes the lock, or waits for it in the queue.
func (w *waiter) queue() (backend.Grant, error) {
	if w.inbox.live() { // the subscription is open, because others have waited lately
		w.listen()
		defer w.ignore()
	}
	asked := time.Now()
	p, err := w.enqueue()
	var pause time.Duration
	switch {
	case w.n.isMovingError(err) && w.ctx.Err() == nil: // waits as for a lock that is held
		w.wait.Held(nil)
		if pause, err = w.wait.Failed(w.ctx, asked, w.n.fault(err)); err != nil {
			return backend.Grant{}, w.give(err)
		}
	case err != nil:
		return backend.Grant{}, w.give(err)
	case p.Status == script.Granted:
		return w.granted(p)
	default:
		w.wait.Held(heldError(p))
		pause = w.pause(p)
	}
	if w.news == nil {
		w.listen()
		defer w.ignore()
		if w.inbox.live() {
			w.hear(false)
		}
	}
	return w.run(pause)
}

// run waits for the lock in the queue. pause is how long to wait for a notification before the next request.
func (w *waiter) run(pause time.Duration) (backend.Grant, error) {
	w.placed = true
	for {
		told, err := w.wait.Sleep(w.ctx, pause, w.news)
		if err != nil {
			return backend.Grant{}, w.give(err)
		}
		asked := time.Now()
		p, err := w.look(told)
		switch {
		case err == nil && p.Status == script.Granted:
			return w.granted(p)
		case err == nil:
			w.wait.Held(heldError(p))
			pause = w.pause(p)
		case !isFault(err):
			return backend.Grant{}, w.give(err)
		default:
			if pause, err = w.wait.Failed(w.ctx, asked, w.n.fault(err)); err != nil {
				return backend.Grant{}, w.give(err)
			}
		}
	}
}

// look asks the server for the position, and claims the lock if it was granted.
func (w *waiter) look(told bool) (p script.Position, err error) {
	if !told {
		p, err = w.resume()
		if err != nil || p.Status != script.Granted || p.Whole {
			return p, err
		}
	}
	p, err = w.claim()
	// The notification was old, or the time to claim is over. The waiter returns to its position.
	if err == nil && p.Status != script.Granted {
		return w.resume()
	}
	return p, err
}

// resume returns to the position in the queue. If an operator has taken the lock from the waiter before it was claimed,
// resume begins a new attempt.
func (w *waiter) resume() (script.Position, error) {
	p, err := w.enqueue()
	if !errors.Is(err, ErrGivenUp) {
		return p, err
	}
	w.ignore()
	if w.stragglers() {
		w.n.leave(&w.req, false) // so that its tombstone lives for long enough
	}
	w.req.Token, w.missed = backend.NewToken(), 0
	w.listen()
	return w.enqueue()
}

// give gives up the attempt and returns the reason. It sends a release unless the server is certain to know nothing of
// the attempt.
func (w *waiter) give(err error) error {
	if w.placed || isDoubtful(err) {
		w.gone.Store(true)
		w.n.leave(&w.req, !w.stragglers())
	}
	return w.n.fault(err)
}

var errOther = errors.New("the reply is about something else")

// decode is decodePosition for w, to which nothing is granted but all that it has asked for.
func (w *waiter) decode(reply drivers.Reply, err error) (script.Position, error) {
	p, err := decodePosition(reply, err)
	weight, kind := 0, script.Kind("")
	if g := w.req.Group; g != nil {
		weight, kind = g.Weight, kinds[g.Kind]
	}
	if err == nil && p.Status == script.Granted && (len(p.Permits) != weight || p.Kind != kind) {
		return script.Position{}, errOther
	}
	return p, err
}

// decodePosition reads the outcome of enqueue or claim. After an error in the reply, the waiter is in no queue.
func decodePosition(reply drivers.Reply, err error) (script.Position, error) {
	if err != nil {
		return script.Position{}, err
	}
	p, err := script.ReadPosition(reply)
	if err == nil && p.Status != script.Waiting {
		err = errorOf(p.Status, locker.HeldError{Remaining: p.Left}, 0)
	}
	return p, err
}

// heldError says who has the lock that a waiter at p waits for. Who waits for something of a group in front of it has
// nothing yet.
func heldError(p script.Position) *locker.HeldError {
	if p.Behind {
		return &locker.HeldError{Label: p.Label}
	}
	return &locker.HeldError{Remaining: p.Left, Label: p.Label}
}

// pause is how long to wait for a notification before the request that follows the answer p.
func (w *waiter) pause(p script.Position) time.Duration {
	if p.More {
		return time.Millisecond // not none: something in the place of the server may say so for ever
	}
	d := script.ClaimWindow*3/4 + rand.N(script.ClaimWindow/2)
	switch {
	case w.news == nil || !w.inbox.live():
		d = spread(untoldPoll)
	case p.Poll:
		d = spread(foreignPoll)
	}
	if p.Left > 0 { // the holder may have died
		d = min(d, w.untilFree(p))
	}
	return d
}

// spread returns a random time from d/2 to d, so that waiters do not all ask at the same time.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// untilFree is how long it is until the lock is free if its holder has died. Waiters behind the first one may have come
// to the front when that matters, without having been told, or the ones before them may have died as well. So they look
// at the end of the TTL, too, after those before them.
func (w *waiter) untilFree(p script.Position) time.Duration {
	if p.Rank == 0 || p.Poll {
		return p.Left + time.Millisecond
	}
	return max(p.Left, behindPoll) + time.Duration(min(p.Rank, maxStagger))*stagger
}

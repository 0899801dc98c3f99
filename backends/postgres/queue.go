package postgres

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

const (
	// pollInterval is how often a waiter looks whether it has its turn, and shows that it is there. Usually it is
	// notified. The server passes over a waiter that it has not seen for three seconds.
	pollInterval = time.Second

	// silence is how long a request may be unanswered before it counts as failed.
	silence = time.Second

	minPause = 5 * time.Millisecond
)

// waiter is one call of Queue.
type waiter struct {
	b      *Backend
	ctx    context.Context
	req    locker.Request
	name   []byte
	ticket string // names the place in the queue
	news   chan struct{}

	token  string // of the next attempt
	asked  bool   // there may be a place in the queue
	late   bool   // a request with token may still arrive
	held   *locker.HeldError
	fault  error // of the last contact; nil if the server answered
	faulty time.Time
}

// Queue implements [locker.Queuer]. Waiters are served in the order of their arrival.
func (b *Backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.enter(); err != nil {
		return locker.Grant{}, err
	}
	defer b.background.Done()
	w := &waiter{
		b: b, ctx: ctx, req: req, name: b.name(req.Key), ticket: locker.NewToken(), token: req.Token,
		news: make(chan struct{}, 1),
	}
	w.hear()
	defer w.deaf()
	g, err := w.wait()
	if err != nil && w.asked {
		b.undo(w.name, w.token, w.ticket, req.TTL, w.late)
	}
	return g, err
}

// wait makes attempts until one is granted.
func (w *waiter) wait() (locker.Grant, error) {
	for {
		sent := time.Now()
		a, err := request(w.ctx, w.b, readAttempt, w.b.sql.acquire,
			w.name, w.token, w.req.Label, microseconds(w.req.TTL), w.ticket, w.b.channel)
		w.late = unknown(err)
		w.asked = w.asked || w.late || err == nil
		pause := time.Duration(0)
		switch {
		case err == nil && a.fence != 0:
			return locker.Grant{Fence: a.fence, Sent: sent, Token: w.token}, nil
		case err == nil:
			w.refused(a)
			pause = w.pollDelay()
		case w.ctx.Err() != nil:
			if time.Since(sent) >= silence {
				w.fault = unavailable(err)
			}
			return locker.Grant{}, w.seen(err)
		default:
			w.failed(sent, unavailable(err))
			since := time.Since(w.faulty)
			if w.held == nil || since >= w.req.Patience {
				return locker.Grant{}, w.fault
			}
			pause = min(max(since, 2*minRetry), maxRetry)
			pause = pause/2 + rand.N(pause/2)
		}
		if err := w.sleep(pause); err != nil {
			return locker.Grant{}, err
		}
		if w.late { // the next attempt needs a token that nobody undoes
			w.b.undo(w.name, w.token, "", w.req.TTL, true)
			w.token, w.late = locker.NewToken(), false
		}
	}
}

// refused notes an answer that another owner has the lock, or that other waiters come first.
func (w *waiter) refused(a attempt) {
	first := w.held == nil
	w.held = &a.held
	if first {
		w.b.listens()
		if w.req.Waiting != nil {
			w.req.Waiting(w.held)
		}
	}
	if w.fault != nil {
		w.fault = nil
		if w.req.Failing != nil {
			w.req.Failing(time.Time{}, nil)
		}
	}
}

// failed notes that a request has failed that was sent at sent.
func (w *waiter) failed(sent time.Time, err error) {
	if w.fault == nil {
		w.faulty = sent
	}
	w.fault = err
	if w.held != nil && w.req.Failing != nil {
		w.req.Failing(w.faulty, err)
	}
}

// seen returns the error for a call whose context has ended. err is that of a request that was not answered.
func (w *waiter) seen(err error) error {
	switch {
	case w.fault != nil:
		return w.fault
	case w.held != nil:
		return w.held
	}
	return unavailable(err)
}

// pollDelay returns the pause after a refusal: until the lock expires, and not longer than the interval.
func (w *waiter) pollDelay() time.Duration {
	d := pollInterval + rand.N(pollInterval/8)
	if r := w.held.Remaining; r > 0 {
		d = min(d, r+minPause)
	}
	return max(d, minPause)
}

// sleep returns when the waiter should ask again. If the call should end instead, it returns an error.
func (w *waiter) sleep(d time.Duration) error {
	start, reason := time.Now(), lockertrace.WakePoll
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.news:
		reason = lockertrace.WakeHint
	case <-w.ctx.Done():
		return w.seen(w.ctx.Err())
	case <-w.req.Closing:
		return locker.ErrClosed
	case <-w.b.open.Done():
		return locker.ErrClosed
	}
	if trace := lockertrace.From(w.ctx); trace != nil && trace.Woken != nil {
		trace.Woken(lockertrace.Wake{Reason: reason, Slept: time.Since(start)})
	}
	return nil
}

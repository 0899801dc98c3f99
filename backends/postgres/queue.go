package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

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

	// checkInterval is how long the connection for notifications may be silent before it is tried.
	checkInterval = 15 * time.Second
)

// waiter is one call of Queue.
type waiter struct {
	b      *Backend
	ctx    context.Context
	req    locker.Request
	name   []byte
	ticket string        // names the place in the queue
	news   chan struct{} // has a value if the call should ask

	token string // of the next attempt
	asked bool   // there may be a place in the queue
	last  error  // of the last request with token

	held   *locker.HeldError // what is known of the lock; nil before the first answer
	fault  error             // of the last request; nil if the server answered
	faulty time.Time         // when the first request was sent that has failed since the last answer
}

// Queue implements [locker.Queuer]. Waiters are served in the order of their arrival.
func (b *Backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.enter(); err != nil {
		return locker.Grant{}, err
	}
	defer b.background.Done()
	w := &waiter{
		b: b, ctx: ctx, req: req, name: b.name(req.Key), ticket: locker.NewToken(), news: make(chan struct{}, 1),
		token: req.Token,
	}
	w.hear()
	defer w.deaf()
	g, err := w.wait()
	if err != nil && w.asked {
		b.undo(w.name, w.token, w.ticket, req.TTL, w.last)
	}
	return g, err
}

// wait makes attempts until one is granted.
func (w *waiter) wait() (locker.Grant, error) {
	for {
		sent := time.Now()
		a, err := request(w.ctx, w.b, readAttempt, w.b.sql.acquire,
			w.name, w.token, w.req.Label, microseconds(w.req.TTL), w.ticket, w.b.channel)
		w.last = err
		w.asked = w.asked || unknown(err) || err == nil
		var pause time.Duration
		switch {
		case err == nil && a.fence != 0:
			return locker.Grant{Fence: a.fence, Sent: sent, Token: w.token}, nil
		case err == nil:
			if w.held == nil {
				w.b.listens()
			}
			w.refused(&a.held)
			pause = w.pollDelay()
		case w.ctx.Err() != nil:
			if time.Since(sent) >= silence {
				w.fault = unavailable(err)
			}
			return locker.Grant{}, w.seen(err)
		default:
			var over bool
			if pause, over = w.failed(sent, unavailable(err)); over {
				return locker.Grant{}, w.fault
			}
		}
		if err := w.sleep(pause); err != nil {
			return locker.Grant{}, err
		}
		if unknown(w.last) { // the next attempt needs a token that nobody undoes
			w.b.undo(w.name, w.token, "", w.req.TTL, w.last)
			w.token, w.last = locker.NewToken(), nil
		}
	}
}

// refused notes an answer that another owner has the lock, or that other waiters come first.
func (w *waiter) refused(held *locker.HeldError) {
	first := w.held == nil
	w.held = held
	if first && w.req.Waiting != nil {
		w.req.Waiting(held)
	}
	if w.fault != nil {
		w.fault = nil
		if w.req.Failing != nil {
			w.req.Failing(time.Time{}, nil)
		}
	}
}

// failed notes that a request has failed that was sent at sent. It returns how long to pause before the next one, or
// that the call is over.
func (w *waiter) failed(sent time.Time, err error) (pause time.Duration, over bool) {
	if w.fault == nil {
		w.faulty = sent
	}
	w.fault = err
	if w.held != nil && w.req.Failing != nil {
		w.req.Failing(w.faulty, err)
	}
	since := time.Since(w.faulty)
	if w.held == nil || since >= w.req.Patience {
		return 0, true
	}
	pause = min(max(since, 2*minRetry), maxRetry)
	return pause/2 + rand.N(pause/2), false
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
		reason = lockertrace.WakeNotify
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

// hear lets the waiter be notified. It comes before the first request, because the lock may be released while the
// answer to that is on its way.
func (w *waiter) hear() {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.b.waiting[w.ticket] = w.news
}

// deaf ends what hear began.
func (w *waiter) deaf() {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	delete(w.b.waiting, w.ticket)
}

// listens begins to listen, if that is not done yet.
func (b *Backend) listens() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.listening && !b.closed {
		b.listening = true
		b.background.Go(b.listen)
	}
}

// wake wakes the waiter with a ticket, or all waiters if it is empty, because notifications may have been lost.
func (b *Backend) wake(ticket string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for t, news := range b.waiting {
		if ticket == "" || ticket == t {
			select {
			case news <- struct{}{}:
			default: // it has not looked since the last one
			}
		}
	}
}

// listen receives the notifications of all waiters on one connection, until Close. Without it, waiters poll once a
// second: that is so while the server is away, and behind a proxy that shares connections, as PgBouncer does.
func (b *Backend) listen() {
	for b.open.Err() == nil {
		_ = b.receive() // waiters learn of a server that is away by their own requests
		t := time.NewTimer(pollInterval)
		select {
		case <-t.C:
		case <-b.open.Done():
		}
		t.Stop()
	}
}

// receive receives notifications until the connection fails or Close begins.
func (b *Backend) receive() error {
	connecting, cancel := context.WithTimeout(b.open, b.timeout)
	defer cancel()
	pooled, err := b.pool.Acquire(connecting)
	if err != nil {
		return err
	}
	conn := pooled.Hijack()
	defer func() {
		closing, cancel := context.WithTimeout(b.ctx, closeGrace)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(connecting, "LISTEN "+pgx.Identifier{b.channel}.Sanitize()); err != nil {
		return err
	}
	b.wake("")
	for {
		waiting, cancel := context.WithTimeout(b.open, checkInterval)
		n, err := conn.WaitForNotification(waiting)
		over := waiting.Err()
		cancel()
		switch {
		case err == nil:
			b.wake(n.Payload)
		case errors.Is(over, context.DeadlineExceeded) && !conn.IsClosed():
			if err := b.check(conn); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// check returns an error if the server does not answer, or takes no writes: then nobody releases locks there, and no
// notification comes.
func (b *Backend) check(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(b.open, b.timeout)
	defer cancel()
	return writable(ctx, conn.PgConn())
}

package postgreslock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

const (
	// pollInterval is how often a waiter looks whether it has its turn, and shows that it is there. Usually it is
	// notified. The server passes over a waiter that it has not seen for three seconds.
	pollInterval = time.Second

	minPause = 5 * time.Millisecond

	// checkInterval is how long the connection for notifications may be silent before it is tried.
	checkInterval = 15 * time.Second
)

// waiter is one call of Queue.
type waiter struct {
	b      *store
	ctx    context.Context
	req    backend.Request // with the token of the next attempt
	wait   backend.Wait
	name   []byte
	ticket string    // names the place in the queue
	news   chan bool // has a value, false, if the call should ask

	asked bool  // there may be a place in the queue
	last  error // of the last request with the token
}

// Queue implements [backend.Queuer]. Waiters are served in the order of their arrival.
func (b *store) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	if err := b.enterAttempt(); err != nil {
		return backend.Grant{}, err
	}
	defer b.calls.Done()
	wait.EndWith(b.open.Done())
	w := &waiter{
		b: b, ctx: ctx, req: req, wait: wait, name: b.name(req.Key), ticket: backend.NewToken(), news: make(chan bool, 1),
	}
	w.hear()
	defer w.deaf()
	granted := false
	defer func() { // also if a hook has panicked
		if !granted && w.asked {
			b.undo(w.name, w.req.Token, w.ticket, req.TTL, w.last)
		}
	}()
	g, err := w.run()
	granted = err == nil
	return g, err
}

// run makes attempts until one is granted.
func (w *waiter) run() (backend.Grant, error) {
	for {
		sent := time.Now()
		a, err := w.b.ask(w.ctx, &w.req, w.name, w.ticket)
		w.last = err
		w.asked = w.asked || unknown(err) || err == nil
		var pause time.Duration
		switch {
		case err == nil && a.fence != 0:
			g := a.granted(&w.req, w.wait.Fences())
			g.Sent, g.Token = sent, w.req.Token
			return g, nil
		case a.gone:
			return backend.Grant{}, locker.ErrNotHeld
		case err == nil:
			w.b.listens()
			w.wait.Held(&a.held)
			pause = pollDelay(a.held.Remaining)
		default:
			if pause, err = w.wait.Failed(w.ctx, sent, unavailable(err)); err != nil {
				return backend.Grant{}, err
			}
		}
		if _, err := w.wait.Sleep(w.ctx, pause, w.news); err != nil {
			return backend.Grant{}, err
		}
		if unknown(w.last) { // the next attempt needs a token that nobody undoes
			w.b.undo(w.name, w.req.Token, "", w.req.TTL, w.last)
			w.req.Token, w.last = backend.NewToken(), nil
		}
	}
}

// pollDelay returns the pause after a refusal: until the lock expires, and not longer than the interval.
func pollDelay(remaining time.Duration) time.Duration {
	d := pollInterval + rand.N(pollInterval/8)
	if remaining > 0 {
		d = min(d, remaining+minPause)
	}
	return max(d, minPause)
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
func (b *store) listens() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.listening && !b.closed {
		b.listening = true
		b.tasks.Go(b.listen)
	}
}

// wake wakes the waiter with a ticket, or all waiters if it is empty, because notifications may have been lost.
func (b *store) wake(ticket string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for t, news := range b.waiting {
		if ticket == "" || ticket == t {
			select {
			case news <- false:
			default: // it has not looked since the last one
			}
		}
	}
}

// listen receives the notifications of all waiters on one connection, until Close. Without it, waiters poll once a
// second: that is so while the server is away, and behind a proxy that shares connections, as PgBouncer does.
func (b *store) listen() {
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
func (b *store) receive() error {
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
func (b *store) check(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(b.open, b.timeout)
	defer cancel()
	return writable(ctx, conn.PgConn())
}

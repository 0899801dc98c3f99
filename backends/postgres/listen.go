package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// checkInterval is how long the connection for notifications may be silent before it is tried.
const checkInterval = 15 * time.Second

// hear lets the waiter be notified. It comes before the first request, because the lock may be released while the
// answer to that is on its way.
func (w *waiter) hear() {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.b.waiting[w.ticket] = w.news
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

// deaf ends what hear began.
func (w *waiter) deaf() {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	delete(w.b.waiting, w.ticket)
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

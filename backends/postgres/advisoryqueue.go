package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// waitLimit is how long one statement waits for a lock. A statement that runs keeps vacuum from removing rows of the
// whole database. After it the waiter is last among those that wait.
const waitLimit = 30 * time.Second

// advisoryWaiter is one call of Queue.
type advisoryWaiter struct {
	contact
	b *AdvisoryBackend
	s *session // nil if there is none
}

// Queue implements [locker.Queuer]. Waiters wait in the server, in the order in which their statements arrive.
func (b *AdvisoryBackend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.enter(); err != nil {
		return locker.Grant{}, err
	}
	defer b.background.Done()
	sending, cancel := context.WithCancel(ctx)
	defer cancel()
	b.background.Go(func() {
		defer cancel()
		select {
		case <-sending.Done():
		case <-req.Closing:
		case <-b.open.Done():
		}
	})
	w := &advisoryWaiter{contact: contact{ctx: ctx, open: b.open, req: req}, b: b}
	defer w.drop()
	return w.wait(sending)
}

// wait makes attempts until one is granted. ctx also ends when the Client is closed.
func (w *advisoryWaiter) wait(ctx context.Context) (locker.Grant, error) {
	for has := false; ; {
		sent := time.Now()
		a, err := w.acquire(ctx, has)
		pause, blocked := time.Duration(0), false
		has = false
		switch {
		case err == nil && a.fence != 0:
			s := w.s
			w.s = nil
			return s.hold(a.fence, sent)
		case err == nil && a.kept:
			w.refused(&a.held)
			w.s.conn.Release()
			w.s, pause = nil, w.pollDelay()
		case err == nil:
			w.refused(&a.held)
			blocked = true
			has, pause, err = w.block(ctx)
			sent = time.Now()
		}
		switch {
		case err == nil:
		case w.ctx.Err() != nil:
			if !blocked && time.Since(sent) >= silence {
				w.fault = unavailable(err)
			}
			return locker.Grant{}, w.seen(err)
		case ctx.Err() != nil:
			return locker.Grant{}, locker.ErrClosed
		default:
			w.drop()
			var over bool
			if pause, over = w.failed(sent, unavailable(err)); over {
				return locker.Grant{}, w.fault
			}
		}
		if pause > 0 {
			w.drop() // the server might end the session meanwhile
			if err := w.sleep(pause); err != nil {
				return locker.Grant{}, err
			}
		}
	}
}

// acquire makes an attempt. has says that block has got the lock.
func (w *advisoryWaiter) acquire(ctx context.Context, has bool) (a advisoryAttempt, err error) {
	if w.s == nil {
		if w.s, err = w.b.connect(ctx, w.req); err != nil {
			return a, err
		}
	}
	return w.s.acquire(ctx, true, has)
}

// block waits in the server. It returns whether the session has the lock, and else how long to pause. The TTL of the
// lock has begun then, at a time that is not known, so the next request sets it again.
func (w *advisoryWaiter) block(ctx context.Context) (has bool, pause time.Duration, err error) {
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, waitLimit+w.b.timeout)
	defer cancel()
	conn := w.s.conn.Conn()
	err = conn.QueryRow(bounded, w.b.sql.advisoryWait, w.s.name, milliseconds(waitLimit)).Scan(nil)
	var answer *pgconn.PgError
	switch {
	case err == nil:
		w.woken(lockertrace.WakeNotify, start)
		return true, 0, nil
	case errors.As(err, &answer) && !conn.IsClosed() && (answer.Code == "55P03" || answer.Code == "57014"):
		// The limit is over, or that of the user (statement_timeout), or an operator has cancelled the statement. The
		// session may have got the lock nevertheless, just before. So it must not be used again, and a pause ends it.
		return false, max(minPause, pollInterval-time.Since(start)), nil
	}
	return false, 0, err
}

// drop ends the session, if there is one, and its place among those that wait.
func (w *advisoryWaiter) drop() {
	if w.s != nil {
		w.s.discard()
		w.s = nil
	}
}

package postgres

import (
	"context"
	"time"

	"github.com/golocker/locker"
)

// waiter is one call of Queue.
type waiter struct {
	contact
	b      *Backend
	name   []byte
	ticket string // names the place in the queue

	token string // of the next attempt
	asked bool   // there may be a place in the queue
	last  error  // of the last request with token
}

// Queue implements [locker.Queuer]. Waiters are served in the order of their arrival.
func (b *Backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := b.enter(); err != nil {
		return locker.Grant{}, err
	}
	defer b.background.Done()
	w := &waiter{
		contact: contact{ctx: ctx, open: b.open, req: req, news: make(chan struct{}, 1)},
		b:       b, name: b.name(req.Key), ticket: locker.NewToken(), token: req.Token,
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
		a, err := request(w.ctx, w.b.database, readAttempt, w.b.sql.acquire,
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

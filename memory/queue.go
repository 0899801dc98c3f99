package memory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// waiter is one call of Queue that waits.
type waiter struct {
	req   backend.Request
	wait  backend.Wait
	grant backend.Grant
	err   error // why there is no grant any more
	// news has room for one. It receives true when the lock is granted, and false when it may expire earlier than before.
	news chan bool
	// until is when the lock expires, as far as the waiter knows. It sleeps until then.
	until time.Time
}

// tell sends to news. A true replaces a false that was not received yet.
func (w *waiter) tell(granted bool) {
	if granted {
		select {
		case <-w.news:
		default:
		}
	}
	select {
	case w.news <- granted:
	default:
	}
}

// Queue implements [backend.Queuer]. Waiters are served in the order of their arrival.
func (b *Backend) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	if req.Group != nil {
		return b.queueEntry(ctx, req, wait)
	}
	b.mu.Lock()
	l := b.lock(req.Key)
	if !l.taken() {
		b.grant(l, req, wait.Fences())
		g := l.granted()
		b.unlock()
		return g, nil
	}
	w := &waiter{req: req, wait: wait, news: make(chan bool, 1), until: l.expires}
	until := w.until
	l.waiting = append(l.waiting, w)
	b.told = append(b.told, b.holders[l.token]...)
	held := l.held()
	b.unlock()
	return b.waitFor(ctx, w, until, held)
}

// waitFor returns when w is granted what it waits for, which is held until then.
func (b *Backend) waitFor(
	ctx context.Context, w *waiter, until time.Time, held *locker.HeldError,
) (backend.Grant, error) {
	returned := false
	defer func() {
		if !returned { // a hook has panicked
			_ = b.leave(w)
		}
	}()
	w.wait.Held(held)
	g, err := b.wait(ctx, w, until)
	returned = true
	return g, err
}

// wait returns when the lock is granted. Usually a release grants it. Otherwise the lock expires.
func (b *Backend) wait(ctx context.Context, w *waiter, until time.Time) (backend.Grant, error) {
	for {
		granted, err := w.wait.Sleep(ctx, time.Until(until), w.news)
		switch {
		case granted:
			return w.grant, w.err
		case err != nil:
			held := b.leave(w)
			if errors.Is(err, locker.ErrHeld) {
				err = held // as it is now
			}
			return backend.Grant{}, err
		}
		until = b.expired(w)
	}
}

// expired hands the lock that w waits for to the next waiter if it has expired. It returns when the lock expires.
func (b *Backend) expired(w *waiter) time.Time {
	b.mu.Lock()
	defer b.unlock()
	if w.req.Group != nil {
		w.until = b.group(w.req.Key).ends
		return w.until
	}
	w.until = b.lock(w.req.Key).expires
	return w.until
}

// leave removes w from the queue. If w was granted the lock meanwhile, the lock goes to the next waiter. leave
// describes the last holder.
func (b *Backend) leave(w *waiter) *locker.HeldError {
	b.mu.Lock()
	defer b.unlock()
	if w.req.Group != nil {
		return b.leaveEntry(w)
	}
	l, ok := b.locks[w.req.Key]
	if !ok {
		return &locker.HeldError{}
	}
	if i := slices.Index(l.waiting, w); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	if l.token == w.req.Token {
		l.token, l.label, l.expires = "", "", time.Time{}
		b.tell(w.req.Key)
	}
	held := l.held()
	b.next(w.req.Key, l)
	return held
}

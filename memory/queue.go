package memory

import (
	"context"
	"slices"
	"time"

	"github.com/golocker/locker"
)

// waiter is one call of Queue that waits.
type waiter struct {
	req     locker.Request
	granted chan locker.Grant // has room for the one grant
}

// Queue implements [locker.Queuer]: those who wait for a key get it in the order of their arrival.
func (b *Backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.mu.Lock()
	l := b.lock(req.Key)
	if !l.taken() {
		b.grant(l, req)
		g := locker.Grant{Fence: l.fence}
		b.mu.Unlock()
		return g, nil
	}
	w := &waiter{req: req, granted: make(chan locker.Grant, 1)}
	l.waiting = append(l.waiting, w)
	remaining := time.Until(l.expires)
	b.mu.Unlock()
	if req.Waiting != nil {
		req.Waiting(remaining)
	}
	return b.wait(ctx, w, remaining)
}

// look is how often a waiter looks at the lock by itself. A grant comes by its channel; but a holder may have released the
// lock to be kept for a while, which ends before the time that was left of its TTL.
const look = 500 * time.Millisecond

func (b *Backend) wait(ctx context.Context, w *waiter, remaining time.Duration) (locker.Grant, error) {
	start := time.Now()
	t := time.NewTimer(min(remaining, look))
	defer t.Stop()
	for {
		select {
		case g := <-w.granted:
			if trace := locker.TraceFrom(ctx); trace != nil && trace.Woken != nil {
				trace.Woken(locker.Wake{Reason: locker.WakeHandover, Slept: time.Since(start)})
			}
			return g, nil
		case <-t.C: // the holder's time may be over
			t.Reset(min(b.expired(w.req.Key), look))
		case <-w.req.Closing:
			b.leave(w)
			return locker.Grant{}, locker.ErrClosed
		case <-ctx.Done():
			return locker.Grant{}, &locker.HeldError{Remaining: b.leave(w)}
		}
	}
}

// expired hands the lock of key on if its time is over, and returns when to look again.
func (b *Backend) expired(key string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Until(b.lock(key).expires)
}

// leave takes w out of the queue, and hands on what it was granted meanwhile. It returns the holder's remaining time.
func (b *Backend) leave(w *waiter) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.locks[w.req.Key]
	if !ok {
		return 0
	}
	if i := slices.Index(l.waiting, w); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	if l.token == w.req.Token {
		l.token, l.expires = "", time.Time{}
	}
	remaining := max(0, time.Until(l.expires))
	b.next(w.req.Key, l)
	return remaining
}

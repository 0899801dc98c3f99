package memory

import (
	"context"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// waiter is one call of Queue that waits.
type waiter struct {
	req     locker.Request
	granted chan locker.Grant // buffered: receives at most one grant
}

// Queue implements [locker.Queuer]. Waiters are served in the order of their arrival.
func (b *Backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	b.mu.Lock()
	l := b.lock(req.Key)
	if !l.taken() {
		b.grant(l, req)
		g := locker.Grant{Fence: l.fence}
		b.unlock()
		return g, nil
	}
	w := &waiter{req: req, granted: make(chan locker.Grant, 1)}
	l.waiting = append(l.waiting, w)
	held := l.held()
	b.unlock()
	returned := false
	defer func() {
		if !returned { // a hook has panicked
			_ = b.leave(w)
		}
	}()
	if req.Waiting != nil {
		req.Waiting(held)
	}
	g, err := b.wait(ctx, w, held.Remaining)
	returned = true
	return g, err
}

// pollInterval is how often a waiter checks whether the lock has expired. Usually a waiter is granted the lock by the
// release. But a lock that was released with Keep expires by itself, and may do so before the end of the TTL that the
// waiter knows of.
const pollInterval = 500 * time.Millisecond

func (b *Backend) wait(ctx context.Context, w *waiter, remaining time.Duration) (locker.Grant, error) {
	start := time.Now()
	t := time.NewTimer(min(remaining, pollInterval))
	defer t.Stop()
	for {
		select {
		case g := <-w.granted:
			if trace := lockertrace.From(ctx); trace != nil && trace.Woken != nil {
				trace.Woken(lockertrace.Wake{Reason: lockertrace.WakeHandover, Slept: time.Since(start)})
			}
			return g, nil
		case <-t.C:
			t.Reset(min(b.expired(w.req.Key), pollInterval))
		case <-w.req.Closing:
			_ = b.leave(w)
			return locker.Grant{}, locker.ErrClosed
		case <-ctx.Done():
			return locker.Grant{}, b.leave(w)
		}
	}
}

// expired hands the lock of key to the next waiter if it has expired. It returns the remaining time of the lock.
func (b *Backend) expired(key string) time.Duration {
	b.mu.Lock()
	defer b.unlock()
	return time.Until(b.lock(key).expires)
}

// leave removes w from the queue. If w was granted the lock meanwhile, the lock goes to the next waiter. leave
// describes the last holder.
func (b *Backend) leave(w *waiter) *locker.HeldError {
	b.mu.Lock()
	defer b.unlock()
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

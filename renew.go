package locker

import (
	"context"
	"errors"
	"time"
)

// startRenewal arms the first renewal of a lease whose request was sent at start. Call with mu held.
//
// A renewal runs on a timer's goroutine that exists only while it is in flight: a third of the TTL after the last
// success, and every tenth while the store does not answer, until the lease has ended. There is never
// more than one in flight per lease.
func (l *lease) startRenewal(start time.Time) {
	if l.renews {
		l.renewal = time.AfterFunc(max(0, l.req.TTL/3-time.Since(start)), l.renew)
	}
}

func (l *lease) renew() {
	if !l.client.enter(&l.client.renewals) {
		return
	}
	defer l.client.renewals.Done()
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.req.TTL/3)
	defer cancel()
	l.renewing = cancel
	l.mu.Unlock()

	err := l.extend(ctx)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewing = nil
	if l.err != nil || errors.Is(err, ErrLost) {
		return
	}
	next := l.req.TTL / 3
	if err != nil {
		next = l.req.TTL / 10
	}
	l.renewal.Reset(next)
}

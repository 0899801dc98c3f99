package locker

import (
	"context"
	"time"

	"github.com/golocker/locker/internal/validity"
)

// ExtendTTL extends lease as [Lease.Extend] does, with another TTL: the lease ends d from now, and renewals keep to d
// from then on. d must be between [MinTTL] and [MaxTTL], and within the limit of a restart guard. With any other value
// the error matches [ErrInvalid], and the lease is as before.
//
// A smaller TTL shortens nothing that the lease already has: neither Until nor the lock in the store ends earlier than
// before. Later renewals use the smaller TTL. If the call fails for another reason, later renewals keep to the old TTL,
// and the lock may have been extended nevertheless.
//
// The middleware sees a call of Extend. A Lease that is not from a [Client] may know nothing of d.
func ExtendTTL(ctx context.Context, lease Lease, d time.Duration) error {
	return lease.Extend(context.WithValue(ctx, ttlKey{}, d))
}

// ttlKey is the key of a value in the context of Extend: the new TTL. It is a value because that passes through all
// middleware, and few leases need it.
type ttlKey struct{}

func (l *lease) Extend(ctx context.Context) error {
	ttl, other := ctx.Value(ttlKey{}).(time.Duration)
	if !other {
		ttl = l.currentTTL()
	}
	o := newOptions([]Option{TTL(ttl)})
	if err := o.validate(l.req.Key); err != nil {
		return &Error{"extend", l.req.Key, err}
	}
	return l.call(ctx, "extend", func(ctx context.Context, cancel *context.CancelFunc) error {
		start := time.Now()
		err := l.extend(ctx, cancel, ttl)
		if err == nil && other {
			l.adopt(start, ttl)
		}
		return err
	})
}

func (l *lease) currentTTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// extend makes one attempt to extend the lease by ttl from now. cancel must end ctx. It is called when the lease ends.
func (l *lease) extend(ctx context.Context, cancel *context.CancelFunc, ttl time.Duration) error {
	l.mu.Lock()
	l.longest = max(l.longest, ttl) // the store may set it although no answer comes
	l.mu.Unlock()
	start := time.Now()
	err := l.ask(ctx, cancel, func(ctx context.Context, req Request) error {
		req.TTL = ttl
		return l.client.backend.Extend(ctx, req)
	})
	if err != nil {
		return err
	}
	return l.prolong(start, ttl)
}

// prolong moves the end of the lease after a successful extension by ttl that began at start. If the lease has ended
// meanwhile, it stays ended, because callers have already seen that done was closed.
func (l *lease) prolong(start time.Time, ttl time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.failed = nil
	if until := validity.Until(start, ttl); until.After(l.until) {
		l.until = until
		l.setExpiry()
	}
	return nil
}

// adopt makes ttl the TTL of the renewals, after an extension that began at start.
func (l *lease) adopt(start time.Time, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ttl = ttl
	if l.err == nil {
		l.setExpiry()
		l.client.retime(l, start, ttl)
	}
}

// retime makes the next renewal of l fit its new TTL. If a renewal is in progress, that does it when it has ended.
func (c *Client) retime(l *lease, start time.Time, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.uses(l, ttl)
	if l.pos >= 0 && l.due != never {
		c.schedule.move(l, start.Add(ttl/renewPart))
		c.schedule.rearm(time.Now())
	}
}

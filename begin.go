package locker

import (
	"context"
	"time"

	"github.com/golocker/locker/internal/core/several"
)

// gateTTL is the TTL of a lock for which others wait only because its holder waits, too: the gate of a semaphore, or a
// place of a caller that needs more of them. Such a lock keeps out everybody, and its holder may die. A caller that
// asks for less has less. The holder renews it each second, so it survives that a process stands still for two.
const gateTTL = 3 * time.Second

// looksPerTTL is how often a waiter looks at least while the TTL of a gate goes by. Where looks are rare because they
// have a price, renewals have one, too.
const looksPerTTL = 10

// waiting returns o, or the options of a lock that its caller needs only while it waits; see several.Partial. What the
// caller has asked for begins with lease.begin.
func (c *Client) waiting(ctx context.Context, o options) options {
	if p := several.PartialFrom(ctx); p != nil {
		asked := o
		o.ttl = min(max(gateTTL, looksPerTTL*c.can.Look), o.ttl)
		o.noRenewal, o.maxHold, o.minHold = false, 0, 0
		o.partial, o.asked = p, &asked
	}
	return o
}

// keeps returns the MinHold that a store has to know of: of a lock that is needed for longer later, the later one.
func (o options) keeps() time.Duration {
	if o.asked != nil {
		return o.asked.minHold
	}
	return o.minHold
}

// begin makes the lease what its caller has asked for, once it has all locks that it waits for. Times count from now. A
// lease that has ended stays as it is: the call has lost it, or had enough without it.
func (l *lease) begin(ctx context.Context, o *options) error {
	if l.Err() != nil {
		return nil
	}
	g, start := l.grant, time.Now()
	if o.ttl != l.TTL() || o.noRenewal {
		if err := l.Extend(ctx, TTL(o.ttl)); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.start, g.maxHold, g.minHold = start, o.maxHold, o.minHold
	if o.noRenewal {
		g.client.cease(g)
	}
	if g.lease.err == nil {
		g.setExpiry()
	}
	return nil
}

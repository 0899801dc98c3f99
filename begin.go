package locker

import (
	"context"
	"strings"
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

// waiting returns the options of a lock that its caller needs only for as long as it waits for others, or for as long
// as it waits for more of them; see several.Gate and several.Partial. What the caller has asked for begins with
// lease.Begin.
func (c *Client) waiting(ctx context.Context, key string, o options) options {
	ttl := min(max(gateTTL, looksPerTTL*c.can.Look), o.ttl)
	switch gate := several.GateFrom(ctx); {
	case gate != nil && strings.HasSuffix(key, gate.Name):
		o.ttl = ttl
	case several.IsPartial(ctx):
		asked := o
		o.ttl, o.noRenewal, o.maxHold, o.minHold, o.asked = ttl, false, 0, 0, &asked
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

// Begin makes the lease what its caller has asked for, once it has all locks that it waits for. Times count from now.
// Package slots looks for it behind middleware, as [Verify] looks for the lease.
func (l *lease) Begin(ctx context.Context) error {
	g := l.grant
	g.mu.Lock()
	o, ttl := g.asked, g.ttl
	g.asked = nil
	g.mu.Unlock()
	if o == nil {
		return nil
	}
	start := time.Now()
	if o.ttl != ttl || o.noRenewal {
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

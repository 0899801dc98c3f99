package locker

import (
	"context"
	"slices"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/several"
)

// WithLease returns a copy of parent that ends when lease does, or when cancel is called, if parent does not end first.
// context.Cause then returns the error of lease, which is a [*LostError] if the lock was lost. Calling cancel releases
// a goroutine that waits for the end of the lease. It does not unlock lease. lease may be an [AllLease]:
//
//	lease, err := l.TryLock(ctx, key)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//	ctx, cancel := locker.WithLease(ctx, lease)
//	defer cancel()
//
// The context carries the lease; see [LeaseFrom]. Its Err method reads the clocks, as [Lease.Err] does. Its answer is
// therefore correct even if the process has just woken from a pause. Contexts derived from it that have a deadline or a
// cancel function end a moment later.
func WithLease(parent context.Context, lease Lease) (ctx context.Context, cancel context.CancelFunc) {
	inner, end := context.WithCancelCause(parent)
	go func() {
		select {
		case <-lease.Done():
			end(lease.Err())
		case <-inner.Done():
		}
	}()
	return &heldContext{inner, lease, end}, func() { end(nil) }
}

// heldContext is a context that ends with a lease. When the process wakes from a pause, code may use the context before
// the goroutine that cancels it has run. Err and Done therefore check the lease first.
type heldContext struct {
	context.Context
	lease  Lease
	cancel context.CancelCauseFunc
}

// check cancels the context if the lease has ended.
func (c *heldContext) check() {
	if err := c.lease.Err(); err != nil {
		c.cancel(err) // only the first call has an effect
	}
}

func (c *heldContext) Err() error {
	c.check()
	return c.Context.Err()
}

func (c *heldContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *heldContext) Value(key any) any {
	switch key := key.(type) {
	case leaseKey:
		return c.lease
	case several.Sought:
		if isOrHas(c.lease, key) {
			return c.lease
		}
		return c.Context.Value(key)
	}
	c.check() // before Go 1.26, context.Cause calls only Value
	return c.Context.Value(key)
}

type leaseKey struct{}

// LeaseFrom returns the lease that ctx carries. A context carries a lease if it is from [WithLease], as those
// that [Do] and [TryDo] pass to their functions are, or if it is derived from such a context.
func LeaseFrom(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}

// carried is the key of a value that no context has: each lease that a context carries is shown to it. It gathers which
// of some locks of a Client are among them.
type carried struct {
	client     *Client
	keys, held []string
}

// Is implements several.Sought.
func (c *carried) Is(l any) bool {
	of, ok := l.(*lease)
	if ok && of.grant.client == c.client && slices.Contains(c.keys, of.Key()) && of.Err() == nil {
		c.held = append(c.held, of.Key())
	}
	return false
}

// isOrHas reports whether l is sought, or a lease behind it.
func isOrHas(l Lease, sought several.Sought) bool {
	for {
		if sought.Is(l) {
			return true
		}
		switch of := l.(type) {
		case *AllLease:
			return slices.ContainsFunc(of.parts, func(part Lease) bool { return isOrHas(part, sought) })
		case interface{ Unwrap() Lease }:
			l = of.Unwrap()
		default:
			return false
		}
	}
}

// carries returns of how many of the locks of keys ctx carries leases that have not ended.
func (c *Client) carries(ctx context.Context, keys ...string) int {
	own := carried{client: c, keys: keys}
	_ = ctx.Value(&own)
	slices.Sort(own.held)
	return len(slices.Compact(own.held))
}

// carriedEntries is the key of a value that no context has, as carried is. It gathers the leases of entries of a group.
type carriedEntries struct {
	client *Client
	key    string
	grants []*grant
}

// Is implements several.Sought.
func (c *carriedEntries) Is(l any) bool {
	of, ok := l.(*lease)
	if ok && of.grant.client == c.client && of.Key() == c.key && of.grant.req.Group != nil && of.Err() == nil &&
		!slices.Contains(c.grants, of.grant) {
		c.grants = append(c.grants, of.grant)
	}
	return false
}

// reentrant returns an error if a Lock of key would wait for its own caller, because ctx carries a lease of it, or
// blocks the gate that it is, or carries so many permits that those of all others are too few. An upgrade waits for
// all locks of the group but the one that it is of.
func (c *Client) reentrant(ctx context.Context, key string, e *several.Entry) error {
	if _, ok := LeaseFrom(ctx); !ok { // the looks below allocate
		return nil
	}
	if e == nil {
		if c.carries(ctx, key) > 0 || c.blocks(ctx, key) {
			return errReentrant
		}
		return nil
	}
	own, left := carriedEntries{client: c, key: key}, e.Wants.N
	_ = ctx.Value(&own)
	for _, g := range own.grants {
		if e.Wants.Kind != backend.Permit && g.req.Token != e.Wants.From {
			return errReentrant
		}
		beyond := max(0, g.req.Group.N-e.Wants.N) // how many of its permits may have numbers that the call cannot have
		left -= max(0, g.req.Group.Weight-beyond)
	}
	if left < e.Wants.Weight {
		return errReentrant
	}
	return nil
}

// blocks reports whether key is a gate, and ctx carries leases of more places behind it than the call can spare.
func (c *Client) blocks(ctx context.Context, key string) bool {
	places, spare := several.Behind(ctx, key)
	return len(places) > spare && c.carries(ctx, places...) > spare
}

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

package locker

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker/lockertrace"
)

// The times of renewals, as parts of the TTL:
//
//   - A renewal is sent a third of the TTL after the acquiring request or the last successful renewal was sent.
//   - If a renewal fails and the lock is not known to be lost, the next one is sent after a tenth, until the lease
//     ends.
//   - A renewal is given up after a sixth. If one hangs, there is time for three more.
const (
	renewPart = 3
	retryPart = 10
	boundPart = 6
	// maxRenewal is the longest time a renewal may take, whatever the TTL. A connection that hangs must not occupy one
	// of maxInFlight slots for hours.
	maxRenewal = 10 * time.Second
)

// tend is called by the timer of the schedule. It starts the renewals that are due. If the machine was suspended, it
// also checks the end of every lease.
func (c *Client) tend() {
	c.mu.Lock()
	late := c.schedule.slept(time.Now())
	c.mu.Unlock()
	for _, g := range late {
		g.rearm()
	}
	c.mu.Lock()
	c.schedule.wake = time.Time{}
	batch := c.due()
	c.mu.Unlock()
	c.renew(batch)
}

// due takes the leases to renew now from the schedule, and sets the timer for the next ones. Call with mu held.
func (c *Client) due() []*grant {
	if c.closed {
		return nil
	}
	now := time.Now()
	batch := c.schedule.take(now)
	c.schedule.rearm(now)
	c.background.Add(len(batch))
	return batch
}

// renew starts the renewals of a batch at the same moment, so that the backend can send them together.
func (c *Client) renew(batch []*grant) {
	for _, g := range batch {
		go func() {
			defer c.background.Done()
			next := g.renew()
			c.mu.Lock()
			c.schedule.inFlight--
			c.schedule.move(g, next)
			batch := c.due() // the leases that waited for this slot
			c.mu.Unlock()
			c.renew(batch)
		}()
	}
}

// retime makes the next renewal of g fit its new TTL. If a renewal is in progress, that does it when it has ended.
func (c *Client) retime(g *grant, start time.Time, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.uses(g, ttl)
	if g.pos >= 0 && g.due != never {
		c.schedule.move(g, start.Add(ttl/renewPart))
		c.schedule.rearm(time.Now())
	}
}

// cease ends the renewals of g.
func (c *Client) cease(g *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.renews = false
	c.schedule.move(g, never)
}

// renew makes one renewal and returns when the next is due.
func (g *grant) renew() (next time.Time) {
	g.mu.Lock()
	ttl, ended, trace := g.ttl, g.lease.err, g.lease.trace
	g.mu.Unlock()
	if ended != nil {
		return never
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(ttl/boundPart, maxRenewal))
	defer cancel()
	if trace != nil {
		ctx = lockertrace.With(ctx, trace)
	}

	start := time.Now()
	err := g.extend(ctx, nil, &cancel, ttl)
	now := time.Now()

	g.mu.Lock()
	ended, trace = g.lease.err, g.lease.trace // of the lease that has the lock now
	doubt := err != nil && ended == nil && g.failed == nil
	if ended == nil {
		g.failed = err
	}
	ttl = g.ttl // it may have changed meanwhile
	g.mu.Unlock()
	// A renewal that was interrupted by Unlock or Close has not failed.
	if t := trace; t != nil && !errors.Is(ended, ErrUnlocked) && !errors.Is(ended, ErrClosed) {
		if t.Renewed != nil {
			t.Renewed(lockertrace.Renewal{Duration: now.Sub(start), Err: err})
		}
		if doubt && t.InDoubt != nil {
			t.InDoubt(err)
		}
	}
	if err == nil {
		return start.Add(ttl / renewPart)
	}
	if next = start.Add(ttl / retryPart); next.Before(now) {
		next = now
	}
	return next
}

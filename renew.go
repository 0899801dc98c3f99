package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker/lockertrace"
)

// The times of renewals, as parts of the TTL:
//
//   - A renewal is sent a third of the TTL after the acquiring request or the last successful renewal was sent.
//   - If a renewal fails and the lock is not known to be lost, the next one is sent after a tenth, until the lease
//     ends.
//   - A renewal is given up after a sixth. If one hangs, there is time for three more.
//   - If thousands of leases may end at the same time, a renewal that has failed is not tried again just before that:
//     see Client.early. Tens of thousands of renewals that fail at once would take the processors, and whoever waits
//     for Done would be told late.
const (
	renewPart = 3
	retryPart = 10
	boundPart = 6
	// maxRenewal is the longest time a renewal may take, whatever the TTL. A connection that hangs must not occupy one
	// of maxInFlight places for hours.
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
	c.schedule.wake, c.schedule.stopping = time.Time{}, 0
	begin, stop := c.due()
	c.mu.Unlock()
	c.renew(begin, stop)
}

// due takes the renewals to begin now from the schedule, and those to give up, and sets the timer for the next ones.
// Call with mu held.
func (c *Client) due() (begin, stop []*place) {
	if c.closed {
		return nil, nil
	}
	now := time.Now()
	begin, stop = c.schedule.take(now)
	c.schedule.rearm(now)
	c.background.Add(len(begin))
	for _, p := range begin {
		p.ctx, p.stop = context.WithCancel(context.Background())
	}
	return begin, stop
}

// renew begins renewals at the same moment, so that the backend can send them together, and gives up others.
func (c *Client) renew(begin, stop []*place) {
	for _, p := range begin {
		go func() {
			defer c.background.Done()
			next, err := p.grant.renew(p)
			p.stop()
			c.mu.Lock()
			now := time.Now()
			c.schedule.ended(p, now, next, err)
			begin, stop := c.due() // the leases that waited for this place
			c.mu.Unlock()
			c.renew(begin, stop)
		}()
	}
	for _, p := range stop {
		p.stop()
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

// cease ends the renewals of g. One that is in progress is the last.
func (c *Client) cease(g *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.renews = false
	c.schedule.move(g, never)
}

// renew makes the renewal at p. It returns when the next one is due, and the error of this one.
func (g *grant) renew(p *place) (next time.Time, err error) {
	g.mu.Lock()
	ttl, ended, trace := g.ttl, g.lease.err, g.lease.trace
	end, _ := g.end()
	last := g.failed != nil && left(end) <= 2*g.client.early(ttl)
	g.mu.Unlock()
	if ended != nil || last {
		return never, nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, min(ttl/boundPart, maxRenewal))
	defer cancel()
	if trace != nil {
		ctx = lockertrace.With(ctx, trace)
	}

	start := time.Now()
	err = g.extend(ctx, nil, &cancel, ttl)
	now := time.Now()
	if err != nil && !errors.Is(err, ErrNotHeld) && p.ctx.Err() != nil {
		err = fmt.Errorf("%w; it was given up after %v, because other renewals wait", err, now.Sub(start))
	}

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
		return start.Add(ttl / renewPart), nil
	}
	if next = start.Add(ttl / retryPart); next.Before(now) {
		next = now
	}
	return next, err
}

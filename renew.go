package locker

import (
	"context"
	"errors"
	"time"
)

// When a lease is renewed, as parts of its TTL:
//
//   - first a third after the request was sent that acquired it, then a third after each renewal that succeeded was sent;
//   - after one that failed without saying that the lock is lost, every tenth, until the lease ends;
//   - each is given up after a sixth, so that one that hangs leaves time for three more.
const (
	renewPart = 3
	retryPart = 10
	boundPart = 6
	// maxRenewal bounds a renewal of a long TTL: a slot must not be taken for hours by a connection that hangs.
	maxRenewal = 10 * time.Second
)

// tend is what the Client's timer calls: it starts the renewals that are due, and looks after all leases if the machine
// has slept.
func (c *Client) tend() {
	c.mu.Lock()
	late := c.schedule.slept(time.Now())
	c.mu.Unlock()
	for _, l := range late {
		l.rearm()
	}
	c.mu.Lock()
	c.schedule.wake = time.Time{}
	batch := c.due()
	c.mu.Unlock()
	c.renew(batch)
}

// due takes what is to be renewed now and sets the timer for what comes then. Call with mu held.
func (c *Client) due() []*lease {
	if c.closed {
		return nil
	}
	now := time.Now()
	batch := c.schedule.take(now)
	c.schedule.rearm(now)
	c.background.Add(len(batch))
	return batch
}

// renew starts a renewal of each of batch, all at the same moment, so that the backend can send them together.
func (c *Client) renew(batch []*lease) {
	for _, l := range batch {
		go func() {
			defer c.background.Done()
			next := l.renew()
			c.mu.Lock()
			c.schedule.inFlight--
			c.schedule.move(l, next)
			batch := c.due() // what waited for the slot
			c.mu.Unlock()
			c.renew(batch)
		}()
	}
}

// renew makes one renewal and returns when the next is due.
func (l *lease) renew() (next time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), min(l.req.TTL/boundPart, maxRenewal))
	defer cancel()
	if l.trace != nil {
		ctx = WithTrace(ctx, l.trace)
	}
	l.mu.Lock()
	ended := l.err
	l.mu.Unlock()
	if ended != nil {
		return never
	}

	start := time.Now()
	err := l.extend(ctx, &cancel)
	now := time.Now()

	l.mu.Lock()
	ended = l.err
	doubt := err != nil && ended == nil && !l.inDoubt
	l.inDoubt = err != nil
	l.mu.Unlock()
	// What Unlock or Close interrupted is no failure.
	if t := l.trace; t != nil && !errors.Is(ended, ErrUnlocked) && !errors.Is(ended, ErrClosed) {
		if t.Renewed != nil {
			t.Renewed(Renewal{Duration: now.Sub(start), Err: err})
		}
		if doubt && t.InDoubt != nil {
			t.InDoubt(err)
		}
	}
	if err == nil {
		return start.Add(l.req.TTL / renewPart)
	}
	if next = start.Add(l.req.TTL / retryPart); next.Before(now) {
		next = now
	}
	return next
}

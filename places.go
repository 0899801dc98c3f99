package locker

import (
	"container/list"
	"context"
	"time"
)

// maxInFlight is how many calls for many locks are in flight at most while the store answers: renewals of a Client, and
// calls for the parts of an AllLease. It is large enough to keep a busy node occupied.
const maxInFlight = 1024

// places has the calls in flight, as one of several servers may hang: a server of a Redis Cluster, or the table of one
// lock. Nobody can know beforehand which calls wait for it. So those that are not answered for some time become slow,
// and whoever makes the calls counts these apart. They must not keep others from being made.
type places struct {
	prompt list.List // of *place, in the order in which the calls began; without those that are slow or given up
	slow   int
}

// place is that of one call in flight.
type place struct {
	began time.Time
	at    *list.Element // in prompt, or nil
	slow  bool

	// For a renewal.
	grant *grant
	ctx   context.Context
	stop  context.CancelFunc // gives it up
}

// enter adds a call that begins now.
func (p *places) enter(c *place, now time.Time) {
	c.began = now
	c.at = p.prompt.PushBack(c)
}

// first returns the prompt call that began first, or nil.
func (p *places) first() *place {
	if e := p.prompt.Front(); e != nil {
		return e.Value.(*place)
	}
	return nil
}

// tire makes a prompt call slow.
func (p *places) tire(c *place) {
	p.leave(c)
	c.slow = true
	p.slow++
}

// leave removes a call that has ended, or that is given up.
func (p *places) leave(c *place) {
	if c.at != nil {
		p.prompt.Remove(c.at)
		c.at = nil
	}
	if c.slow {
		c.slow = false
		p.slow--
	}
}

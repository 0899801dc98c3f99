package pipeline

import "time"

// callers are those of Do that wait, each until a time of its own. A timer for each of them would cost more than
// all else that this package does for a call. So there is one timer, and it is rarely set: it rings at the earliest of
// those times, whether that caller still waits or not. Then all callers are looked at.
type callers struct {
	first *Call // the others follow in no order
	timer *time.Timer
	rings time.Time // zero: the timer is not set
}

// wake is why a caller of Do wakes.
type wake uint8

const (
	known     wake = iota // the outcome is known
	overdue               // its time is over
	abandoned             // Abandon was called
)

// expect makes c one of those that wait until c.until. Call with mu held.
func (p *Pipeline) expect(c *Call) {
	if p.abandoned.Load() {
		c.answered <- abandoned
		return
	}
	w := &p.callers
	if c.next = w.first; c.next != nil {
		c.next.previous = c
	}
	w.first = c
	if !w.rings.IsZero() && !c.until.Before(w.rings) {
		return
	}
	w.rings = c.until
	if left := time.Until(c.until); w.timer == nil {
		w.timer = time.AfterFunc(left, p.ring)
	} else {
		w.timer.Reset(left)
	}
}

// forget ends the wait of c, if it waits. Call with mu held.
func (p *Pipeline) forget(c *Call) {
	switch {
	case c.previous != nil:
		c.previous.next = c.next
	case p.callers.first == c:
		p.callers.first = c.next
	}
	if c.next != nil {
		c.next.previous = c.previous
	}
	c.previous, c.next = nil, nil
}

// ring wakes the callers whose time is over, and sets the timer for the next one.
func (p *Pipeline) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, now := &p.callers, time.Now()
	w.rings = time.Time{}
	for c := w.first; c != nil; {
		next := c.next
		switch {
		case !c.until.After(now):
			p.forget(c)
			c.answered <- overdue
		case w.rings.IsZero() || c.until.Before(w.rings):
			w.rings = c.until
		}
		c = next
	}
	if !w.rings.IsZero() {
		w.timer.Reset(w.rings.Sub(now))
	}
}

// Abandon makes callers of Do return ErrClosed, those that wait and those that come. Their commands go on. A caller
// that waits inside the driver returns when its exchange ends.
func (p *Pipeline) Abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.abandoned.Store(true)
	for c := p.callers.first; c != nil; c = p.callers.first {
		p.forget(c)
		c.answered <- abandoned
	}
}

package pipeline

import (
	"slices"
	"time"

	"github.com/golocker/locker/drivers"
)

// senderIdle is how long an idle sender waits for the next command before it ends. To start a goroutine, whose stack
// has to grow on its way through the client, costs more than the rest of this package does for a command.
const senderIdle = time.Second

// sender is a goroutine that sends the commands that callers do not send themselves. It ends when there has been
// nothing to send for senderIdle, so that an idle node has no senders.
type sender struct {
	next chan *Call // has room for one; closed by Close
}

// Submit sends c, which must not have been used before. It calls notify, which must not block and may be nil, when the
// outcome of c is known. That is within the timeout of an exchange after c was sent. A command that is refused is
// resolved at once, with an error that matches drivers.ErrNotSent.
func (p *Pipeline) Submit(c *Call, notify func()) {
	c.notify = notify
	p.mu.Lock()
	free, err := p.admit(c)
	if err != nil {
		p.mu.Unlock()
		p.resolve(c, nil, drivers.NotSent(err))
		return
	}
	defer p.mu.Unlock()
	if c.answered != nil {
		p.expect(c)
	}
	last := len(p.idleSenders) - 1
	switch {
	case !free:
		p.pending = append(p.pending, c)
	case last < 0:
		go p.run(c)
	default: // the sender that became idle last is furthest from its end
		s := p.idleSenders[last]
		p.idleSenders = p.idleSenders[:last]
		s.next <- c
	}
}

// admit refuses c with an error, or reserves one of maxSenders exchanges for it. It returns false without an error if
// all of them are in flight. Call with mu held.
func (p *Pipeline) admit(c *Call) (free bool, err error) {
	switch {
	case p.closed:
		return false, ErrClosed
	case len(p.pending) >= maxPending:
		return false, ErrFull
	case !c.IsRelease && p.dialBackoff.refuses():
		return false, p.dialBackoff.reason
	case p.sending == maxSenders:
		return false, nil
	}
	p.sending++
	c.state = sent // it is sent next
	return true, nil
}

// run is the goroutine of a sender, whose first command is c.
func (p *Pipeline) run(c *Call) {
	s := &sender{next: make(chan *Call, 1)}
	patience := time.NewTimer(senderIdle)
	defer patience.Stop()
	for c != nil {
		for batch := []*Call{c}; batch != nil; batch = p.take(s) {
			p.exchange(batch, p.timeout)
		}
		patience.Reset(senderIdle)
		select {
		case c = <-s.next:
		case <-patience.C:
			c = p.dismiss(s)
		}
	}
}

// take returns the next batch for s, whose exchange has ended. For a caller of Do, s is nil. If nothing is pending,
// take returns nil, ends the reservation of the exchange, and makes s idle.
func (p *Pipeline) take(s *sender) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 {
		p.sending--
		switch {
		case s == nil:
		case p.closed:
			close(s.next)
		default:
			p.idleSenders = append(p.idleSenders, s)
		}
		if p.sending == 0 && p.idle != nil {
			close(p.idle)
			p.idle = nil
		}
		return nil
	}
	n := min(len(p.pending), MaxBatch)
	batch := slices.Clone(p.pending[:n])
	p.pending = slices.Delete(p.pending, 0, n)
	for _, c := range batch {
		c.state = sent
	}
	return batch
}

// dismiss ends s and returns nil. If Submit has just given s another call, dismiss returns that call instead.
func (p *Pipeline) dismiss(s *sender) *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idleSenders, s); i >= 0 {
		p.idleSenders = slices.Delete(p.idleSenders, i, i+1)
		return nil
	}
	return <-s.next
}

package pipeline

import (
	"slices"
	"time"
)

// senderIdle is how long an idle sender waits for the next command before it ends. To start a goroutine, whose stack
// has to grow on its way through the client, costs more than the rest of this package does for a command.
const senderIdle = time.Second

// sender is a goroutine that sends the commands that callers do not send themselves. It ends when there has been
// nothing to send for senderIdle, so that an idle node has no senders.
type sender struct {
	next chan *Call // has room for one; closed by Close
}

// start has a sender send c, and then the commands that are pending. Call with mu held.
func (p *Pipeline) start(c *Call) {
	last := len(p.idleSenders) - 1
	if last < 0 {
		go p.run(c)
		return
	}
	// The sender that became idle last is furthest from its end.
	s := p.idleSenders[last]
	p.idleSenders = p.idleSenders[:last]
	s.next <- c
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

// dismiss ends s and returns nil. If start has just given s another call, dismiss returns that call instead.
func (p *Pipeline) dismiss(s *sender) *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idleSenders, s); i >= 0 {
		p.idleSenders = slices.Delete(p.idleSenders, i, i+1)
		return nil
	}
	return <-s.next
}

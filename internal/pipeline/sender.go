package pipeline

import (
	"slices"
	"time"
)

// senderIdle is how long a sender stays when there is nothing to send, for the next command. To start a goroutine,
// whose stack has to grow on its way through the client, costs more than the rest of what this package does.
const senderIdle = time.Second

// sender is a goroutine that sends what callers do not send themselves. It ends when there has been nothing to send for
// a while, so that an idle node has none.
type sender struct {
	next chan *Call // has room for one; closed by Close
}

// start has a sender send c, and then what is pending. Call with mu held.
func (p *Pipeline) start(c *Call) {
	last := len(p.idleSenders) - 1
	if last < 0 {
		go p.run(c)
		return
	}
	s := p.idleSenders[last] // it has not been idle for long
	p.idleSenders = p.idleSenders[:last]
	s.next <- c
}

// run is a sender's goroutine.
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

// dismiss ends s, unless a call has been given to it just now, which it returns.
func (p *Pipeline) dismiss(s *sender) *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idleSenders, s); i >= 0 {
		p.idleSenders = slices.Delete(p.idleSenders, i, i+1)
		return nil
	}
	return <-s.next
}

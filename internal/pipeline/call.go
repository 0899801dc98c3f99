package pipeline

import (
	"slices"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// Call is one command on its way through a [Pipeline].
type Call struct {
	script.Command
	// Quiet says that Unusual of the pipeline is not called for this command.
	Quiet bool

	// Reply and Err are the outcome, once it is known. If Err is not nil, it is not known what the server has done,
	// unless Err matches drivers.ErrNotSent or is a *Shortfall.
	Reply drivers.Reply
	Err   error

	// The pipeline's mu guards these until the call is resolved.
	state     state
	notify    func() // may be nil
	withdrawn bool   // Withdraw came after the call was sent

	// short, if not nil, says that too few replicas have confirmed what was last sent for the call. Only the exchange
	// uses it.
	short *Shortfall

	// For a caller of Do that waits, until its time is over. The channel has room for two: why it need not wait for the
	// outcome any more, and that the outcome is known.
	answered       chan wake
	until          time.Time
	previous, next *Call
}

type state uint8

const (
	waiting state = iota
	sent
	resolved
)

// Refuse resolves a call that was not submitted. Its Err is err, as an error that matches drivers.ErrNotSent.
func (c *Call) Refuse(err error) { c.state, c.Err = resolved, drivers.NotSent(err) }

// Withdraw takes back a command that was not sent yet. It returns false if the command was sent or resolved. After a
// Withdraw that returns true, notify is not called. If only the usual case of an acquisition was sent, and the server
// answers that it has not executed it, then the acquisition is not sent any more, and its Err matches
// drivers.ErrNotSent. Otherwise it could acquire the lock, for a caller that has left, when the owner has released it.
func (p *Pipeline) Withdraw(c *Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state != waiting {
		c.withdrawn = true
		return false
	}
	if i := slices.Index(p.pending, c); i >= 0 { // otherwise Close is about to resolve it
		p.pending = slices.Delete(p.pending, i, i+1)
	}
	p.forget(c)
	c.state, c.notify, c.answered = resolved, nil, nil
	return true
}

// Follow replaces the function that is called when the outcome is known. It returns true if the outcome is known
// already. It then does not call notify, and the earlier function was called or is about to be.
func (p *Pipeline) Follow(c *Call, notify func()) (done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state == resolved {
		return true
	}
	p.forget(c)
	c.notify, c.answered = notify, nil
	return false
}

// UnderWay reports whether c was sent and its outcome is not known yet.
func (p *Pipeline) UnderWay(c *Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.state == sent
}

// resolve records the outcome of c and calls its notify function. It does nothing if c was withdrawn.
func (p *Pipeline) resolve(c *Call, reply drivers.Reply, err error) {
	if err == nil {
		err = c.unconfirmed(reply)
	}
	p.mu.Lock()
	if c.state == resolved {
		p.mu.Unlock()
		return
	}
	c.Reply, c.Err, c.state = reply, err, resolved
	p.forget(c)
	p.mu.Unlock()
	if c.notify != nil {
		c.notify()
	}
	if c.answered != nil {
		c.answered <- known
	}
}

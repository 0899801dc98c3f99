package pipeline

import (
	"slices"

	"github.com/golocker/locker/drivers"
)

// Command is what a [Pipeline] sends.
type Command struct {
	Words drivers.Command
	// Source is the text of the script that Words call by its digest. If the server does not know the script
	// (NOSCRIPT), and so has executed nothing, Words are sent again with Source in place of the digest. Empty: Words
	// call no script.
	Source string
	// IsRelease says that somebody may wait for what the command frees. A release is sent even while the node rests
	// after a failed dial, and so finds out whether the node is back. If it were refused, it would be repeated by a
	// clean-up, as much as a second later. Releases are few, because a node that is down grants nothing.
	IsRelease bool
}

// full returns the words with the script's text in place of its digest, which also teaches it to the server.
func (c *Command) full() drivers.Command {
	words := slices.Clone(c.Words)
	words[0], words[1] = "EVAL", c.Source
	return words
}

// isUnknown reports whether the server refused c because it does not know its script. A command that is no script is
// not sent again, whatever says NOSCRIPT to it: something between here and the server may.
func (c *Command) isUnknown(r drivers.Reply) bool {
	e, refused := r.(drivers.ServerError)
	return refused && c.Source != "" && e.Code() == "NOSCRIPT"
}

// Call is one command on its way through a [Pipeline].
type Call struct {
	Command

	// Reply and Err are the outcome, once that is known. With an Err, it is not known what the server has done, unless
	// Err matches drivers.ErrNotSent.
	Reply drivers.Reply
	Err   error

	// guarded by the pipeline's mu until the call is resolved
	state  state
	notify func() // nil: nobody is told
}

type state uint8

const (
	waiting state = iota
	sent
	resolved
)

// Refuse resolves a call that is not submitted, because of err.
func (c *Call) Refuse(err error) { c.state, c.Err = resolved, drivers.NotSent(err) }

// Withdraw takes a command back that was not sent yet, and reports whether it could. Nobody is told of it then.
func (p *Pipeline) Withdraw(c *Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state != waiting {
		return false
	}
	if i := slices.Index(p.pending, c); i >= 0 { // else Close has it in its hands
		p.pending = slices.Delete(p.pending, i, i+1)
	}
	c.state, c.notify = resolved, nil
	return true
}

// Follow has another function called when the outcome is known. If it is known already, done is true and notify is not
// called, but the function given before may have been, or be about to be.
func (p *Pipeline) Follow(c *Call, notify func()) (done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state == resolved {
		return true
	}
	c.notify = notify
	return false
}

// UnderWay reports whether c was sent and its outcome is not known yet.
func (p *Pipeline) UnderWay(c *Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.state == sent
}

// resolve records the outcome of c and tells of it, unless c has been withdrawn.
func (p *Pipeline) resolve(c *Call, reply drivers.Reply, err error) {
	p.mu.Lock()
	if c.state == resolved {
		p.mu.Unlock()
		return
	}
	c.Reply, c.Err, c.state = reply, err, resolved
	notify := c.notify
	p.mu.Unlock()
	if notify != nil {
		notify()
	}
}

package pipeline

import (
	"fmt"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// Replicas says how many replicas have to confirm what the server grants, and how long to wait for them. The zero value
// means that none has to.
type Replicas struct {
	Want    int
	Timeout time.Duration
}

// Shortfall is the error of a command that the server has executed, and that too few replicas have confirmed. The Reply
// of its call is that of the server.
type Shortfall struct {
	Got, Want int
	// Err says why Got is not known, and 0. It is nil if the server has counted the replicas.
	Err error
}

func (s *Shortfall) Error() string {
	text := fmt.Sprintf("confirmed by %d of %d replicas", s.Got, s.Want)
	if s.Err != nil {
		text += ": " + s.Err.Error()
	}
	return text
}

// NewReplicated is like New, but a reply that grants or prolongs a lock counts only if replicas have confirmed it.
// Otherwise the Err of the call is a *Shortfall. There is one WAIT for a batch. It is the last command of the batch,
// because the server waits for what was written on the same connection. The timeout of an exchange is longer by that of
// the replicas.
//
// While the server waits, it answers nothing else on that connection, and one of maxSenders exchanges is taken.
// Commands that grant nothing should therefore use another Pipeline over the same driver.
func NewReplicated(d drivers.Driver, timeout time.Duration, r Replicas) *Pipeline {
	p := New(d, timeout+r.Timeout)
	p.replicas = r
	return p
}

// patience returns until when an exchange that begins now may wait for replicas. If there is little time for the
// exchange, the WAIT ends before, so that the connection is not given up with a WAIT that is unanswered.
func (p *Pipeline) patience(limit time.Duration) time.Time {
	return time.Now().Add(min(p.replicas.Timeout, limit*3/4))
}

// confirming returns words and a WAIT until a time, if replicas have to confirm something.
func (p *Pipeline) confirming(words []drivers.Command, until time.Time) []drivers.Command {
	if p.replicas.Want == 0 {
		return words
	}
	return append(words, script.Wait(p.replicas.Want, time.Until(until)))
}

// confirmed notes at the calls of requests what the last of the replies, that to WAIT, says of the replicas.
func (p *Pipeline) confirmed(requests []request, replies []drivers.Reply) {
	if p.replicas.Want == 0 {
		return
	}
	short := p.shortfall(replies[len(requests)])
	for i := range requests {
		for _, c := range requests[i].calls {
			c.short = short
		}
	}
}

// shortfall reads the reply to WAIT. It returns nil if enough replicas have confirmed.
func (p *Pipeline) shortfall(reply drivers.Reply) *Shortfall {
	s := &Shortfall{Want: p.replicas.Want}
	switch reply := reply.(type) {
	case int64:
		if s.Got = int(reply); s.Got >= s.Want {
			return nil
		}
	case drivers.ServerError:
		s.Err = fmt.Errorf("the server refuses WAIT: %w", reply)
	default:
		s.Err = fmt.Errorf("unexpected reply of type %T to WAIT", reply)
	}
	return s
}

// unconfirmed returns the error of a call that was answered with reply: its Shortfall if the reply grants something, or
// nil.
func (c *Call) unconfirmed(reply drivers.Reply) error {
	if c.short != nil && c.Grants != nil && c.Grants(reply) {
		return c.short
	}
	return nil
}

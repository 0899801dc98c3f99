package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

var errNoAnswer = errors.New("no answer yet")

// Do sends a command and waits for its reply until ctx ends, Abandon is called, or limit has passed. The timeout of an
// exchange bounds limit. An error matches drivers.ErrNotSent if the command was certainly not sent. If the command was
// sent and Do returns before its outcome is known, Do has late called with the outcome. Late is called from another
// goroutine, must not block, and may be nil.
//
// A caller whose context can end does not wait inside the driver, because clients may ignore the end of a context. A
// caller whose wait only time can end sends the command itself, if the driver keeps to deadlines. It then needs no
// other goroutine. See docs/adr/0002-one-queue-per-node-and-lanes.md.
func (p *Pipeline) Do(
	ctx context.Context, cmd script.Command, limit time.Duration, late func(drivers.Reply, error),
) (drivers.Reply, error) {
	if p.abandoned.Load() {
		return nil, errClosedUnsent
	}
	c := &Call{Command: cmd}
	limit = min(limit, p.timeout)
	if ctx.Done() == nil && limit > 0 && p.punctual() && p.inline(c, limit) {
		return c.Reply, c.Err
	}
	c.answered, c.until = make(chan wake, 2), time.Now().Add(limit)
	p.Submit(c, nil)
	err := c.wait(ctx, limit)
	switch {
	case err == nil:
		return c.Reply, c.Err
	case p.Withdraw(c):
		return nil, drivers.NotSent(err)
	}
	var notify func()
	if late != nil {
		notify = func() { late(c.Reply, c.Err) }
	}
	if p.Follow(c, notify) {
		return c.Reply, c.Err
	}
	return nil, err
}

// wait waits for an answer. It returns nil when the answer has come, or the reason why it stopped waiting. The exchange
// has a timeout as well, but the driver may not keep to it, and the command may wait for a sender before the exchange
// begins.
func (c *Call) wait(ctx context.Context, limit time.Duration) error {
	var why wake
	if done := ctx.Done(); done == nil {
		why = <-c.answered // a select costs more, and this is the usual case
	} else {
		select {
		case why = <-c.answered:
		case <-done:
			return errNoAnswer
		}
	}
	switch why {
	case overdue:
		return fmt.Errorf("no answer within %v", max(0, limit).Round(time.Millisecond))
	case abandoned:
		return ErrClosed
	default:
		return nil
	}
}

// inline sends c from the goroutine of its caller, which waits inside the driver for at most limit. It returns false if
// too many exchanges are in flight. Another goroutine sends the commands that have gathered meanwhile.
func (p *Pipeline) inline(c *Call, limit time.Duration) bool {
	p.mu.Lock()
	free, err := p.admit(c)
	p.mu.Unlock()
	switch {
	case err != nil:
		c.Refuse(err)
		return true
	case !free:
		return false
	}
	p.exchange([]*Call{c}, limit)
	if batch := p.take(nil); batch != nil {
		go p.sendAll(batch)
	}
	return true
}

// sendAll sends a batch, and then the commands that have gathered meanwhile.
func (p *Pipeline) sendAll(batch []*Call) {
	for ; batch != nil; batch = p.take(nil) {
		p.exchange(batch, p.timeout)
	}
}

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker/drivers"
)

var errNoAnswer = errors.New("no answer yet")

// Do sends a command and waits for its reply until ctx ends, the pipeline's closing is closed, or limit has passed,
// which is at most the timeout of an exchange. An error matches drivers.ErrNotSent if the command was certainly not
// sent. If it was sent and Do has not waited for the outcome, late is told of that, from a goroutine that it must not
// block; late may be nil.
//
// A caller whose context can end does not wait inside the driver, because clients may ignore the end of a context. A
// caller that only time can call away needs no other goroutine to wait for it, if the driver keeps to deadlines; see
// docs/adr/0017-who-cannot-leave-waits-in-the-driver.md.
func (p *Pipeline) Do(
	ctx context.Context, cmd Command, limit time.Duration, late func(drivers.Reply, error),
) (drivers.Reply, error) {
	if p.isClosing() {
		return nil, errClosedUnsent
	}
	c := &Call{Command: cmd}
	limit = min(limit, p.timeout)
	if ctx.Done() == nil && limit > 0 && p.punctual() && p.inline(c, limit) {
		return c.Reply, c.Err
	}
	answered := make(chan struct{})
	p.Submit(c, func() { close(answered) })
	err := p.wait(ctx, answered, limit)
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

// wait waits for an answer, and returns why it has waited no longer. The driver is asked to keep to the timeout, too,
// but may not be able to, and the command may wait for others.
func (p *Pipeline) wait(ctx context.Context, answered <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return errNoAnswer
	case <-timer.C:
		return fmt.Errorf("no answer within %v", max(0, limit).Round(time.Millisecond))
	case <-p.closing:
		return ErrClosed
	}
}

// inline sends c from the goroutine of its caller, who waits for the answer inside the driver, for limit at most. It
// reports false if too many exchanges are in flight. What has gathered meanwhile is sent by another goroutine.
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

// sendAll sends a batch, and then what has gathered.
func (p *Pipeline) sendAll(batch []*Call) {
	for ; batch != nil; batch = p.take(nil) {
		p.exchange(batch, p.timeout)
	}
}

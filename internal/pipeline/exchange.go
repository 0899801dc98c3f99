package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker/drivers"
)

// exchange sends a batch within limit and resolves its calls. What the server refuses with NOSCRIPT, and so has not
// executed, is sent again in full.
func (p *Pipeline) exchange(batch []*Call, limit time.Duration) {
	ctx, cancel := p.bounded(limit)
	defer cancel()
	words := make([]drivers.Command, len(batch))
	for i, c := range batch {
		words[i] = c.Words
	}
	replies, err := p.send(ctx, words)
	var unknown []*Call
	for i, c := range batch {
		if c.isUnknown(replies[i]) {
			unknown = append(unknown, c)
			continue
		}
		p.resolve(c, replies[i], err)
	}
	if unknown == nil {
		return
	}
	words = make([]drivers.Command, len(unknown))
	for i, c := range unknown {
		words[i] = c.full()
	}
	replies, err = p.send(ctx, words)
	for i, c := range unknown {
		p.resolve(c, replies[i], err)
	}
}

// send has the driver send a batch, and returns as many replies whatever the driver returns.
func (p *Pipeline) send(ctx context.Context, batch []drivers.Command) ([]drivers.Reply, error) {
	if p.ctx.Err() != nil { // a sender that comes to run when the driver is being closed, or has been
		return make([]drivers.Reply, len(batch)), errClosedUnsent
	}
	replies, err := p.driver.Do(ctx, batch...)
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) { // a dial that was broken off says nothing of the node
		p.mu.Lock()
		p.rest.after(err)
		p.mu.Unlock()
	}
	if err == nil && len(replies) != len(batch) {
		err = fmt.Errorf("the driver returned %d replies to %d commands", len(replies), len(batch))
	}
	if err != nil {
		replies = make([]drivers.Reply, len(batch))
	}
	return replies, err
}

// punctual reports whether the driver keeps to a deadline unasked, now.
func (p *Pipeline) punctual() bool { return p.direct != nil && p.direct.Direct() }

// bounded returns the context of an exchange that may take as long as limit.
func (p *Pipeline) bounded(limit time.Duration) (context.Context, context.CancelFunc) {
	end := time.Now().Add(limit)
	if p.punctual() && !p.isClosing() {
		return &deadline{p.ctx, end}, func() {}
	}
	return context.WithDeadline(p.ctx, end)
}

// deadline is the context of an exchange with a driver that keeps to it unasked: it ends by time alone, and tells
// nobody. Close does not end it either, but Drain, which is called before, waits for as long as an exchange takes that
// began before the pipeline's closing was closed. One that begins later gets a context that Close ends. See
// drivers.Direct.
type deadline struct {
	context.Context // the pipeline's, for Value
	end             time.Time
}

func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }
func (d *deadline) Done() <-chan struct{}       { return nil }

func (d *deadline) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// Package pipeline carries the commands of many callers to one node through a driver: it gathers them in batches,
// bounds how long and how many at a time it waits for, and lets callers leave before the answer comes. It knows neither
// locks nor nodes.
package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

const (
	// maxSenders is how many batches are in flight at most, and so how many goroutines, and with most clients
	// connections, a node that hangs can occupy. It is more than one, so that one connection that went silent does not
	// stop the others.
	maxSenders = 4
	// MaxBatch bounds one round trip. A larger batch gains nothing more and makes its first reply late.
	MaxBatch = 128
	// maxPending bounds the commands that wait for a sender while the node does not answer.
	maxPending = 16 << 10
)

// ErrFull is why a command was refused that too many others were before.
var ErrFull = errors.New("too many commands wait for an answer")

// ErrClosed is why a command failed whose pipeline is being closed, or has been.
var ErrClosed = errors.New("the pipeline is closed")

// errClosedUnsent is ErrClosed of a command that was certainly not sent.
var errClosedUnsent = drivers.NotSent(ErrClosed)

// Pipeline sends the commands of all callers of a node. A command that finds a sender free goes out at once. Those that
// arrive while all senders are busy are sent together by the first that becomes free. All methods may be called
// concurrently.
type Pipeline struct {
	driver  drivers.Driver
	direct  drivers.Direct // driver, if it is one; else nil
	timeout time.Duration
	closing <-chan struct{}

	mu      sync.Mutex
	pending []*Call
	// sending is how many exchanges are in flight, at most maxSenders: those of senders and those of callers of Do.
	sending     int
	idleSenders []*sender
	closed      bool
	idle        chan struct{} // closed when sending is 0; nil unless Drain has asked
	rest        rest

	ctx    context.Context // of every exchange
	cancel context.CancelFunc
}

// New returns a Pipeline over d, which stays the caller's. timeout bounds one exchange with the driver. When closing is
// closed, callers of Do return ErrClosed; Submit goes on until Close.
func New(d drivers.Driver, timeout time.Duration, closing <-chan struct{}) *Pipeline {
	p := &Pipeline{driver: d, timeout: timeout, closing: closing}
	p.direct, _ = d.(drivers.Direct)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Submit sends c, which must not have been used before. Its outcome is known within the exchange's timeout of being
// sent; then notify is called, which must not block. A command that is refused is resolved at once, with an error that
// matches drivers.ErrNotSent.
func (p *Pipeline) Submit(c *Call, notify func()) {
	p.mu.Lock()
	c.notify = notify
	free, err := p.admit(c)
	switch {
	case err != nil:
		p.mu.Unlock()
		c.Refuse(err)
		notify()
		return
	case free:
		p.start(c)
	default:
		p.pending = append(p.pending, c)
	}
	p.mu.Unlock()
}

// admit refuses c, or takes one of the exchanges that may be in flight for it, if one is free. Call with mu held.
func (p *Pipeline) admit(c *Call) (free bool, err error) {
	switch {
	case p.closed:
		return false, ErrClosed
	case len(p.pending) >= maxPending:
		return false, ErrFull
	case !c.IsRelease && p.rest.refuses():
		return false, p.rest.reason
	case p.sending == maxSenders:
		return false, nil
	}
	p.sending++
	c.state = sent // as good as: the sender does nothing else first
	return true, nil
}

// take returns what is to be sent next by s, or by a caller of Do if s is nil, whose exchange has ended. If that is
// nothing, the exchange is free for others, and s is idle.
func (p *Pipeline) take(s *sender) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.pending), MaxBatch)
	if n == 0 {
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
	batch := slices.Clone(p.pending[:n])
	p.pending = slices.Delete(p.pending, 0, n)
	for _, c := range batch {
		c.state = sent
	}
	return batch
}

func (p *Pipeline) isClosing() bool {
	select {
	case <-p.closing:
		return true
	default:
		return false
	}
}

// Drain waits until no exchange is in flight, and so everybody has been told of what was sent. It reports false if ctx
// ended before.
func (p *Pipeline) Drain(ctx context.Context) bool {
	p.mu.Lock()
	if p.sending == 0 {
		p.mu.Unlock()
		return true
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close refuses further commands, drops those that wait, and interrupts exchanges in flight as far as the driver lets
// it.
func (p *Pipeline) Close() {
	p.mu.Lock()
	p.closed = true
	dropped, idle := p.pending, p.idleSenders
	p.pending, p.idleSenders = nil, nil
	p.mu.Unlock()
	for _, s := range idle {
		close(s.next)
	}
	for _, c := range dropped {
		p.resolve(c, nil, errClosedUnsent)
	}
	p.cancel()
}

// Closed is closed by Close. Callers need not wait any longer for exchanges that a driver does not let be interrupted.
func (p *Pipeline) Closed() <-chan struct{} { return p.ctx.Done() }

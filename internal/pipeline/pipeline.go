// Package pipeline carries the commands of many callers to one node through a driver. It gathers them in batches, and
// joins the usual cases of a batch in one call of a script. It bounds the number of batches in flight and the time that
// callers wait, and it lets callers leave before the reply arrives. What a command means is the business of package
// script and of the callers.
package pipeline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/drivers"
)

const (
	// maxSenders bounds the batches in flight, and so the goroutines, and with most clients the connections, that a
	// node that hangs can occupy. It is more than one, so that one silent connection does not stop the other commands.
	maxSenders = 4
	// MaxBatch bounds the commands of one round trip. A larger batch saves nothing more and delays its first reply.
	MaxBatch = 128
	// maxPending bounds the commands that wait for a sender while the node does not answer.
	maxPending = 16 << 10
)

// ErrFull is the error of a command that was refused because too many commands wait for a sender already.
var ErrFull = errors.New("too many commands wait for an answer")

// ErrClosed is the error of a command that was not answered before the pipeline was closed.
var ErrClosed = errors.New("the pipeline is closed")

// errClosedUnsent is ErrClosed for a command that was certainly not sent.
var errClosedUnsent = drivers.NotSent(ErrClosed)

// Pipeline sends the commands of all callers of a node. A command that finds a sender free goes out at once. Commands
// that arrive while all senders are busy are gathered, and the first sender that becomes free sends them as one batch.
// All methods may be called concurrently.
type Pipeline struct {
	// Unusual, if not nil, is called with the key of a lock when the server has answered that the case of a command is
	// not the usual one. It must not block. It must not be changed after the first call.
	Unusual func(lock string)

	driver  drivers.Driver
	direct  drivers.Direct // driver, if it implements Direct; else nil
	timeout time.Duration
	slots   atomic.Bool // only commands of one hash slot are joined

	abandoned atomic.Bool // set with mu held

	replicas Replicas

	mu      sync.Mutex
	pending []*Call
	// sending counts the exchanges in flight, of senders and of callers of Do. It is at most maxSenders.
	sending     int
	idleSenders []*sender
	closed      bool
	idle        chan struct{} // closed when sending is 0; nil unless Drain waits
	dialBackoff dialBackoff
	native      native
	callers     callers

	ctx    context.Context // the parent context of every exchange
	cancel context.CancelFunc
}

// New returns a Pipeline over d. It does not close d. The timeout bounds what is done for one batch of commands. After
// Abandon, callers of Do return ErrClosed. Submit works until Close is called. Over a drivers.Cluster, only commands of
// one hash slot are joined.
func New(d drivers.Driver, timeout time.Duration) *Pipeline {
	p := &Pipeline{driver: d, timeout: timeout}
	p.direct, _ = d.(drivers.Direct)
	_, spread := d.(drivers.Cluster)
	p.slots.Store(spread)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// KeepsSlots reports whether a command may use only one hash slot, because the server is a part of a Redis Cluster.
func (p *Pipeline) KeepsSlots() bool { return p.slots.Load() }

// Drain waits until no exchange is in flight. The outcome of every command that was sent is known then. It returns
// false if ctx ended before.
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

// Close refuses further commands and drops those that are pending. It interrupts the exchanges in flight, as far as the
// driver supports that.
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

// Closed returns a channel that Close closes. Then callers need not wait any longer for exchanges that the driver
// cannot interrupt.
func (p *Pipeline) Closed() <-chan struct{} { return p.ctx.Done() }

// Package pipeline carries the commands of many callers to one node through a driver. It gathers them in batches, and
// joins the usual cases of a batch in one call of a script. It bounds the number of batches in flight and the time that
// callers wait, and it lets callers leave before the reply arrives. What a command means is the business of package
// script and of the callers.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
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

// senderIdle is how long an idle sender waits for the next command before it ends. To start a goroutine, whose stack
// has to grow on its way through the client, costs more than the rest of this package does for a command.
const senderIdle = time.Second

// sender is a goroutine that sends the commands that callers do not send themselves. It ends when there has been
// nothing to send for senderIdle, so that an idle node has no senders.
type sender struct {
	next chan *Call // has room for one; closed by Close
}

// Submit sends c, which must not have been used before. It calls notify, which must not block and may be nil, when the
// outcome of c is known. That is within the timeout of an exchange after c was sent. A command that is refused is
// resolved at once, with an error that matches drivers.ErrNotSent.
func (p *Pipeline) Submit(c *Call, notify func()) {
	c.notify = notify
	p.mu.Lock()
	free, err := p.admit(c)
	if err != nil {
		p.mu.Unlock()
		p.resolve(c, nil, drivers.NotSent(err))
		return
	}
	defer p.mu.Unlock()
	if c.answered != nil {
		p.expect(c)
	}
	last := len(p.idleSenders) - 1
	switch {
	case !free:
		p.pending = append(p.pending, c)
	case last < 0:
		go p.run(c)
	default: // the sender that became idle last is furthest from its end
		s := p.idleSenders[last]
		p.idleSenders = p.idleSenders[:last]
		s.next <- c
	}
}

// admit refuses c with an error, or reserves one of maxSenders exchanges for it. It returns false without an error if
// all of them are in flight. Call with mu held.
func (p *Pipeline) admit(c *Call) (free bool, err error) {
	switch {
	case p.closed:
		return false, ErrClosed
	case len(p.pending) >= maxPending:
		return false, ErrFull
	case !c.IsRelease && p.dialBackoff.refuses():
		return false, p.dialBackoff.reason
	case p.sending == maxSenders:
		return false, nil
	}
	p.sending++
	c.state = sent // it is sent next
	return true, nil
}

// run is the goroutine of a sender, whose first command is c.
func (p *Pipeline) run(c *Call) {
	s := &sender{next: make(chan *Call, 1)}
	idle := time.NewTimer(senderIdle)
	defer idle.Stop()
	for c != nil {
		for batch := []*Call{c}; batch != nil; batch = p.take(s) {
			p.exchange(batch, p.timeout)
		}
		idle.Reset(senderIdle)
		select {
		case c = <-s.next:
		case <-idle.C:
			c = p.dismiss(s)
		}
	}
}

// take returns the next batch for s, whose exchange has ended. For a caller of Do, s is nil. If nothing is pending,
// take returns nil, ends the reservation of the exchange, and makes s idle.
func (p *Pipeline) take(s *sender) []*Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 {
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
	n := min(len(p.pending), MaxBatch)
	batch := slices.Clone(p.pending[:n])
	p.pending = slices.Delete(p.pending, 0, n)
	for _, c := range batch {
		c.state = sent
	}
	return batch
}

// dismiss ends s and returns nil. If Submit has just given s another call, dismiss returns that call instead.
func (p *Pipeline) dismiss(s *sender) *Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idleSenders, s); i >= 0 {
		p.idleSenders = slices.Delete(p.idleSenders, i, i+1)
		return nil
	}
	return <-s.next
}

// callers are those of Do that wait, each until a time of its own. A timer for each of them would cost more than
// all else that this package does for a call. So there is one timer, and it is rarely set: it rings at the earliest of
// those times, whether that caller still waits or not. Then all callers are looked at.
type callers struct {
	first *Call // the others follow in no order
	timer *time.Timer
	rings time.Time // zero: the timer is not set
}

// wake is why a caller of Do wakes.
type wake uint8

const (
	known     wake = iota // the outcome is known
	overdue               // its time is over
	abandoned             // Abandon was called
)

// expect makes c one of those that wait until c.until. Call with mu held.
func (p *Pipeline) expect(c *Call) {
	if p.abandoned.Load() {
		c.answered <- abandoned
		return
	}
	w := &p.callers
	if c.next = w.first; c.next != nil {
		c.next.previous = c
	}
	w.first = c
	if !w.rings.IsZero() && !c.until.Before(w.rings) {
		return
	}
	w.rings = c.until
	if left := time.Until(c.until); w.timer == nil {
		w.timer = time.AfterFunc(left, p.ring)
	} else {
		w.timer.Reset(left)
	}
}

// forget ends the wait of c, if it waits. Call with mu held.
func (p *Pipeline) forget(c *Call) {
	switch {
	case c.previous != nil:
		c.previous.next = c.next
	case p.callers.first == c:
		p.callers.first = c.next
	}
	if c.next != nil {
		c.next.previous = c.previous
	}
	c.previous, c.next = nil, nil
}

// ring wakes the callers whose time is over, and sets the timer for the next one.
func (p *Pipeline) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, now := &p.callers, time.Now()
	w.rings = time.Time{}
	for c := w.first; c != nil; {
		next := c.next
		switch {
		case !c.until.After(now):
			p.forget(c)
			c.answered <- overdue
		case w.rings.IsZero() || c.until.Before(w.rings):
			w.rings = c.until
		}
		c = next
	}
	if !w.rings.IsZero() {
		w.timer.Reset(w.rings.Sub(now))
	}
}

// Abandon makes callers of Do return ErrClosed, those that wait and those that come. Their commands go on. A caller
// that waits inside the driver returns when its exchange ends.
func (p *Pipeline) Abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.abandoned.Store(true)
	for c := p.callers.first; c != nil; c = p.callers.first {
		p.forget(c)
		c.answered <- abandoned
	}
}

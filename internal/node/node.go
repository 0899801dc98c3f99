// Package node turns one Redis node, reached through a driver, into the lock protocol: acquire, extend and release as
// atomic scripts, prompt return when a context ends, and the clean-up of attempts whose outcome is not known.
package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// counterKeep is how long a fencing counter outlives the last use of its lock. A counter that has expired starts anew
// from the server's clock, so it must outlive any step back of that clock: a day covers a machine that booted with the
// wrong time zone. See docs/adr/0003-fencing-counter.md. The scripts have it as a number; a test compares.
const counterKeep = 24 * time.Hour

// Options of a Node.
type Options struct {
	Name    string        // what errors call the node, such as its address
	Prefix  string        // put before every key
	Timeout time.Duration // bounds one exchange; 0: drivers.DefaultTimeout
	// Number, from 1, is the node's among those of a Redlock: part of the value of its locks, so that a server that is reached as
	// two nodes shows. 0: it decides alone.
	Number int
}

// Node is one Redis node. It is safe for concurrent use.
type Node struct {
	name    string
	prefix  string
	number  string // what the values of its locks end in; see alias.lua
	driver  drivers.Driver
	queue   *queue
	cleaner *cleaner
	inbox   *inbox

	closing chan struct{} // closed by Close: wakes whoever waits for an answer
	// calls are counted for Close, which waits for them between waking them and closing the queue, so that each has
	// handed over its clean-up by then.
	calls Calls
}

// New returns a Node that owns d.
func New(d drivers.Driver, o Options) *Node {
	if o.Timeout <= 0 {
		o.Timeout = drivers.DefaultTimeout
	}
	q := newQueue(d, o.Timeout)
	closing := make(chan struct{})
	number := ""
	if o.Number > 0 {
		number = "|" + strconv.Itoa(o.Number)
	}
	return &Node{
		name:    o.Name,
		prefix:  o.Prefix,
		number:  number,
		driver:  d,
		queue:   q,
		cleaner: &cleaner{queue: q, closing: closing},
		inbox:   newInbox(d, q, o.Prefix+"inbox:"+locker.NewToken()),
		closing: closing,
	}
}

// Check returns an error that matches locker.ErrInvalid if key cannot be locked, because it is a name that another lock's counter may have.
func (n *Node) Check(key string) error {
	if !strings.Contains(key, "{") && !strings.Contains(n.prefix, "{") {
		return nil // the usual case: nothing that belongs to a lock is called like that
	}
	return reserved(n.prefix + key)
}

// Acquire is the node's part of locker.Backend.Acquire, with the same rules, for a node that decides alone.
func (n *Node) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	n.calls.Enter()
	defer n.calls.Leave()
	if err := n.Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	if n.cleaner.full() {
		return locker.Grant{}, n.fault(errFull)
	}
	a := attempt{Call: Call{node: n}, req: req}
	a.acquire(&req, Acquisition{Quantum: 1})
	if err := n.do(ctx, &a.Call, req.TTL, &a); err != nil {
		if !isNotSent(err) {
			a.undo(false)
		}
		return locker.Grant{}, n.fault(err)
	}
	v := a.Vote()
	if v.Doubtful {
		a.undo(false)
	}
	if v.Granted && n.closed() { // too late to be released by the caller
		a.undo(true)
		return locker.Grant{}, locker.ErrClosed
	}
	return locker.Grant{Fence: v.Counter}, v.Err
}

// attempt is one acquisition of a node that decides alone.
type attempt struct {
	Call
	req locker.Request
}

func (a *attempt) undo(landed bool) { a.node.cleaner.add(a.node.undoing(&a.req, landed, wakesPolls)) }

// Late is for a caller that has left: the attempt was given up at once, with a tombstone. If it succeeded nevertheless (it
// was executed first, or so late that the tombstone was gone), that is known only now.
func (a *attempt) Late(c *Call) {
	if c.Vote().Granted {
		a.undo(true)
	}
}

func (n *Node) closed() bool {
	select {
	case <-n.closing:
		return true
	default:
		return false
	}
}

// Extend is the node's part of locker.Backend.Extend, with the same rules.
func (n *Node) Extend(ctx context.Context, req locker.Request) error {
	n.calls.Enter()
	defer n.calls.Leave()
	c := &Call{node: n}
	c.extend(&req)
	if err := n.do(ctx, c, req.TTL, nil); err != nil {
		return n.fault(err)
	}
	return c.Owned()
}

// Release is the node's part of locker.Backend.Release, with the same rules. It tells those who called Notify.
func (n *Node) Release(ctx context.Context, req locker.Request) error {
	n.calls.Enter()
	defer n.calls.Leave()
	return n.release(ctx, &Call{node: n}, &req, true, wakesPolls)
}

func (n *Node) release(ctx context.Context, c *Call, req *locker.Request, landed bool, w wakes) error {
	var until time.Time
	if req.Keep > 0 {
		until = time.Now().Add(req.Keep)
	}
	later := func() {
		c := n.undoing(req, landed, w)
		c.keep = until
		n.cleaner.add(c)
	}
	c.release(req, tombstoneOf(req, landed), w, "")
	if end, ok := ctx.Deadline(); ok && req.Uncancelled {
		ctx = &deadline{ctx, end}
	}
	if err := n.do(ctx, c, n.queue.timeout, nil); err != nil {
		later()
		return n.fault(err)
	}
	err := c.Owned()
	if r, _ := c.reply.(int64); r&again != 0 || err != nil && !errors.Is(err, locker.ErrNotHeld) {
		later()
	}
	return err
}

// Notify implements locker.Notifier: Release tells who waits.
func (n *Node) Notify(key string, wake func()) (live func() bool, stop func()) {
	k := keysOf(n.prefix + key)
	channel := k.free()
	n.inbox.follow(channel, func(bool) { wake() })
	return func() bool { return n.inbox.live(channel) }, func() { n.inbox.ignore(channel) }
}

var errNoAnswer = errors.New("no answer yet")

// do sends c and waits for its outcome until ctx ends, the node is closed, or limit has passed. nil means that the outcome
// is known. An error matches drivers.ErrNotSent if the command was certainly not sent; otherwise l, if not nil, learns the
// outcome.
//
// A caller whom only time can call away needs no other goroutine to wait for it, if the driver keeps to deadlines; see
// docs/adr/0017-who-cannot-leave-waits-in-the-driver.md.
func (n *Node) do(ctx context.Context, c *Call, limit time.Duration, l Latecomer) error {
	if n.closed() {
		return errClosedUnsent
	}
	limit = min(limit, n.queue.timeout)
	if ctx.Done() == nil {
		if end, ok := ctx.Deadline(); ok {
			limit = min(limit, time.Until(end))
		}
		if limit > 0 && n.queue.punctual() {
			switch sent, err := n.queue.inline(c, limit); {
			case err != nil:
				return drivers.NotSent(err)
			case sent:
				return nil
			}
		}
	}
	ready := make(chan *Call, 1)
	c.ready = ready
	if err := n.queue.submit(c); err != nil {
		return drivers.NotSent(err)
	}
	return n.wait(ctx, c, ready, limit, l)
}

// wait waits for c to come through ready.
func (n *Node) wait(ctx context.Context, c *Call, ready <-chan *Call, limit time.Duration, l Latecomer) error {
	// The driver is asked to keep to the timeout too, but may not be able to, and the command may wait for others.
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		err = errNoAnswer
	case <-timer.C:
		err = fmt.Errorf("no answer within %v", limit.Round(time.Millisecond))
	case <-n.closing:
		err = locker.ErrClosed
	}
	switch wasSent, done := c.Leave(l); {
	case done:
		return nil
	case wasSent:
		return err
	default:
		return drivers.NotSent(err)
	}
}

// Close ends the node: calls return locker.ErrClosed, clean-ups that are due get one more try, and the driver is closed.
// It takes no longer than one exchange's timeout and a second, and another timeout if callers wait inside the driver, who
// cannot be woken: what they leave behind gets its try, too. An error says that the client under the driver neither
// let a command be interrupted nor belongs to the driver; the command's goroutine ends with the client's own timeout.
func (n *Node) Close() error {
	close(n.closing)
	n.calls.Wait() // those that wait inside the driver take until their own timeout
	ctx, cancel := context.WithTimeout(context.Background(), n.queue.timeout)
	defer cancel()
	n.inbox.close(ctx)
	n.queue.drain(ctx) // what is under way may still have to be undone
	n.cleaner.wait(ctx)
	n.queue.close()
	n.queue.cancel()
	err := n.driver.Close() // interrupts what ignores its context, if the client is the driver's own
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.cleaner.wait(ctx)
	if !n.queue.drain(ctx) {
		err = errors.Join(err, errors.New("a command is still in flight and the Redis client does not let it be interrupted"))
	}
	return err
}

// await waits for ch until ctx ends, and reports which it was.
func await(ctx context.Context, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// fault adds the node's name to what went wrong, and that the store is unavailable unless err says something else.
func (n *Node) fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, locker.ErrHeld), errors.Is(err, locker.ErrNotHeld), errors.Is(err, locker.ErrForeignKey),
		errors.Is(err, locker.ErrInvalid), errors.Is(err, locker.ErrClosed), errors.Is(err, locker.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, err})
}

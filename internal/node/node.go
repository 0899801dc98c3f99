// Package node turns one Redis node, reached through a driver, into the lock protocol: acquire, extend and release as
// atomic scripts, prompt return when a context ends, and the clean-up of attempts whose outcome is not known.
package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
}

// Node is one Redis node. It is safe for concurrent use.
type Node struct {
	name    string
	prefix  string
	driver  drivers.Driver
	queue   *queue
	cleaner *cleaner
	inbox   *inbox

	closing chan struct{} // closed by Close: wakes whoever waits for an answer
	// calls is held for reading by every call, and for writing by Close between waking them and closing the queue, so
	// that each has handed over its clean-up by then.
	calls sync.RWMutex
}

// New returns a Node that owns d.
func New(d drivers.Driver, o Options) *Node {
	if o.Timeout <= 0 {
		o.Timeout = drivers.DefaultTimeout
	}
	q := newQueue(d, o.Timeout)
	closing := make(chan struct{})
	return &Node{
		name:    o.Name,
		prefix:  o.Prefix,
		driver:  d,
		queue:   q,
		cleaner: &cleaner{queue: q, closing: closing},
		inbox:   newInbox(d, q, o.Prefix+"inbox:"+locker.NewToken()),
		closing: closing,
	}
}

// Check returns an error if key cannot be locked, because it is a name that another lock's counter may have.
func (n *Node) Check(key string) error { return reserved(n.prefix + key) }

// Acquire is the node's part of locker.Backend.Acquire, with the same rules, for a node that decides alone.
func (n *Node) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	n.calls.RLock()
	defer n.calls.RUnlock()
	if err := n.Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	undo := func(landed bool) { n.cleaner.add(n.undoing(&req, landed, wakesPolls)) }
	ready := make(chan *Call, 1)
	c := n.StartAcquire(ready, 0, &req, Acquisition{Quantum: 1})
	if err := n.wait(ctx, c, ready, req.TTL, func(c *Call) {
		// The caller has left and the attempt was given up at once, with a tombstone. If it succeeded nevertheless
		// (it was executed first, or so late that the tombstone was gone), that is known only now.
		if c.Vote().Granted {
			undo(true)
		}
	}); err != nil {
		if !isNotSent(err) {
			undo(false)
		}
		return locker.Grant{}, n.fault(err)
	}
	v := c.Vote()
	if v.Doubtful {
		undo(false)
	}
	if v.Granted && n.closed() { // too late to be released by the caller
		undo(true)
		return locker.Grant{}, locker.ErrClosed
	}
	return locker.Grant{Fence: v.Counter}, v.Err
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
	n.calls.RLock()
	defer n.calls.RUnlock()
	ready := make(chan *Call, 1)
	c := n.StartExtend(ready, 0, &req)
	if err := n.wait(ctx, c, ready, req.TTL, nil); err != nil {
		return n.fault(err)
	}
	return c.Owned()
}

// Release is the node's part of locker.Backend.Release, with the same rules. It tells those who called Notify.
func (n *Node) Release(ctx context.Context, req locker.Request) error {
	n.calls.RLock()
	defer n.calls.RUnlock()
	return n.release(ctx, req.Fence, n.undoing(&req, true, wakesPolls))
}

func (n *Node) release(ctx context.Context, fence uint64, c cleanup) error {
	ready := make(chan *Call, 1)
	script, cmd := c.command(decimal(fence))
	call := n.start(ready, 0, script, cmd)
	err := n.wait(ctx, call, ready, n.queue.timeout, nil)
	if err != nil {
		n.cleaner.add(c)
		return n.fault(err)
	}
	err = call.Owned()
	if r, _ := call.reply.(int64); r&again != 0 || err != nil && !errors.Is(err, locker.ErrNotHeld) {
		n.cleaner.add(c)
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

// wait waits for c until ctx ends, the node is closed, or limit has passed. nil means that the outcome is known. An
// error matches drivers.ErrNotSent if the command was certainly not sent; otherwise late learns the outcome.
func (n *Node) wait(ctx context.Context, c *Call, ready <-chan *Call, limit time.Duration, late func(*Call)) error {
	// The driver is asked to keep to the timeout too, but may not be able to, and the command may wait for others.
	limit = min(limit, n.queue.timeout)
	t := time.NewTimer(limit)
	defer t.Stop()
	var err error
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		err = errNoAnswer
	case <-t.C:
		err = fmt.Errorf("no answer within %v", limit)
	case <-n.closing:
		err = locker.ErrClosed
	}
	wasSent, done := c.Leave(late)
	switch {
	case done:
		return nil
	case wasSent:
		return err
	default:
		return drivers.NotSent(err)
	}
}

// Close ends the node: calls return locker.ErrClosed, clean-ups that are due get one more try, and the driver is closed.
// It takes no longer than one exchange's timeout and a second. An error says that the client under the driver neither
// let a command be interrupted nor belongs to the driver; the command's goroutine ends with the client's own timeout.
func (n *Node) Close() error {
	close(n.closing)
	n.calls.Lock()
	n.calls.Unlock() //nolint:staticcheck // an empty critical section waits for all calls to have left
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
		errors.Is(err, locker.ErrClosed), errors.Is(err, locker.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, err})
}

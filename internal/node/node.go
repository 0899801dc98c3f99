// Package node turns one Redis node, reached through a driver, into the lock protocol: acquire, extend and release as
// atomic scripts, prompt return when a context ends, and the clean-up of attempts whose outcome is not known.
package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// Options of a Node.
type Options struct {
	Name    string        // what errors call the node, such as its address
	Prefix  string        // put before every key
	Timeout time.Duration // bounds one exchange; 0: drivers.DefaultTimeout
	// Number, from 1, is the node's among those of a Redlock: part of the value of its locks, so that a server that is
	// reached as two nodes shows. 0: it decides alone.
	Number int
}

// Node is one Redis node. It is safe for concurrent use.
type Node struct {
	name     string
	prefix   string
	number   int // of Options
	driver   drivers.Driver
	timeout  time.Duration // of one exchange
	pipeline *pipeline.Pipeline
	cleaner  *cleaner
	inbox    *inbox

	closing chan struct{} // closed by Close: wakes whoever waits for an answer
	// calls are counted for Close, which waits for them between waking them and closing the pipeline, so that each has
	// handed over its clean-up by then.
	calls Calls
}

// New returns a Node that owns d.
func New(d drivers.Driver, o Options) *Node {
	if o.Timeout <= 0 {
		o.Timeout = drivers.DefaultTimeout
	}
	closing := make(chan struct{})
	p := pipeline.New(d, o.Timeout, closing)
	return &Node{
		name:     o.Name,
		prefix:   o.Prefix,
		number:   o.Number,
		driver:   d,
		timeout:  o.Timeout,
		pipeline: p,
		cleaner:  &cleaner{pipeline: p, closing: closing},
		inbox:    newInbox(d, p, o.Timeout, o.Prefix+"inbox:"+locker.NewToken()),
		closing:  closing,
	}
}

// Check returns an error that matches locker.ErrInvalid if key cannot be locked, because it is a name that another
// lock's counter may have.
func (n *Node) Check(key string) error {
	if ending, reserved := script.Reserved(n.prefix + key); reserved {
		return fmt.Errorf("%w: keys with a {hash tag} that end in %q are reserved for what belongs to a lock",
			locker.ErrInvalid, ending)
	}
	return nil
}

// Acquire is the node's part of locker.Backend.Acquire, with the same rules, for a node that decides alone.
func (n *Node) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	n.calls.Enter()
	defer n.calls.Leave()
	if err := n.Check(req.Key); err != nil {
		return locker.Grant{}, err
	}
	if n.cleaner.full() {
		return locker.Grant{}, n.fault(pipeline.ErrFull)
	}
	undo := func(landed bool) { n.cleaner.add(n.undoing(&req, landed, script.NotifySubscribers)) }
	// If the caller leaves, the attempt is given up at once, with a tombstone. If it succeeds nevertheless (it was
	// executed first, or so late that the tombstone was gone), that is known only later.
	late := func(reply drivers.Reply, err error) {
		if n.vote(reply, err).Granted {
			undo(true)
		}
	}
	v := n.vote(n.do(ctx, n.attempt(&req).Acquire(req.TTL, 1, 0), req.TTL, late))
	if v.Doubtful {
		undo(false)
	}
	if v.Granted && n.closed() { // too late to be released by the caller
		undo(true)
		return locker.Grant{}, locker.ErrClosed
	}
	return locker.Grant{Fence: v.Counter}, v.Err
}

// attempt names what the commands of the attempt of req are about.
func (n *Node) attempt(req *locker.Request) script.Attempt {
	return script.Attempt{Keys: n.keys(req.Key), Token: req.Token, Node: n.number}
}

func (n *Node) keys(key string) script.Keys { return script.KeysOf(n.prefix + key) }

// do sends a command and waits for the reply, as [pipeline.Pipeline.Do] does.
func (n *Node) do(
	ctx context.Context, cmd script.Command, limit time.Duration, late func(drivers.Reply, error),
) (drivers.Reply, error) {
	return n.pipeline.Do(ctx, pipeline.Command(cmd), limit, late)
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
	return n.owned(n.do(ctx, n.attempt(&req).Extend(req.TTL, req.Fence), req.TTL, nil))
}

// Release is the node's part of locker.Backend.Release, with the same rules. It tells those who called Notify.
func (n *Node) Release(ctx context.Context, req locker.Request) error {
	n.calls.Enter()
	defer n.calls.Leave()
	return n.release(ctx, &req, true, script.NotifySubscribers)
}

// release sends a release, and goes on in the background if it was not answered, or not finished.
func (n *Node) release(ctx context.Context, req *locker.Request, landed bool, notify script.Notify) error {
	r := n.releaseOf(req, landed, notify)
	later := undoing(r, req)
	limit := n.timeout
	if end, ok := ctx.Deadline(); ok && req.Uncancelled {
		ctx, limit = context.WithoutCancel(ctx), min(limit, time.Until(end))
	}
	reply, err := n.do(ctx, r.Command(), limit, nil)
	err = n.owned(reply, err)
	if o, _ := script.ReadOwned(reply); o.Unfinished || err != nil && !errors.Is(err, locker.ErrNotHeld) {
		n.cleaner.add(later)
	}
	return err
}

// Notify implements locker.Notifier: Release tells who waits.
func (n *Node) Notify(key string, wake func()) (live func() bool, stop func()) {
	channel := n.keys(key).Free()
	n.inbox.follow(channel, func(bool) { wake() })
	return func() bool { return n.inbox.live(channel) }, func() { n.inbox.ignore(channel) }
}

// Close ends the node: calls return locker.ErrClosed, clean-ups that are due get one more try, and the driver is
// closed. It takes no longer than one exchange's timeout and a second, and another timeout if callers wait inside the
// driver, who cannot be woken: what they leave behind gets its try, too. An error says that the client under the driver
// neither let a command be interrupted nor belongs to the driver; the command's goroutine ends with the client's own
// timeout.
func (n *Node) Close() error {
	close(n.closing)
	n.calls.Wait() // those that wait inside the driver take until their own timeout
	ctx, cancel := context.WithTimeout(context.Background(), n.timeout)
	defer cancel()
	n.inbox.close(ctx)
	n.pipeline.Drain(ctx) // what is under way may still have to be undone
	n.cleaner.wait(ctx)
	n.pipeline.Close()
	err := n.driver.Close() // interrupts what ignores its context, if the client is the driver's own
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.cleaner.wait(ctx)
	if !n.pipeline.Drain(ctx) {
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
	case errors.Is(err, pipeline.ErrClosed):
		return locker.ErrClosed
	case errors.Is(err, locker.ErrHeld), errors.Is(err, locker.ErrNotHeld), errors.Is(err, locker.ErrForeignKey),
		errors.Is(err, locker.ErrInvalid), errors.Is(err, locker.ErrClosed), errors.Is(err, locker.ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, err})
}

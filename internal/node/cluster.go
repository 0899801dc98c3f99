package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/script"
)

// groups is into how many the slots of a cluster are divided, neighbours together, for that is how servers have them.
// More would keep apart what is on the same server nearly always; and what a group has is kept, a kilobyte or so.
const groups = 1024

// Cluster is a store that consists of several servers, behind one driver. It is a Node for each group of slots: what is
// queued, refused because a server cannot be connected to, or to be undone, is so for that group alone. With one Node
// for all, a server that is down would end the leases on those that are in order, because their renewals would not be
// sent either.
type Cluster struct {
	driver  drivers.Driver
	options Options
	nodes   [groups]atomic.Pointer[Node]

	mu      sync.Mutex // to make Nodes
	closed  bool
	closing sync.WaitGroup // Nodes that have to do with the driver yet
}

// NewCluster returns a Cluster that owns d.
func NewCluster(d drivers.Spread, o Options) *Cluster { return &Cluster{driver: d, options: o} }

// of returns the Node that has key.
func (c *Cluster) of(key string) *Node {
	place := &c.nodes[script.Slot(c.options.Prefix+key)/(script.Slots/groups)]
	if n := place.Load(); n != nil {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := place.Load(); n != nil {
		return n
	}
	if c.closed {
		n := New(part{c.driver, func() error { return nil }}, c.options)
		_ = n.Close()
		return n
	}
	c.closing.Add(1)
	n := New(part{c.driver, c.close}, c.options)
	place.Store(n)
	return n
}

// part is the driver, for one of many.
type part struct {
	drivers.Driver
	close func() error
}

func (p part) Close() error { return p.close() }

// Direct implements drivers.Direct.
func (p part) Direct() bool {
	d, ok := p.Driver.(drivers.Direct)
	return ok && d.Direct()
}

// close is what a Node that is closed does instead of closing the driver: it waits until all others are as far.
func (c *Cluster) close() error {
	c.closing.Done()
	c.closing.Wait()
	return c.driver.Close()
}

// Acquire implements locker.Backend.
func (c *Cluster) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return c.of(req.Key).Acquire(ctx, req)
}

// Extend implements locker.Backend.
func (c *Cluster) Extend(ctx context.Context, req locker.Request) error {
	return c.of(req.Key).Extend(ctx, req)
}

// Release implements locker.Backend.
func (c *Cluster) Release(ctx context.Context, req locker.Request) error {
	return c.of(req.Key).Release(ctx, req)
}

// Inspect implements inspect.Inspector.
func (c *Cluster) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	return c.of(key).Inspect(ctx, key)
}

// ForceRelease implements inspect.Inspector.
func (c *Cluster) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	return c.of(key).ForceRelease(ctx, key, owner)
}

// Close closes all Nodes at once, and then the driver.
func (c *Cluster) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	var errs [groups + 1]error
	var wg sync.WaitGroup
	for i := range c.nodes {
		if n := c.nodes[i].Load(); n != nil {
			wg.Go(func() { errs[i] = n.Close() })
		}
	}
	wg.Wait()
	errs[groups] = c.driver.Close()
	var err error
	told := map[string]bool{} // what is wrong with the driver is wrong for every group
	for _, e := range errs {
		if e != nil && !told[e.Error()] {
			told[e.Error()] = true
			err = errors.Join(err, e)
		}
	}
	return err
}

// QueuedCluster is to a Cluster what QueuedNode is to a Node.
type QueuedCluster struct{ *Cluster }

// Acquire implements locker.Backend.
func (c QueuedCluster) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return QueuedNode{c.of(req.Key)}.Acquire(ctx, req)
}

// Queue implements locker.Queuer.
func (c QueuedCluster) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return QueuedNode{c.of(req.Key)}.Queue(ctx, req)
}

// Release implements locker.Backend.
func (c QueuedCluster) Release(ctx context.Context, req locker.Request) error {
	return QueuedNode{c.of(req.Key)}.Release(ctx, req)
}

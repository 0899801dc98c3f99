package node

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
)

// groups is the number of groups that the slots of a cluster are divided into. A group consists of neighbouring slots,
// because servers usually have ranges of slots. More groups would separate slots that are nearly always on the same
// server, and the Node of a group, about a kilobyte, is kept until Close.
const groups = 1024

// Cluster is a store of several servers behind one driver. It has a Node for each group of slots. So each group has its
// own pending commands, its own backoff after a failed dial, and its own clean-ups. With one Node for all slots, a
// server that is down would end leases on the other servers, because their renewals would not be sent either.
type Cluster struct {
	driver  drivers.Driver
	options Options
	nodes   [groups]atomic.Pointer[Node]

	mu      sync.Mutex // guards the making of Nodes
	closed  bool
	closing sync.WaitGroup // counts the Nodes that still use the driver
}

// NewCluster returns a Cluster that owns d.
func NewCluster(d drivers.Cluster, o Options) *Cluster {
	o.shards = make(chan struct{}, maxShards)
	return &Cluster{driver: d, options: o}
}

// of returns the Node for key.
func (c *Cluster) of(key string) *Node {
	entry := &c.nodes[script.Slot(c.options.Prefix+key)/(script.Slots/groups)]
	if n := entry.Load(); n != nil {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := entry.Load(); n != nil {
		return n
	}
	if c.closed {
		n := New(part{c.driver, func() error { return nil }}, c.options)
		_ = n.Close()
		return n
	}
	c.closing.Add(1)
	n := New(part{c.driver, c.close}, c.options)
	entry.Store(n)
	return n
}

// part is the driver as one of several Nodes sees it.
type part struct {
	drivers.Driver
	close func() error
}

func (p part) Close() error { return p.close() }

// Cluster implements drivers.Cluster. Even the slots of one group may be on several servers.
func (p part) Cluster() {}

// Direct implements drivers.Direct.
func (p part) Direct() bool {
	d, ok := p.Driver.(drivers.Direct)
	return ok && d.Direct()
}

// A Node calls close instead of Close of the driver. close waits until all Nodes have called it, and then closes the
// driver.
func (c *Cluster) close() error {
	c.closing.Done()
	c.closing.Wait()
	return c.driver.Close()
}

// Acquire implements backend.Backend.
func (c *Cluster) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return c.of(req.Key).Acquire(ctx, req)
}

// Queue implements backend.Queuer.
func (c *Cluster) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	return c.of(req.Key).Queue(ctx, req, wait)
}

// Extend implements backend.Backend.
func (c *Cluster) Extend(ctx context.Context, req backend.Request) error {
	return c.of(req.Key).Extend(ctx, req)
}

// Capabilities implements backend.Capable.
func (c *Cluster) Capabilities() backend.Capabilities { return capabilities }

// Release implements backend.Backend.
func (c *Cluster) Release(ctx context.Context, req backend.Request) error {
	return c.of(req.Key).Release(ctx, req)
}

// Export implements backend.Exporter.
func (c *Cluster) Export(ctx context.Context, req backend.Request, to string) error {
	return c.of(req.Key).Export(ctx, req, to)
}

// Resume implements backend.Exporter.
func (c *Cluster) Resume(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
	return c.of(req.Key).Resume(ctx, req, from)
}

// Verify implements backend.Verifier.
func (c *Cluster) Verify(ctx context.Context, req backend.Request) error {
	return c.of(req.Key).Verify(ctx, req)
}

// AcquireMany implements backend.ManyAcquirer.
func (c *Cluster) AcquireMany(
	ctx context.Context, reqs []backend.Request, choice backend.Choice,
) ([]*backend.Grant, error) {
	return c.of(reqs[0].Key).AcquireMany(ctx, reqs, choice)
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
	told := map[string]bool{} // an error of the driver is the same for every group
	for _, e := range errs {
		if e != nil && !told[e.Error()] {
			told[e.Error()] = true
			err = errors.Join(err, e)
		}
	}
	return err
}

// Bootstrap does for all slots of the cluster what [Node.Bootstrap] does for a node. It stops at the first error.
func (c *Cluster) Bootstrap(ctx context.Context) error {
	n := New(Lend(c.driver), c.options)
	defer func() { _ = CloseWithin(ctx, n) }()
	return eachSlot(ctx, n.trust)
}

// RaiseFences implements inspect.FenceRaiser.
func (c *Cluster) RaiseFences(ctx context.Context, past uint64) error {
	n := New(Lend(c.driver), c.options)
	defer func() { _ = CloseWithin(ctx, n) }()
	return n.RaiseFences(ctx, past)
}

// eachSlot calls f for each hash slot, and stops at the first error.
func eachSlot(ctx context.Context, f func(ctx context.Context, slot uint16) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	const callers = 4 * pipeline.MaxBatch // as many as the pipeline sends at once
	for i := range callers {
		wg.Go(func() {
			for slot := i; slot < script.Slots && ctx.Err() == nil; slot += callers {
				if err := f(ctx, uint16(slot)); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// CloseWithin calls the Close of what a bootstrap has used, and returns when ctx ends, if not before. The server may be
// silent, and the driver belongs to the caller. So nothing interrupts the command in flight, and Close then ends in the
// background, with the timeout of that command.
func CloseWithin(ctx context.Context, c io.Closer) error {
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return nil // the bootstrap has failed for the same reason
	}
}

// Lend returns d as a driver that a Node can own without closing d.
func Lend(d drivers.Driver) drivers.Driver {
	if _, ok := d.(drivers.Cluster); ok {
		return part{d, func() error { return nil }}
	}
	return lent{d}
}

type lent struct{ drivers.Driver }

func (lent) Close() error { return nil }

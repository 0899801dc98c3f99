package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// groups is into how many the slots of a cluster are divided, neighbours together, for that is how servers have them. More would
// keep apart what is on the same server nearly always; and what a group has is kept, a kilobyte or so.
const groups = 1024

// Spread is a store that consists of several servers, behind one driver. It is a Node for each group of slots: what is queued,
// refused because a server cannot be connected to, or to be undone, is so for that group alone. With one Node for all, a server
// that is down would end the leases on those that are in order, because their renewals would not be sent either.
type Spread struct {
	driver  drivers.Driver
	options Options
	nodes   [groups]atomic.Pointer[Node]

	mu      sync.Mutex // to make Nodes
	closed  bool
	closing sync.WaitGroup // Nodes that have to do with the driver yet
}

// NewSpread returns a Spread that owns d.
func NewSpread(d drivers.Spread, o Options) *Spread { return &Spread{driver: d, options: o} }

// of returns the Node that has key.
func (s *Spread) of(key string) *Node {
	place := &s.nodes[slot(s.options.Prefix+key)/(slots/groups)]
	if n := place.Load(); n != nil {
		return n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := place.Load(); n != nil {
		return n
	}
	if s.closed {
		n := New(part{s.driver, func() error { return nil }}, s.options)
		_ = n.Close()
		return n
	}
	s.closing.Add(1)
	n := New(part{s.driver, s.close}, s.options)
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
func (s *Spread) close() error {
	s.closing.Done()
	s.closing.Wait()
	return s.driver.Close()
}

// Acquire implements locker.Backend.
func (s *Spread) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return s.of(req.Key).Acquire(ctx, req)
}

// Extend implements locker.Backend.
func (s *Spread) Extend(ctx context.Context, req locker.Request) error {
	return s.of(req.Key).Extend(ctx, req)
}

// Release implements locker.Backend.
func (s *Spread) Release(ctx context.Context, req locker.Request) error {
	return s.of(req.Key).Release(ctx, req)
}

// Inspect implements locker.Inspector.
func (s *Spread) Inspect(ctx context.Context, key string) (locker.Inspection, error) {
	return s.of(key).Inspect(ctx, key)
}

// ForceRelease implements locker.Inspector.
func (s *Spread) ForceRelease(ctx context.Context, key, owner string) (locker.Inspection, error) {
	return s.of(key).ForceRelease(ctx, key, owner)
}

// Close closes all Nodes at once, and then the driver.
func (s *Spread) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var errs [groups + 1]error
	var wg sync.WaitGroup
	for i := range s.nodes {
		if n := s.nodes[i].Load(); n != nil {
			wg.Go(func() { errs[i] = n.Close() })
		}
	}
	wg.Wait()
	errs[groups] = s.driver.Close()
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

// SpreadFIFO is to a Spread what FIFO is to a Node.
type SpreadFIFO struct{ *Spread }

// Acquire implements locker.Backend.
func (s SpreadFIFO) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return FIFO{s.of(req.Key)}.Acquire(ctx, req)
}

// Queue implements locker.Queuer.
func (s SpreadFIFO) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return FIFO{s.of(req.Key)}.Queue(ctx, req)
}

// Release implements locker.Backend.
func (s SpreadFIFO) Release(ctx context.Context, req locker.Request) error {
	return FIFO{s.of(req.Key)}.Release(ctx, req)
}

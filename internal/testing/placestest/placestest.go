// Package placestest has the stores on which packages semaphore and rwlock are tested in virtual time. A store acquires
// some of several locks in one step, or one lock at a time, or has no queue either.
package placestest

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// World is what a test runs in: a store, and Clients that share it.
type World struct {
	*testing.T
	Calls  *Calls
	Steps  bool // the store acquires some of several locks in one step
	Queues bool // the store serves waiting callers in the order of their arrival
	store  locker.Backend
}

// Each runs f in virtual time for each kind of store.
func Each(t *testing.T, f func(w *World)) {
	for _, kind := range []string{"in one step", "one by one", "by polling"} {
		t.Run(kind, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				c := &Calls{Backend: memory.NewBackend(), calls: map[string]int{}}
				w := &World{T: t, Calls: c, Queues: true}
				switch kind {
				case "in one step":
					w.store, w.Steps = c, true
				case "one by one":
					w.store = single{c}
				default:
					w.store, w.Queues = poller{c}, false
				}
				f(w)
			})
		})
	}
}

// Client returns a new Client of the store, which stands for a process.
func (w *World) Client() *locker.Client {
	c := locker.NewClient(w.store)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// Context returns a context for a call. It ends the calls of callers that wait for each other.
func (w *World) Context() context.Context {
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*time.Minute)
	w.Cleanup(cancel)
	return ctx
}

// Lock acquires key, and panics if the context of the call ends. With Fatal, only one goroutine would end, and others
// may wait for its lease.
func (w *World) Lock(l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	w.Helper()
	lease, err := l.Lock(w.Context(), key, opts...)
	if errors.Is(err, context.DeadlineExceeded) {
		panic(err)
	}
	if err != nil {
		w.Fatal(err) // perhaps because the test has failed
	}
	return lease
}

// Unlock releases leases.
func (w *World) Unlock(leases ...locker.Lease) {
	w.Helper()
	for _, l := range leases {
		if err := l.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	}
}

// Settle waits until what is given back in the background is back.
func (w *World) Settle() { time.Sleep(time.Second) }

// Free fails the test unless nobody has one of the locks.
func (w *World) Free(locks ...string) {
	w.Helper()
	for _, name := range locks {
		lease, err := w.Client().TryLock(w.Context(), name)
		if err != nil {
			w.Errorf("left behind: %v", err)
			continue
		}
		w.Unlock(lease)
	}
}

// Calls is a store in memory that counts the calls that acquire or release.
type Calls struct {
	*memory.Backend
	mu    sync.Mutex
	calls map[string]int
	delay time.Duration
	fault error
}

// Delay makes each call take d.
func (c *Calls) Delay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// Fail makes each call that acquires return err after a second. nil ends that.
func (c *Calls) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
}

// Took returns the calls since it was called last, by their names.
func (c *Calls) Took() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := maps.Clone(c.calls)
	clear(c.calls)
	return calls
}

func (c *Calls) count(call string) error {
	c.mu.Lock()
	c.calls[call]++
	delay, fault := c.delay, c.fault
	c.mu.Unlock()
	if fault != nil {
		delay += time.Second
	}
	time.Sleep(delay)
	return fault
}

// Acquire implements [locker.Backend].
func (c *Calls) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := c.count("Acquire"); err != nil {
		return locker.Grant{}, err
	}
	return c.Backend.Acquire(ctx, req)
}

// Queue implements [locker.Queuer].
func (c *Calls) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := c.count("Queue"); err != nil {
		return locker.Grant{}, err
	}
	return c.Backend.Queue(ctx, req)
}

// AcquireMany implements [locker.ManyAcquirer].
func (c *Calls) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	if err := c.count("AcquireMany"); err != nil {
		return nil, err
	}
	return c.Backend.AcquireMany(ctx, reqs)
}

// AcquireSome implements [locker.SomeAcquirer].
func (c *Calls) AcquireSome(
	ctx context.Context, reqs []locker.Request, n int, gates []string,
) ([]*locker.Grant, error) {
	if err := c.count("AcquireSome"); err != nil {
		return nil, err
	}
	return c.Backend.AcquireSome(ctx, reqs, n, gates)
}

// Release implements [locker.Backend]. It does not fail.
func (c *Calls) Release(ctx context.Context, req locker.Request) error {
	_ = c.count("Release")
	return c.Backend.Release(ctx, req)
}

// single is a store that acquires one lock at a time.
type single struct{ *Calls }

func (s single) AcquireSome(context.Context, []locker.Request, int, []string) ([]*locker.Grant, error) {
	return nil, errors.ErrUnsupported
}

func (s single) AcquireMany(context.Context, []locker.Request) ([]locker.Grant, error) {
	return nil, errors.ErrUnsupported
}

// poller is a store without a queue.
type poller struct{ locker.Backend }

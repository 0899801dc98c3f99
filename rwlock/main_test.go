package rwlock_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key    = "config"
	ttl    = 3 * time.Second
	intent = "{" + key + "}#rwintent"
	gate   = "{" + key + "}#rwgate"
)

// counts is a store in memory that several Clients share. It counts the calls that acquire or release.
type counts struct {
	*memory.Backend
	mu    sync.Mutex
	calls map[string]int
	down  error // what all of these calls return after a second, if it is not nil
}

func newCounts() *counts { return &counts{Backend: memory.NewBackend(), calls: map[string]int{}} }

func (c *counts) count(call string) error {
	c.mu.Lock()
	c.calls[call]++
	down := c.down
	c.mu.Unlock()
	if down != nil {
		time.Sleep(time.Second)
	}
	return down
}

func (c *counts) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = err
}

// took returns the calls since it was called last.
func (c *counts) took() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := maps.Clone(c.calls)
	clear(c.calls)
	return calls
}

func (c *counts) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := c.count("Acquire"); err != nil {
		return locker.Grant{}, err
	}
	return c.Backend.Acquire(ctx, req)
}

func (c *counts) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if err := c.count("Queue"); err != nil {
		return locker.Grant{}, err
	}
	return c.Backend.Queue(ctx, req)
}

func (c *counts) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	if err := c.count("AcquireMany"); err != nil {
		return nil, err
	}
	return c.Backend.AcquireMany(ctx, reqs)
}

func (c *counts) AcquireSome(
	ctx context.Context, reqs []locker.Request, n int, gates []string,
) ([]*locker.Grant, error) {
	if err := c.count("AcquireSome"); err != nil {
		return nil, err
	}
	return c.Backend.AcquireSome(ctx, reqs, n, gates)
}

func (c *counts) Release(ctx context.Context, req locker.Request) error {
	_ = c.count("Release")
	return c.Backend.Release(ctx, req)
}

// single is a store that acquires one lock at a time.
type single struct{ *counts }

func (s single) AcquireSome(context.Context, []locker.Request, int, []string) ([]*locker.Grant, error) {
	return nil, errors.ErrUnsupported
}

func (s single) AcquireMany(context.Context, []locker.Request) ([]locker.Grant, error) {
	return nil, errors.ErrUnsupported
}

// poller is a store without a queue.
type poller struct{ b locker.Backend }

func (p poller) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	return p.b.Acquire(ctx, req)
}
func (p poller) Extend(ctx context.Context, req locker.Request) error  { return p.b.Extend(ctx, req) }
func (p poller) Release(ctx context.Context, req locker.Request) error { return p.b.Release(ctx, req) }

// world is what a test runs in: a store, and Clients that share it.
type world struct {
	*testing.T
	calls  *counts
	store  locker.Backend
	queues bool // the store serves waiting callers in the order of their arrival
}

// Context returns a context for a call. It ends those of callers that wait for each other.
func (w *world) Context() context.Context {
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*time.Minute)
	w.Cleanup(cancel)
	return ctx
}

// stores runs f in virtual time for each kind of store.
func stores(t *testing.T, f func(w *world)) {
	for name, kind := range map[string]func(c *counts) (store locker.Backend, queues bool){
		"in one step": func(c *counts) (locker.Backend, bool) { return c, true },
		"one by one":  func(c *counts) (locker.Backend, bool) { return single{c}, true },
		"by polling":  func(c *counts) (locker.Backend, bool) { return poller{c}, false },
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				c := newCounts()
				w := &world{T: t, calls: c}
				w.store, w.queues = kind(c)
				f(w)
			})
		})
	}
}

// client returns a new Client of the store, which stands for a process.
func (w *world) client() *locker.Client {
	c := locker.NewClient(w.store)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// process returns the RWLock of a new process, in which leases have the TTL of the tests.
func (w *world) process() *rwlock.RWLock {
	return rwlock.New(locker.Defaults(locker.TTL(ttl))(w.client()))
}

func (w *world) lock(l locker.Locker, opts ...locker.Option) locker.Lease {
	w.Helper()
	lease, err := l.Lock(w.Context(), key, opts...)
	if errors.Is(err, context.DeadlineExceeded) {
		panic(err) // w.Fatal would end this goroutine only, and others may wait for its lease
	}
	if err != nil {
		w.Fatal(err)
	}
	return lease
}

func (w *world) unlock(leases ...locker.Lease) {
	w.Helper()
	for _, l := range leases {
		if err := l.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	}
}

// refused fails the test unless l refuses the key now.
func (w *world) refused(l locker.Locker) {
	w.Helper()
	lease, err := l.TryLock(w.Context(), key)
	if !errors.Is(err, locker.ErrHeld) {
		w.Errorf("TryLock: %v", err)
	}
	if err == nil {
		w.unlock(lease)
	}
}

// waiting calls Lock in the background. It returns when the call waits.
func (w *world) waiting(l locker.Locker, opts ...locker.Option) <-chan locker.Lease {
	got := make(chan locker.Lease, 1)
	go func() { got <- w.lock(l, opts...) }()
	time.Sleep(time.Second)
	select {
	case <-got:
		w.Fatal("the call does not wait")
	default:
	}
	return got
}

// empty fails the test unless nobody holds or waits for a lock of the key.
func (w *world) empty() {
	w.Helper()
	time.Sleep(time.Second) // until what is given back in the background is back
	lease, err := w.process().Exclusive().TryLock(w.Context(), key)
	if err != nil {
		w.Errorf("something is left behind: %v", err)
		return
	}
	for _, name := range []string{intent, gate} {
		l, err := w.client().TryLock(w.Context(), name)
		if err != nil {
			w.Errorf("left behind: %v", err)
			continue
		}
		w.unlock(l)
	}
	w.unlock(lease)
}

// judge knows who holds the key.
type judge struct {
	*testing.T
	mu                          sync.Mutex
	readers, writers, upgraders int
	most                        int    // readers at a time
	greatest, ofWriters         uint64 // tokens of those that have held it
	entered                     int    // readers that have entered
}

func (j *judge) enter(kind string, l locker.Lease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case kind == "write" && j.readers+j.writers+j.upgraders > 0,
		j.writers > 0, kind == "upgradeable" && j.upgraders > 0:
		j.Errorf("%s beside %d readers, %d writers and %d upgradeable", kind, j.readers, j.writers, j.upgraders)
	case kind == "write" && l.Fence() <= j.greatest:
		j.Errorf("a writer has the token %d after %d", l.Fence(), j.greatest)
	case l.Fence() <= j.ofWriters:
		j.Errorf("a reader has the token %d after %d of a writer", l.Fence(), j.ofWriters)
	case l.Err() != nil:
		j.Error(l.Err())
	}
	j.greatest = max(j.greatest, l.Fence())
	switch kind {
	case "write":
		j.writers++
		j.ofWriters = l.Fence()
	case "upgradeable":
		j.upgraders++
	default:
		j.readers++
		j.entered++
		j.most = max(j.most, j.readers)
	}
}

func (j *judge) leave(kind string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch kind {
	case "write":
		j.writers--
	case "upgradeable":
		j.upgraders--
	default:
		j.readers--
	}
}

// downgrade makes a writer a reader. Others may come before Downgrade returns.
func (j *judge) downgrade(l locker.Lease) locker.Lease {
	j.mu.Lock()
	j.writers--
	j.readers++
	j.mu.Unlock()
	reads, err := rwlock.Downgrade(j.Context(), wrapping{l})
	if err != nil {
		j.Fatal(err)
	}
	if reads.Fence() != l.Fence() || !errors.Is(l.Err(), locker.ErrUnlocked) {
		j.Errorf("downgraded from the token %d to %d; the old lease: %v", l.Fence(), reads.Fence(), l.Err())
	}
	return reads
}

// slot returns the name of the lock of a slot.
func slot(i int) string { return "{" + key + "}#rw" + strconv.Itoa(i) }

package semaphore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key = "exports"
	ttl = 3 * time.Second
)

// counts is a store in memory that several Clients share. It counts the calls that acquire or release.
type counts struct {
	*memory.Backend
	delay time.Duration // of each call
	mu    sync.Mutex
	calls map[string]int
}

func newCounts() *counts { return &counts{Backend: memory.NewBackend(), calls: map[string]int{}} }

func (c *counts) count(call string) {
	time.Sleep(c.delay)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
}

func (c *counts) took() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = map[string]int{}
	return calls
}

func (c *counts) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	c.count("Acquire")
	return c.Backend.Acquire(ctx, req)
}

func (c *counts) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	c.count("Queue")
	return c.Backend.Queue(ctx, req)
}

func (c *counts) AcquireSome(
	ctx context.Context, reqs []locker.Request, n int, gates []string,
) ([]*locker.Grant, error) {
	c.count("AcquireSome")
	return c.Backend.AcquireSome(ctx, reqs, n, gates)
}

func (c *counts) Release(ctx context.Context, req locker.Request) error {
	c.count("Release")
	return c.Backend.Release(ctx, req)
}

// single is a store that acquires one lock at a time.
type single struct{ *counts }

func (s single) AcquireSome(
	context.Context, []locker.Request, int, []string,
) ([]*locker.Grant, error) {
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

func (w *world) lock(l locker.Locker, opts ...locker.Option) *semaphore.Permit {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 5*time.Minute) // ends tests of callers that wait for each other
	defer cancel()
	lease, err := l.Lock(ctx, key, append(opts, locker.TTL(ttl))...)
	if errors.Is(err, context.DeadlineExceeded) {
		panic(err) // w.Fatal would end this goroutine only, and others may wait for its permit
	}
	if err != nil {
		w.Fatal(err) // perhaps because the test has failed
	}
	p, ok := semaphore.PermitOf(lease)
	if !ok {
		w.Fatalf("the lease is a %T", lease)
	}
	return p
}

func (w *world) unlock(l locker.Lease) {
	w.Helper()
	if err := l.Unlock(w.Context()); err != nil {
		w.Error(err)
	}
}

// empty fails the test unless all n permits can be acquired at once, and nobody has the gate.
func (w *world) empty(n int) {
	w.Helper()
	lease, err := semaphore.New(w.client(), n).Weight(n).TryLock(w.Context(), key)
	if err != nil {
		w.Errorf("something is left behind: %v", err)
		return
	}
	w.unlock(lease)
	gate, err := w.client().TryLock(w.Context(), "{"+key+"}#gate")
	if err != nil {
		w.Errorf("the gate is left behind: %v", err)
		return
	}
	w.unlock(gate)
}

// judge knows who has which permit.
type judge struct {
	mu      sync.Mutex
	holders map[int]uint64 // the token of the holder, by slot
	last    map[int]uint64 // the greatest token, by slot
	most    int
}

func (j *judge) enter(t *testing.T, p *semaphore.Permit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.holders == nil {
		j.holders, j.last = map[int]uint64{}, map[int]uint64{}
	}
	for _, slot := range p.Slots() {
		if token, ok := j.holders[slot]; ok {
			t.Errorf("slot %d has two holders, %d and %d", slot, token, p.Fence())
		}
		if p.Fence() <= j.last[slot] {
			t.Errorf("slot %d: token %d after %d", slot, p.Fence(), j.last[slot])
		}
		j.holders[slot], j.last[slot] = p.Fence(), p.Fence()
	}
	j.most = max(j.most, len(j.holders))
}

func (j *judge) leave(p *semaphore.Permit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, slot := range p.Slots() {
		delete(j.holders, slot)
	}
}

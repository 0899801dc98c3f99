// Package placestest has the stores on which packages semaphore and rwlock are tested in virtual time. A store has
// groups, or acquires some of several locks in one step, or one lock at a time, or has no queue either. The first and
// the third tell their holders at once that others wait, the second and the fourth in their answers, and the last
// never.
package placestest

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// World is what a test runs in: a store, and Clients that share it.
type World struct {
	*testing.T
	Calls   *Calls
	Steps   bool // the store acquires some of several locks in one step
	Queues  bool // the store serves waiting callers in the order of their arrival
	Groups  bool // the store has groups, of permits and of readers and writers
	Tells   bool // holders learn at once that others wait
	Answers bool // holders learn that others wait by an Extend
	store   backend.Backend
}

// kinds are the kinds of stores.
var kinds = []struct {
	name  string
	open  func(c *Calls) backend.Backend
	world World // what it can
}{
	{"as a group", func(c *Calls) backend.Backend { return c },
		World{Steps: true, Queues: true, Groups: true, Tells: true}},
	{"as a group that answers", func(c *Calls) backend.Backend { return answering{c, c, c, c} },
		World{Steps: true, Queues: true, Groups: true, Answers: true}},
	{"in one step", func(c *Calls) backend.Backend { return apart{c} }, World{Steps: true, Queues: true, Tells: true}},
	{"one by one", func(c *Calls) backend.Backend { return single{c, c, c, c} }, World{Queues: true, Answers: true}},
	{"by polling", func(c *Calls) backend.Backend { return poller{c} }, World{}},
}

func newCalls() *Calls { return &Calls{Backend: memory.NewBackend(), calls: map[string]int{}} }

// Each runs f in virtual time for each kind of store.
func Each(t *testing.T, f func(w *World)) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				w := kind.world
				w.T, w.Calls = t, newCalls()
				w.store = kind.open(w.Calls)
				f(&w)
			})
		})
	}
}

// Conform runs a suite of package conformance in virtual time for each kind of store.
func Conform(t *testing.T, suite func(t *testing.T, h conformance.Harness)) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			suite(t, conformance.Harness{
				Bubble: virtual.Test,
				Store: func(testing.TB) conformance.Store {
					c := newCalls()
					return conformance.Store{
						Open:   func() backend.Backend { return kind.open(c) },
						Delete: func(key string) { _, _ = c.ForceRelease(context.Background(), key, "") },
					}
				},
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

// Calls is a store in memory that counts the calls that acquire, extend or release.
type Calls struct {
	*memory.Backend
	mu    sync.Mutex
	calls map[string]int
	delay time.Duration // before the store acts
	late  time.Duration // after that
	fault error
	dead  string // the label of a caller that has died
}

// Kill makes the store hear nothing more of the callers with that label.
func (c *Calls) Kill(label string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = label
}

func (c *Calls) isDead(req backend.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead != "" && req.Label == c.dead
}

// Delay makes each call take d.
func (c *Calls) Delay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// Answer makes the answer to each call take d.
func (c *Calls) Answer(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = d
}

func (c *Calls) answer() {
	c.mu.Lock()
	late := c.late
	c.mu.Unlock()
	time.Sleep(late)
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

// Acquire implements [backend.Backend].
func (c *Calls) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := c.count("Acquire"); err != nil {
		return backend.Grant{}, err
	}
	defer c.answer()
	return c.Backend.Acquire(ctx, req)
}

// Queue implements [backend.Queuer].
func (c *Calls) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	if err := c.count("Queue"); err != nil {
		return backend.Grant{}, err
	}
	defer c.answer()
	return c.Backend.Queue(ctx, req, wait)
}

// AcquireMany implements [backend.ManyAcquirer].
func (c *Calls) AcquireMany(
	ctx context.Context, reqs []backend.Request, choice backend.Choice,
) ([]*backend.Grant, error) {
	if err := c.count("AcquireMany"); err != nil {
		return nil, err
	}
	defer c.answer()
	return c.Backend.AcquireMany(ctx, reqs, choice)
}

// Release implements [backend.Backend]. It does not fail.
func (c *Calls) Release(ctx context.Context, req backend.Request) error {
	_ = c.count("Release")
	if c.isDead(req) {
		return locker.ErrUnavailable
	}
	defer c.answer()
	return c.Backend.Release(ctx, req)
}

// Extend implements [backend.Backend]. It does not fail, and ends with ctx.
func (c *Calls) Extend(ctx context.Context, req backend.Request) error {
	c.mu.Lock()
	c.calls["Extend"]++
	delay, late := c.delay, c.late
	c.mu.Unlock()
	if !pause(ctx, delay) {
		return ctx.Err()
	}
	if c.isDead(req) {
		return locker.ErrUnavailable
	}
	err := c.Backend.Extend(ctx, req)
	if !pause(ctx, late) {
		return ctx.Err()
	}
	return err
}

// pause returns false if ctx ends within d.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// apart is a store without groups.
type apart struct{ *Calls }

func (a apart) Capabilities() backend.Capabilities {
	can := a.Calls.Capabilities()
	can.Groups, can.Kinds = false, false
	return can
}

// answering is a store with groups, whose answers tell that others wait.
type answering struct {
	backend.Backend
	backend.Queuer
	backend.Verifier
	inspect.Inspector
}

func (a answering) Capabilities() backend.Capabilities {
	can := a.Backend.(backend.Capable).Capabilities()
	can.Some, can.AnswersWanted = false, true
	return can
}

func (a answering) Extend(ctx context.Context, req backend.Request) error {
	if req.Group != nil && req.Group.Kind != backend.Permit { // memory itself tells
		return a.Backend.Extend(ctx, req)
	}
	return single(a).Extend(ctx, req)
}

// single is a store that acquires one lock at a time. Its answers tell that others wait.
type single struct {
	backend.Backend
	backend.Queuer
	backend.Verifier
	inspect.Inspector
}

func (s single) Capabilities() backend.Capabilities {
	can := s.Backend.(backend.Capable).Capabilities()
	can.Some, can.Groups, can.Kinds, can.AnswersWanted = false, false, false, true
	return can
}

func (s single) Extend(ctx context.Context, req backend.Request) error {
	i, _ := s.Inspect(ctx, req.Key) // the answer is of the past when it comes
	if err := s.Backend.Extend(ctx, req); err != nil {
		return err
	}
	if req.Wanted != nil && i.Waiting > 0 {
		req.Wanted()
	}
	return nil
}

// poller is a store without a queue.
type poller struct{ backend.Backend }

func (p poller) Capabilities() backend.Capabilities {
	can := p.Backend.(backend.Capable).Capabilities()
	can.Some, can.Groups, can.Kinds, can.Order = false, false, false, false
	return can
}

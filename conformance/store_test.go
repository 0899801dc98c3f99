package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/memory"
)

// store is the store of package memory behind a network that can fail. Its functions are the operations of its clients.
// A flaw replaces some of them.
type store struct {
	acquire, queue          acquireCall
	acquireMany             func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error)
	acquireSome             someCall
	extend, release, verify ownerCall
	inspect                 func(ctx context.Context, key string) (inspect.Inspection, error)
	list                    func(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error]
	forceRelease            func(ctx context.Context, key, owner string) (inspect.Inspection, error)
	raise                   func(ctx context.Context, past uint64) error
	export                  func(ctx context.Context, req backend.Request, to string) error
	resume                  resumeCall
	watch                   func(key string, changed func()) (stop func(), err error)
	notify                  func(key string, wake func()) (live func() bool, stop func())
	notifyLoss              func(req backend.Request, lost func(err error)) (stop func())
	left                    func() []string
	can                     backend.Capabilities // of a client with a queue
	oneToken                bool                 // see grantsOneToken

	mem *memory.Backend

	mu       sync.Mutex
	last     map[string]grant // by key
	foreign  map[string]bool  // by key
	hung     chan struct{}    // closed by resume; nil while the store answers
	down     bool
	outages  int  // how often it was down
	restarts int  // how often it was restarted
	lose     bool // the next reply
	deaf     bool // messages to waiters are lost
}

type (
	acquireCall = func(ctx context.Context, req backend.Request) (backend.Grant, error)
	ownerCall   = func(ctx context.Context, req backend.Request) error
)

// grant is the last grant of a lock.
type grant struct {
	backend.Request
	ends time.Time
	over bool // it was released, by its owner or by force
	kept bool // it was released with Keep
}

// held reports whether the owner still has the lock.
func (g grant) held() bool { return g.Token != "" && !g.over && time.Now().Before(g.ends) }

// expired reports whether nobody has released the lock within its TTL.
func (g grant) expired() bool { return g.Token != "" && !g.over && !time.Now().Before(g.ends) }

// latency is how long a request takes to the store.
const latency = 100 * time.Microsecond

var (
	errDown   = fmt.Errorf("%w: connection refused", locker.ErrUnavailable)
	errSilent = fmt.Errorf("%w: no answer yet", locker.ErrUnavailable)
	errLost   = fmt.Errorf("%w: connection lost", locker.ErrUnavailable)
)

func newStore() *store {
	s := &store{mem: memory.NewBackend(), last: map[string]grant{}, foreign: map[string]bool{}}
	s.can = backend.Capabilities{
		Tokens: true, CommonTokens: true, Blocks: true, Order: true, Labels: true, CountsTime: true, AnswersWanted: true,
		Some: true,
	}
	s.acquire = s.attempt(s.mem.Acquire)
	s.queue = s.attempt(func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		wait := waitOf(ctx)
		if s.oneToken {
			wait = manyTokens{wait, 1}
		}
		return s.mem.Queue(ctx, req, wait)
	})
	s.acquireMany = func(ctx context.Context, reqs []backend.Request) (grants []*backend.Grant, err error) {
		return s.attemptSome(ctx, reqs, backend.Choice{})
	}
	s.acquireSome = s.attemptSome
	extend := s.operation(s.mem.Extend, func(g *grant, req backend.Request) {
		if end := time.Now().Add(req.TTL); end.After(g.ends) {
			g.ends = end
		}
	})
	s.extend = func(ctx context.Context, req backend.Request) error {
		err := extend(ctx, req)
		if req.Group != nil && req.Group.Kind != backend.Permit { // the store itself tells
			return err
		}
		if i, _ := s.mem.Inspect(ctx, req.Key); err == nil && req.Wanted != nil && i.Waiting > 0 {
			req.Wanted()
		}
		return err
	}
	release := s.operation(s.mem.Release, func(g *grant, req backend.Request) { g.over, g.kept = true, req.Keep > 0 })
	s.release = func(ctx context.Context, req backend.Request) error {
		err := release(ctx, req)
		if errors.Is(err, locker.ErrUnavailable) {
			go func() { // until it has an answer
				for n := 0; n < 1000 && errors.Is(release(context.Background(), req), locker.ErrUnavailable); n++ {
					time.Sleep(10 * time.Millisecond)
				}
			}()
		}
		return err
	}
	s.verify = s.operation(s.mem.Verify, func(*grant, backend.Request) {})
	s.exports(s.undo)
	s.inspect, s.forceRelease, s.watch, s.raise = s.mem.Inspect, s.force, s.mem.Watch, s.mem.RaiseFences
	s.list = func(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
		return func(yield func(inspect.Listed, error) bool) {
			for l, err := range s.mem.List(ctx, prefix) {
				if err == nil {
					i, _ := s.inspect(ctx, l.Key)
					l.Fence = i.Fence // which flaws change
				}
				if !yield(l, err) {
					return
				}
			}
		}
	}
	s.notify = func(key string, wake func()) (live func() bool, stop func()) {
		stop, _ = s.mem.Watch(key, wake)
		time.AfterFunc(time.Millisecond, wake)
		return func() bool { return true }, stop
	}
	s.notifyLoss = func(req backend.Request, lost func(err error)) (stop func()) {
		stop, _ = s.mem.Watch(req.Key, func() {
			if err := s.mem.Verify(context.Background(), req); err != nil {
				lost(err)
			}
		})
		return stop
	}
	s.left = func() (left []string) {
		for _, key := range s.keys() {
			if i, _ := s.mem.Inspect(context.Background(), key); i.State != inspect.Free || i.Waiting > 0 {
				left = append(left, key)
			}
		}
		return left
	}
	return s
}

// with calls f with the mutex held.
func (s *store) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// of returns the last grant of key.
func (s *store) of(key string) (g grant) {
	s.with(func() { g = s.last[key] })
	return g
}

func (s *store) keys() (keys []string) {
	s.with(func() {
		for key := range s.last {
			keys = append(keys, key)
		}
	})
	return keys
}

func (s *store) isDown() (down bool) {
	s.with(func() { down = s.down })
	return down
}

func (s *store) isHung() (hung bool) {
	s.with(func() { hung = s.hung != nil })
	return hung
}

func (s *store) isDeaf() (deaf bool) {
	s.with(func() { deaf = s.deaf })
	return deaf
}

// reach brings a request to the store. loses says that its reply gets lost.
func (s *store) reach(ctx context.Context) (loses bool, err error) {
	s.mu.Lock()
	hung, down := s.hung, s.down
	loses = s.lose && !down
	s.lose = s.lose && down
	s.mu.Unlock()
	timer := time.NewTimer(latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return loses, errSilent
	}
	if down {
		return loses, errDown
	}
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return loses, errSilent
		}
	}
	return loses, nil
}

// attempt makes an operation of the store from one of the memory. An attempt whose reply is lost is undone.
func (s *store) attempt(do acquireCall) acquireCall {
	return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		sent := time.Now()
		loses, err := s.reach(ctx)
		foreign := false
		s.with(func() { foreign = s.foreign[req.Key] })
		switch {
		case err != nil:
			return backend.Grant{}, err
		case foreign:
			return backend.Grant{}, locker.ErrForeignKey
		}
		g, err := do(ctx, req)
		switch {
		case loses:
			_ = s.mem.Release(context.Background(), req)
			return backend.Grant{}, errLost
		case err == nil:
			if g.Sent.IsZero() {
				g.Sent = sent
			}
			s.granted(req)
		}
		return g, err
	}
}

func (s *store) attemptSome(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	loses, err := s.reach(ctx)
	if err != nil {
		return nil, err
	}
	grants, err := s.mem.AcquireMany(ctx, reqs, c)
	for i, req := range reqs {
		switch {
		case loses:
			_ = s.mem.Release(context.Background(), req)
		case err == nil && grants[i] != nil:
			s.granted(req)
		}
	}
	if loses {
		return nil, errLost
	}
	return grants, err
}

// granted records a grant.
func (s *store) granted(req backend.Request) {
	s.with(func() {
		if g := s.last[req.Key]; g.Token != req.Token || !g.held() {
			s.last[req.Key] = grant{Request: req, ends: time.Now().Add(req.TTL)}
		}
	})
}

// operation makes an operation of the store from one of the memory. done records its success.
func (s *store) operation(do ownerCall, done func(g *grant, req backend.Request)) ownerCall {
	return func(ctx context.Context, req backend.Request) error {
		loses, err := s.reach(ctx)
		if err != nil {
			return err
		}
		if err = do(ctx, req); err == nil {
			s.with(func() {
				g := s.last[req.Key]
				done(&g, req)
				s.last[req.Key] = g
			})
		}
		if loses {
			return errLost
		}
		return err
	}
}

func (s *store) force(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	i, err := s.mem.ForceRelease(ctx, key, owner)
	if err == nil {
		s.with(func() {
			g := s.last[key]
			g.over = true
			s.last[key] = g
		})
	}
	return i, err
}

func (s *store) delete(key string) { _, _ = s.force(context.Background(), key, "") }

func (s *store) hang() (resume func()) {
	hung := make(chan struct{})
	s.with(func() { s.hung = hung })
	return func() {
		s.with(func() { s.hung = nil })
		close(hung)
	}
}

func (s *store) fail() (up func()) {
	s.with(func() { s.down, s.outages = true, s.outages+1 })
	return func() { s.with(func() { s.down = false }) }
}

// hooks returns the store for the suite. open makes its Backends.
func (s *store) hooks(open func() backend.Backend) Store {
	return Store{
		Open:   open,
		Delete: s.delete,
		Foreign: func(key string) (intact func() bool) {
			s.with(func() { s.foreign[key] = true })
			return func() bool {
				i, _ := s.mem.Inspect(context.Background(), key)
				return i.State == inspect.Free
			}
		},
		Hang:      s.hang,
		Down:      s.fail,
		LoseReply: func() { s.with(func() { s.lose = true }) },
		LoseMessages: func() func() {
			s.with(func() { s.deaf = true })
			return func() { s.with(func() { s.deaf = false }) }
		},
		Restart: func() { // it loses the locks
			for _, key := range s.keys() {
				s.delete(key)
			}
			s.with(func() { s.restarts++ })
		},
		Left: func() []string { return s.left() },
	}
}

// attempts has wrap change acquire and queue.
func (s *store) attempts(wrap func(next acquireCall) acquireCall) {
	s.acquire, s.queue = wrap(s.acquire), wrap(s.queue)
}

// requests has change replace the requests of acquire, queue, extend, release and verify.
func (s *store) requests(change func(req backend.Request) backend.Request) {
	s.attempts(func(next acquireCall) acquireCall {
		return func(ctx context.Context, req backend.Request) (backend.Grant, error) { return next(ctx, change(req)) }
	})
	for _, op := range []*ownerCall{&s.extend, &s.release, &s.verify} {
		next := *op
		*op = func(ctx context.Context, req backend.Request) error { return next(ctx, change(req)) }
	}
}

// answers has change replace the errors of acquire and queue.
func (s *store) answers(change func(err error) error) {
	s.attempts(func(next acquireCall) acquireCall {
		return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := next(ctx, req)
			if err != nil {
				err = change(err)
			}
			return g, err
		}
	})
}

// abandoned calls f for each attempt whose context ended before the answer. hung says whether the store hung.
func (s *store) abandoned(f func(req backend.Request, hung bool)) {
	s.attempts(func(next acquireCall) acquireCall {
		return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			hung := s.isHung()
			g, err := next(ctx, req)
			if errors.Is(err, errSilent) {
				go f(req, hung)
			}
			return g, err
		}
	})
}

// land executes an attempt that its caller has abandoned.
func (s *store) land(req backend.Request) { _, _ = s.attempt(s.mem.Acquire)(context.Background(), req) }

// grantsOneToken has each grant have one token, however many were asked for.
func (s *store) grantsOneToken() {
	s.oneToken = true
	s.attempts(func(next acquireCall) acquireCall {
		return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			req.Fences = 1
			return next(ctx, req)
		}
	})
}

// tokens has f replace the tokens of grants. before is the grant before it.
func (s *store) tokens(f func(fence uint64, before grant) uint64) {
	shown := map[uint64]uint64{}
	s.grantsOneToken() // f does not know of others
	s.can.Blocks = false
	s.attempts(func(next acquireCall) acquireCall {
		return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			before := s.of(req.Key)
			g, err := next(ctx, req)
			if err == nil {
				s.with(func() {
					if _, ok := shown[g.Fence]; !ok {
						shown[g.Fence] = f(g.Fence, before)
					}
					g.Fence = shown[g.Fence]
				})
			}
			return g, err
		}
	})
	inspected, verify := s.inspect, s.verify
	s.inspect = func(ctx context.Context, key string) (inspect.Inspection, error) {
		i, err := inspected(ctx, key)
		s.with(func() { i.Fence = shown[i.Fence] })
		return i, err
	}
	s.verify = func(ctx context.Context, req backend.Request) error {
		req.Fence = math.MaxUint64
		return verify(ctx, req)
	}
}

// client is a Backend of a store that polls.
type client struct {
	*store
	closed atomic.Bool
}

func (c *client) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if c.closed.Load() {
		return backend.Grant{}, locker.ErrClosed
	}
	return c.acquire(ctx, req)
}

func (c *client) Capabilities() backend.Capabilities {
	of := c.can
	of.Order, of.AnswersWanted = false, false
	return of
}

func (c *client) AcquireMany(
	ctx context.Context, reqs []backend.Request, choice backend.Choice,
) ([]*backend.Grant, error) {
	if choice.N == 0 && len(choice.Gates) == 0 {
		return c.acquireMany(ctx, reqs)
	}
	return c.acquireSome(ctx, reqs, choice)
}

func (c *client) Extend(ctx context.Context, req backend.Request) error  { return c.extend(ctx, req) }
func (c *client) Release(ctx context.Context, req backend.Request) error { return c.release(ctx, req) }
func (c *client) Verify(ctx context.Context, req backend.Request) error  { return c.verify(ctx, req) }

func (c *client) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	return c.inspect(ctx, key)
}

func (c *client) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return c.list(ctx, prefix)
}

func (c *client) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	return c.forceRelease(ctx, key, owner)
}

func (c *client) Watch(key string, changed func()) (stop func(), err error) {
	return c.watch(key, changed)
}

func (c *client) RaiseFences(ctx context.Context, past uint64) error { return c.raise(ctx, past) }

func (c *client) Close() error {
	c.closed.Store(true)
	return nil
}

// role adds an optional interface to a client.
type role func(c *client) backend.Backend

func polls(c *client) backend.Backend    { return c }
func queues(c *client) backend.Backend   { return queuer{c} }
func notified(c *client) backend.Backend { return notifier{c} }
func warned(c *client) backend.Backend   { return lossNotifier{c} }

type queuer struct{ *client }

// waitKey is that of the Wait in the context of a call of Queue, so that flaws of Acquire can be those of Queue.
type waitKey struct{}

func waitOf(ctx context.Context) backend.Wait { return ctx.Value(waitKey{}).(backend.Wait) }

func (q queuer) Capabilities() backend.Capabilities { return q.can }

func (q queuer) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	return q.queue(context.WithValue(ctx, waitKey{}, wait), req)
}

type notifier struct{ *client }

func (n notifier) Notify(key string, wake func()) (live func() bool, stop func()) {
	return n.notify(key, wake)
}

type lossNotifier struct{ *client }

func (n lossNotifier) NotifyLoss(req backend.Request, lost func(err error)) (stop func()) {
	return n.notifyLoss(req, lost)
}

// neverClosed has a Close that does nothing.
type neverClosed struct{ queuer }

func (neverClosed) Close() error { return nil }

// flaw is a mistake of a store, a backend or a locker. Many of them occurred in real libraries.
type flaw struct {
	name   string
	fails  []string // the properties that notice
	broad  bool     // other properties may notice the flaw as well, because it breaks everything
	role   role     // nil: queues
	store  func(s *store)
	client func(l *flawedLocker)
	change func(h *Harness)
}

// harness returns a harness with all its functions and the flaw.
func harness(f flaw) Harness {
	role := f.role
	if role == nil {
		role = queues
	}
	h := Harness{Bubble: notCalled}
	h.Store = func(testing.TB) Store {
		s := newStore()
		if f.store != nil {
			f.store(s)
		}
		open := func() backend.Backend { return role(&client{store: s}) }
		hooks := s.hooks(open)
		if f.client != nil {
			hooks.Client = func() locker.Locker { return newFlawedLocker(locker.NewClient(open()), f.client) }
		}
		return hooks
	}
	if f.change != nil {
		f.change(&h)
	}
	return h
}

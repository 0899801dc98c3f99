package locker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/passing"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/validity"
	"github.com/golocker/locker/lockertrace"
)

// Client turns a [backend.Backend] into a [Locker]. It waits for locks, renews leases, notices losses and releases
// locks. Create one with [NewClient], or with the New function of a backend's package. A Client is safe for concurrent
// use and meant to be shared.
type Client struct {
	backend backend.Backend
	queuer  backend.Queuer // the backend, if it implements Queuer; else nil
	can     backend.Capabilities
	queues  keyQueues

	draining context.Context // ends when Drain begins
	drain    context.CancelCauseFunc
	open     context.Context // ends when Drain or Close begins: no lock is acquired from then on
	shut     context.CancelCauseFunc
	closing  chan struct{} // closed when Close begins: no lease is held from then on
	gone     chan struct{} // closed when Close has ended

	mu       sync.Mutex
	schedule schedule // of the grants
	closed   bool     // Close has begun
	joining  bool     // Close waits for background

	// Drain waits until there are no grants, and then for the attempts in progress, which are also releases. Close waits
	// for these for closeGrace, and for the inspections in progress, and then closes the backend.
	grants, attempts, looks tally

	// background counts renewals, and releases of leases that were never returned to a caller. Close waits for them
	// after it has closed the backend. Call Add with mu held while joining is false.
	background sync.WaitGroup
}

// NewClient returns a Client of b. If b is an io.Closer, closing the Client closes b.
func NewClient(b backend.Backend) *Client {
	queuer, _ := b.(backend.Queuer)
	c := &Client{
		backend: b,
		queuer:  queuer,
		can:     backend.Of(b),
		closing: make(chan struct{}),
		gone:    make(chan struct{}),
	}
	c.draining, c.drain = context.WithCancelCause(context.Background())
	c.open, c.shut = context.WithCancelCause(c.draining)
	_ = c.open.Done() // makes the channel, so that tests can use a Client made outside their bubble
	c.schedule.origin = time.Now()
	return c
}

// Capabilities implements [backend.Capable]: it returns what the store can do. Use [As] to find it behind middleware.
func (c *Client) Capabilities() backend.Capabilities { return c.can }

// Lock implements [Locker].
func (c *Client) Lock(ctx context.Context, key string, opts ...Option) (_ Lease, err error) {
	defer func() {
		if err != nil {
			err = &Error{"lock", key, err}
		}
	}()
	o := newOptions(opts)
	err = o.validate(key)
	if err == nil {
		o.entry, err = c.entry(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	if err := withContext(ctx, nil); err != nil {
		return nil, err
	}
	if err := c.reentrant(ctx, key, o.entry); err != nil {
		return nil, err
	}
	o = c.waiting(ctx, o)
	start := time.Now()
	l, err := c.lock(ctx, key, o, start)
	if err != nil {
		return nil, waited(ctx, start, c.heldByItself(key, o, c.refusing(err)))
	}
	return l, nil
}

// lock acquires key when the callers before this one have it, or gets it from one of them. The call began at start.
func (c *Client) lock(ctx context.Context, key string, o options, start time.Time) (l *lease, err error) {
	if o.entry != nil { // those that want something of a group wait in the store, each by itself
		queue := &keyQueue{queues: &c.queues, key: key, wants: &o.entry.Wants, since: start, from: o.from}
		queue.trace, queue.queue = lockertrace.From(ctx), queue
		defer queue.walk()
		return c.waitAs(ctx, key, o, queue)
	}
	if c.open.Err() != nil { // whoever has the lock need not hear of a call that cannot have it
		return nil, ErrClosed
	}
	queue, l, err := c.queues.join(ctx, c.open.Done(), key, o, start)
	if err != nil {
		return nil, err
	}
	if l != nil {
		own(ctx, l, o)
		return l, nil
	}
	defer func() { queue.leave(l) }() // l is nil also if a hook panics
	return c.waitAs(ctx, key, o, queue)
}

// waitAs is wait, and tells the call for several locks that ctx belongs to since when the store fails.
func (c *Client) waitAs(ctx context.Context, key string, o options, queue *keyQueue) (*lease, error) {
	l, err := c.wait(ctx, key, o, queue)
	if err != nil {
		since, _ := queue.failing()
		several.CallFrom(ctx).Failing(since)
	}
	return l, err
}

// entry returns what a call for key asks for of a group, or nil if it asks for a lock.
func (c *Client) entry(ctx context.Context, key string) (*several.Entry, error) {
	e := several.EntryFrom(ctx, key)
	switch {
	case e == nil && c.can.Groups && several.NamesGroup(key, several.PermitsOf),
		e == nil && c.can.Kinds && several.NamesGroup(key, several.LocksOf):
		return nil, errNoContext
	case e != nil && !c.hasGroups(e.Wants.Kind):
		return nil, errNoGroups
	}
	return e, nil
}

// hasGroups reports whether the store has groups with entries of that kind.
func (c *Client) hasGroups(kind backend.Kind) bool {
	if kind == backend.Permit {
		return c.can.Groups
	}
	return c.can.Kinds
}

// errNoContext keeps callers from a lock beside those that have something of the group with its name.
var errNoContext = invalid("this is the name of the permits of a semaphore, or of readers and writers, and the " +
	"context does not say what is wanted: a middleware has to pass on the context of its caller")

var errNoGroups = fmt.Errorf("the store has no such groups: %w", errors.ErrUnsupported)

// TryLock implements [Locker].
func (c *Client) TryLock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	o := newOptions(opts)
	err := o.validate(key)
	if err == nil {
		o.entry, err = c.entry(ctx, key)
	}
	if err == nil {
		o = c.waiting(ctx, o)
		var l *lease
		if l, err = c.attempt(ctx, key, o, nil); err == nil {
			return l, nil
		}
		err = withContext(ctx, c.heldByItself(key, o, err))
	}
	return nil, &Error{"trylock", key, err}
}

// attempt makes one attempt to acquire key. If queue is not nil and the backend is a Queuer, the attempt waits in the
// store's queue. The error says what was seen of the lock. It is ctx's error if ctx had ended before anything was sent.
func (c *Client) attempt(ctx context.Context, key string, o options, queue *keyQueue) (l *lease, err error) {
	if err := c.admit(); err != nil {
		return nil, err
	}
	defer c.attempts.done()
	if err := ending.Of(ctx); err != nil {
		return nil, err
	}
	req := backend.Request{Key: key, Token: backend.NewToken(), TTL: o.ttl, Label: o.label, MinHold: o.keeps()}
	if o.entry != nil {
		wants := o.entry.Wants
		req.Group = &wants
	}
	trace := lockertrace.From(ctx)
	if queue != nil && queue.shares(o, o.local(ctx)) {
		req.Fences = backend.MaxFences
	}
	var granted backend.Grant
	start := time.Now()
	switch r := passing.ResumptionFrom(ctx, key); {
	case r != nil:
		req.Fences = 0
		granted, err = c.resume(ctx, r, req)
	case queue == nil || c.queuer == nil:
		granted, err = c.backend.Acquire(ctx, req)
	default:
		granted, err = c.queuer.Queue(ctx, req, &queue.wait)
	}
	sent := start
	if err = fromBackend(err); err == nil {
		sent = complete(&req, &granted, start)
		if queue != nil {
			queue.granted = time.Now()
		}
		defer func() {
			if l == nil { // also if a hook panics
				_ = c.giveUp(ctx, req, err)
			}
		}()
	}
	attempted(trace, start, err)
	if err != nil {
		return nil, err
	}
	if req.Fences <= 1 || req.Fence == 0 { // there is no token for another lease
		queue = nil
	}
	if l, err = c.begin(trace, req, sent, o, queue); err == nil {
		own(ctx, l, o)
		if o.entry != nil {
			o.entry.Granted(req.Fence, granted.Permits)
		}
	}
	return l, err
}

func attempted(t *lockertrace.Trace, start time.Time, err error) {
	if t != nil && t.Attempted != nil {
		t.Attempted(lockertrace.Attempt{Duration: time.Since(start), Err: err})
	}
}

// complete completes req, to which g was granted, for later requests. It returns when the request was sent that set the
// TTL; start is when the call began.
func complete(req *backend.Request, g *backend.Grant, start time.Time) (sent time.Time) {
	req.Fence, req.Fences, req.Private = g.Fence, min(g.Fences, backend.MaxFences), g.Private
	if g.Token != "" {
		req.Token = g.Token
	}
	if g.Sent.IsZero() {
		return start
	}
	return g.Sent
}

// begin begins the lease of a lock that was granted to req, which was sent at start. queue has the callers that the
// grant may be handed over to, or is nil.
func (c *Client) begin(
	trace *lockertrace.Trace, req backend.Request, start time.Time, o options, queue *keyQueue,
) (*lease, error) {
	l, err := c.hold(trace, req, start, o, queue)
	if err != nil {
		return nil, err
	}
	if n, ok := c.backend.(backend.LossNotifier); ok {
		l.grant.listen(n)
	}
	return l, nil
}

// wait acquires key for the caller at the front of its queue. If the backend is a Queuer, the attempt itself waits.
// Otherwise wait makes attempts until one succeeds: when the store reports that the lock may be free, when the holder's
// TTL ends, and at intervals. Once the lock was seen held, wait tolerates a failing store for o.patience.
func (c *Client) wait(ctx context.Context, key string, o options, queue *keyQueue) (*lease, error) {
	news := &news{live: func() bool { return false }, stop: func() {}}
	defer func() { news.stop() }()
	for n := 0; ; n++ {
		asked := time.Now()
		queue.begin(o.patience, c.open.Done())
		l, err := c.attempt(ctx, key, o, queue)
		if err == nil {
			return l, nil
		}
		over := ending.Of(ctx)
		var pause time.Duration
		switch {
		case over != nil && errors.Is(err, over): // the attempt was not sent
			return nil, queue.last(err)
		case errors.Is(err, ErrHeld):
			queue.found(err)
			several.CallFrom(ctx).Answered()
			if over != nil || c.queuer != nil {
				return nil, err
			}
			if news.ring == nil {
				news = c.listen(key)
			}
			pause = pollDelay(n, heldOf(err).Remaining, news.live())
		case isFault(err):
			took := time.Since(asked)
			if queue.isWaiting() { // the store answered during this attempt, and the Queuer has recorded when it began to fail
				asked = time.Now()
				several.CallFrom(ctx).Answered()
			}
			if end := queue.note(over != nil, took, asked, err); end != nil {
				return nil, end
			}
			held, since, _ := queue.seen()
			if held, since = several.CallFrom(ctx).Seen(held, since); !held || since >= o.patience {
				return nil, err
			}
			pause = queue.pause(since)
		default:
			return nil, err
		}
		if _, err := queue.Sleep(ctx, pause, news.ring); err != nil {
			return nil, err
		}
	}
}

// heldByItself returns err, and says in it that this process holds the lock if a lease of this Client does. The label
// is not enough to tell, because it is the same in containers that share the network of their host. The grants are
// searched only if the holder has the label of this call, which is rare.
func (c *Client) heldByItself(key string, o options, err error) error {
	if !errors.Is(err, ErrHeld) || heldOf(err).Label != o.label {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.schedule.byKey[key] == nil {
		return err
	}
	return fmt.Errorf("held by this process: %w", err)
}

// isFault reports whether err is a failure of the store that may be temporary.
func isFault(err error) bool {
	return errors.Is(err, ErrUnavailable) &&
		!errors.Is(err, ErrClosed) && !errors.Is(err, ErrForeignKey) && !errors.Is(err, ErrInvalid)
}

// hold begins the lease of a lock that was granted to req, which was sent at start. It fails if the validity was over
// before the grant arrived, or if the Client was closed.
func (c *Client) hold(
	trace *lockertrace.Trace, req backend.Request, start time.Time, o options, queue *keyQueue,
) (*lease, error) {
	g := &grant{
		client:  c,
		req:     req,
		queue:   queue,
		renews:  !o.noRenewal,
		start:   start,
		maxHold: o.maxHold,
		minHold: o.minHold,
		first:   lease{fence: req.Fence, trace: trace, from: o.from},
		ttl:     req.TTL,
		longest: req.TTL,
		pos:     -1,
		until:   validity.Until(start, req.TTL),
	}
	g.lease, g.first.grant = &g.first, g
	end, reason := g.end()
	rest := left(end)
	switch {
	case rest <= 0 && reason == LostMaxHold:
		return nil, fmt.Errorf("%w: the lock was granted too late: MaxHold is over", ErrUnavailable)
	case rest <= 0:
		return nil, fmt.Errorf("%w: the lock was granted too late, with nothing left of its TTL of %v",
			ErrUnavailable, req.TTL)
	}
	due := never
	if g.renews {
		due = start.Add(req.TTL / renewPart)
	}
	g.mu.Lock() // the timer may fire before it is in g.expiry
	defer g.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refusal(); err != nil {
		return nil, err
	}
	if c.schedule.timer == nil { // not made in NewClient, so that tests can use a Client made outside their bubble
		c.schedule.timer = time.AfterFunc(time.Hour, c.tend)
	}
	c.schedule.add(g, due)
	c.grants.add()
	g.expiry = time.AfterFunc(rest-c.early(g.ttl), g.rearm)
	if l, asked := g.lease, o.asked; asked != nil {
		o.partial.Add(func(ctx context.Context) error { return l.begin(ctx, asked) })
	}
	return g.lease, nil
}

// early returns how much earlier than others a lease with that TTL ends, because all leases of the Client may end at
// the same time: as long as it takes to tell of them. It takes 5 to 9 µs of a processor for each, until the goroutine
// that waits for Done has run.
func (c *Client) early(ttl time.Duration) time.Duration {
	const thousand = 8 * time.Millisecond
	return min(time.Duration(c.grants.n.Load()/1000)*thousand, ttl/10)
}

// forget removes g from the schedule and stops its timer.
func (c *Client) forget(g *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.remove(g)
	c.grants.done()
	g.expiry.Stop()
}

// giveUp releases a lock that was granted to req, but whose lease cannot be returned to the caller. why is the reason.
// It is called within an attempt. The channel is closed when the release has ended.
func (c *Client) giveUp(ctx context.Context, req backend.Request, why error) (released <-chan struct{}) {
	over := make(chan struct{})
	if errors.Is(why, ErrClosed) && !errors.Is(why, ErrDraining) {
		// Release the lock before returning. Close closes the backend as soon as the attempts have ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		_ = c.backend.Release(ctx, req)
		close(over)
		return over
	}
	c.attempts.add() // Close and Drain wait for the release as for the attempt
	joined := c.join()
	go func() {
		defer close(over)
		if joined {
			defer c.background.Done()
		}
		defer c.attempts.done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
		defer cancel()
		_ = c.backend.Release(ctx, req) // if it fails, the backend retries, and the TTL ends the lock otherwise
	}()
	return over
}

var errNoInspector = fmt.Errorf("the backend cannot show the state of its locks: %w", errors.ErrUnsupported)

// Inspect implements [inspect.Inspector].
func (c *Client) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	return c.inspect(ctx, "inspect", key, func(i inspect.Inspector) (inspect.Inspection, error) {
		return i.Inspect(ctx, key)
	})
}

// ForceRelease implements [inspect.Inspector].
func (c *Client) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	return c.inspect(ctx, "release", key, func(i inspect.Inspector) (inspect.Inspection, error) {
		return i.ForceRelease(ctx, key, owner)
	})
}

var errNoLister = fmt.Errorf("the backend cannot list its locks: %w", errors.ErrUnsupported)

// List implements [inspect.Lister].
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		failed := func(err error) { yield(inspect.Listed{}, &Error{"list", prefix, err}) }
		l, ok := c.backend.(inspect.Lister)
		switch {
		case !ok:
			failed(errNoLister)
			return
		case ending.Of(ctx) != nil:
			failed(withContext(ctx, nil))
			return
		case c.closes():
			failed(ErrClosed)
			return
		}
		for found, err := range l.List(ctx, prefix) {
			switch {
			case errors.Is(err, errors.ErrUnsupported):
				failed(errNoLister)
			case err != nil:
				failed(withContext(ctx, fromBackend(err)))
			case ending.Of(ctx) != nil:
				failed(withContext(ctx, nil))
			case c.closes(): // the loop may be slow, so Close does not wait for it
				failed(ErrClosed)
			case yield(found, nil):
				continue
			}
			return
		}
	}
}

var errNoWatcher = fmt.Errorf("the backend does not tell of changes: %w", errors.ErrUnsupported)

// Watch implements [inspect.Watcher].
func (c *Client) Watch(key string, changed func()) (stop func(), err error) {
	w, ok := c.backend.(inspect.Watcher)
	if !ok {
		return nil, &Error{"inspect", key, errNoWatcher}
	}
	return w.Watch(key, changed)
}

var errNoRaiser = fmt.Errorf("the backend cannot raise its fencing tokens: while nobody holds a lock, lower what the "+
	"resource has stored instead: %w", errors.ErrUnsupported)

// minTooFar is the smallest number that tokens cannot be raised past.
const minTooFar = 1 << 52

// RaiseFences implements [inspect.FenceRaiser].
func (c *Client) RaiseFences(ctx context.Context, past uint64) (err error) {
	r, ok := c.backend.(inspect.FenceRaiser)
	switch {
	case past >= minTooFar:
		err = invalid("tokens can be raised past a number below 2⁵², and %d is not", past)
	case !ok:
		err = errNoRaiser
	case ending.Of(ctx) != nil:
		err = withContext(ctx, nil)
	case !c.enter(&c.looks):
		err = ErrClosed
	default:
		defer c.looks.done()
		if err = fromBackend(r.RaiseFences(ctx, past)); err != nil {
			err = withContext(ctx, err)
		}
	}
	if err != nil {
		return fmt.Errorf("locker: raise tokens: %w", err)
	}
	return nil
}

// Examine implements [inspect.Examiner]. It returns nil if the backend does not, and if the Client is closed.
func (c *Client) Examine(ctx context.Context) []inspect.Finding {
	e, ok := c.backend.(inspect.Examiner)
	if !ok || !c.enter(&c.looks) {
		return nil
	}
	defer c.looks.done()
	return e.Examine(ctx)
}

func (c *Client) inspect(
	ctx context.Context, op, key string, ask func(inspect.Inspector) (inspect.Inspection, error),
) (inspect.Inspection, error) {
	seen := inspect.Inspection{State: inspect.Unknown}
	o := newOptions(nil)
	err := o.validate(key)
	i, ok := c.backend.(inspect.Inspector)
	switch {
	case err != nil:
	case !ok:
		err = errNoInspector
	case ending.Of(ctx) != nil:
		err = withContext(ctx, nil)
	case !c.enter(&c.looks):
		err = ErrClosed
	default:
		seen, err = ask(i)
		c.looks.done()
		if err = fromBackend(err); err != nil {
			err = withContext(ctx, err)
		}
	}
	if err != nil {
		return seen, &Error{op, key, err}
	}
	return seen, nil
}

package rwlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/internal/core/slots"
	"github.com/golocker/locker/lockertrace"
)

// flight finds a slot for the caller that begins it, and for all that come meanwhile: the current one if the store says
// that nobody waits for it, and otherwise another one. It goes on as long as one of these callers waits for it, so that
// nobody loses a place in the queue of the gate because another one leaves.
type flight struct {
	call  *several.Call // what it knows of the store
	began time.Time
	ctx   *flightContext
	done  chan struct{}

	// The following are guarded by the mu of the RWLock. Once done is closed, only locks changes.
	waiting  int    // callers that share what it gets: at least one, until done is closed
	locks    *locks // what it has got; each of the callers is counted in its users
	shared   bool   // locks were those of others already
	alone    bool   // locks are for one of the callers, which sets them to nil
	err      error  // why it has failed
	panicked any    // the value of a panic of a hook
}

// flightContext is the context of a flight. It has the values of the caller that has begun it, and ends with the
// context of the caller that leaves last. Errors say why that one has ended.
type flightContext struct {
	context.Context                 // has the values, and does not end
	over            chan struct{}   // closed when it ends; nil if the context of the first caller does not end
	last            context.Context // of the caller that has left last; set before over is closed
}

func newFlightContext(ctx context.Context) *flightContext {
	c := &flightContext{Context: context.WithoutCancel(ctx)}
	if ctx.Done() != nil {
		c.over = make(chan struct{})
	}
	return c
}

func (c *flightContext) Done() <-chan struct{} { return c.over }

func (c *flightContext) Err() error {
	select {
	case <-c.over:
		return c.last.Err()
	default:
		return nil
	}
}

// Value finds in last what the first caller has not: with that, context.Cause returns the cause of last.
func (c *flightContext) Value(key any) any {
	v := c.Context.Value(key)
	if v == nil && c.Err() != nil {
		v = c.last.Value(key)
	}
	return v
}

// board returns the flight of op, in which the caller is counted. If there was none, the caller begins it. Newcomers
// share what it gets however long it takes. If each began another one when an answer is slow, they would stand in the
// queue of the gate one behind the other.
func (rw *RWLock) board(ctx context.Context, r *readers, op, key string) (f *flight, began bool) {
	// A context may run hooks of the program, which may use rw. So it is not used with mu held.
	own := newFlightContext(ctx)
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if f = r.flights[op]; f != nil && !rw.alone {
		f.waiting++
		return f, false
	}
	f = &flight{
		call: new(several.Call), began: time.Now(), ctx: own, done: make(chan struct{}), waiting: 1,
	}
	if !rw.alone {
		r.flights[op] = f
	}
	go rw.fly(r, f, op, key)
	return f, true
}

// alight ends the wait of a caller, whose context is ctx, for f. It returns false if the caller is the last one. The
// flight then has to end, if it has not ended already, and the caller waits for that.
func (rw *RWLock) alight(ctx context.Context, r *readers, f *flight, op string) (left bool) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	select {
	case <-f.done:
		return false
	default:
	}
	if f.waiting > 1 {
		f.waiting--
		return true
	}
	if r.flights[op] == f { // those that come now begin another one
		delete(r.flights, op)
	}
	f.ctx.last = ctx
	close(f.ctx.over)
	return false
}

// take returns what f has got, for a caller that is counted in its users, or nil.
func (rw *RWLock) take(f *flight) *locks {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	k := f.locks
	if f.alone {
		f.locks = nil
	}
	return k
}

// fly finds a slot for the callers of f.
func (rw *RWLock) fly(r *readers, f *flight, op, key string) {
	var k *locks
	var err error
	defer func() { // also if a hook panics: the caller that has begun the flight panics then
		rw.land(r, f, op, k, err, recover())
	}()
	ctx := lockertrace.With(f.call.With(f.ctx), &lockertrace.Trace{Lost: func(error) { rw.tell(f) }})
	if k = rw.ask(ctx, r, key); k != nil {
		f.shared = true
		return
	}
	k, err = rw.enterGroup(ctx, op, key, shared, nil, nil)
	if !errors.Is(err, slots.ErrApart) {
		return
	}
	err = nil
	g := rw.group(key, "gate")
	if rw.isRead(r) { // a process has one slot, however long its readers read
		g.Enough = func() bool {
			k = rw.inherit(r)
			f.shared = k != nil
			return f.shared
		}
	}
	held, failed := method(op)(g, ctx, 1, nil)
	switch {
	case k == nil && failed == nil:
		k = newLocks(held, nil)
	case k == nil:
		err = failed
	case failed == nil:
		held.Wait() // for the gate
	}
}

// land ends f. k is what it has got, with one user.
func (rw *RWLock) land(r *readers, f *flight, op string, k *locks, err error, panicked any) {
	f.call.End()
	if k == nil && err == nil && panicked == nil {
		err = errGoexit
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	f.locks, f.err, f.panicked = k, err, panicked
	switch {
	case k == nil:
	case f.shared:
		k.users += f.waiting - 1
	case f.call.Shareable():
		pause := fresh
		if waited, _ := f.call.Seen(false, 0); waited {
			pause = soon
		}
		k.rest(k.granted, pause)
		k.users += f.waiting - 1
		r.current = k
	default:
		rw.alone, f.alone = true, true
	}
	if r.flights[op] == f {
		delete(r.flights, op)
	}
	close(f.done)
}

var errGoexit = errors.New("a hook or a middleware has ended the goroutine of the request")

// unfinished returns the error of a call whose context has ended while f goes on.
func (f *flight) unfinished(ctx context.Context) error {
	end := ending.Why(ctx, ctx.Err())
	held, _ := f.call.Seen(false, 0)
	switch {
	case held:
		return fmt.Errorf("%w: %w", end, locker.ErrHeld)
	case time.Since(f.began) >= time.Second: // as a contact that is unanswered for so long
		return fmt.Errorf("%w: %w", end, errSilent)
	}
	return end
}

var errSilent = fmt.Errorf("%w: it has not answered yet", locker.ErrUnavailable)

// settles reports whether the failure of f is that of a call, whose context is ctx. It is if the call has begun f, or
// came before it, or has ended it by leaving.
func (f *flight) settles(ctx context.Context, before bool) bool {
	return f.err != nil && (before || ctx.Err() != nil && errors.Is(f.err, ctx.Err()))
}

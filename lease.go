package locker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/passing"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/lockertrace"
)

// lease is the Lease of a Client. A grant has one of them at a time.
type lease struct {
	grant *grant
	fence uint64
	trace *lockertrace.Trace // of the context that the lease was acquired with; may be nil
	from  *stack             // who has asked for it; nil without the option Caller

	// The following are guarded by the mu of the grant.
	done      chan struct{}    // closed when err is set; nil until the first call of Done
	err       error            // why the lease ended; nil while it is held
	ended     time.Time        // when the lease ended
	unsettled bool             // what settle does when the lease has ended is still to be done
	passed    bool             // the lock was handed over to another caller of the Client
	part      bool             // of something else, such as a permit or an AllLease, so it cannot be exported
	wanted    *wanted          // nil until the first call of Wanted
	counts    []*atomic.Uint64 // see countEnd

	counted atomic.Bool // a call for several locks owns the lease, and it is counted in the attempts of the Client
}

// close ends the lease. Call with the mutex held.
func (l *lease) close(reason error) {
	l.err, l.ended = reason, time.Now()
	if l.done != nil {
		close(l.done)
	}
	for _, n := range l.counts {
		n.Add(1)
	}
}

func (l *lease) Key() string   { return l.grant.req.Key }
func (l *lease) Token() string { return l.grant.req.Token }
func (l *lease) Fence() uint64 { return l.fence }

// TTL returns the TTL of the next renewal. Package election looks for it behind middleware, as [Verify] looks for the
// lease.
func (l *lease) TTL() time.Duration { return l.grant.currentTTL() }

// Granted returns the block of tokens of the grant, and the label. Package audit looks for it in the same way.
func (l *lease) Granted() (first uint64, tokens int, label string) {
	req := &l.grant.req
	return req.Fence, max(1, req.Fences), req.Label
}

func (l *lease) Done() <-chan struct{} {
	l.grant.mu.Lock()
	defer l.grant.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

func (l *lease) Until() time.Time {
	g := l.grant
	g.mu.Lock()
	defer g.mu.Unlock()
	until := g.until
	if g.maxHold > 0 {
		until = earlier(until, g.start.Add(g.maxHold))
	}
	if l.err != nil {
		until = earlier(until, l.ended)
	}
	return until
}

func (l *lease) Err() error { return l.grant.finish(l, nil) }

// call makes a request for a caller, whose context is ctx. op names it in errors.
func (l *lease) call(
	ctx context.Context, op string, request func(ctx context.Context, cancel *context.CancelFunc) error,
) error {
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := request(bounded, &cancel); err != nil {
		if ended := l.Err(); ended != nil { // the end of the lease may have cancelled the request
			err = ended
		}
		return &Error{op, l.Key(), withContext(ctx, err)}
	}
	return nil
}

func (l *lease) Extend(ctx context.Context, opts ...Option) error {
	ttl, other := l.grant.currentTTL(), len(opts) > 0
	if other {
		var err error
		if ttl, err = extension(l.Key(), opts); err != nil {
			return &Error{"extend", l.Key(), err}
		}
		l.keep() // the next lease must not inherit the TTL
	}
	return l.call(ctx, "extend", func(ctx context.Context, cancel *context.CancelFunc) error {
		start := time.Now()
		err := l.grant.extend(ctx, l, cancel, ttl)
		if err == nil && other {
			l.grant.adopt(start, ttl)
		}
		return err
	})
}

// end returns when the lease ends if it is not extended. It may be later than that once Extend has set another TTL.
func (l *lease) end() time.Time {
	l.grant.mu.Lock()
	defer l.grant.mu.Unlock()
	end, _ := l.grant.end()
	return end
}

// countEnd adds one to n when the lease ends, or now if it has ended. Unlike atEnd, it does so before any hook is
// called.
func (l *lease) countEnd(n *atomic.Uint64) {
	l.grant.mu.Lock()
	defer l.grant.mu.Unlock()
	if l.err != nil {
		n.Add(1)
		return
	}
	l.counts = append(l.counts, n)
}

// atEnd has f called when the lease ends. It returns false if the lease has ended.
func (l *lease) atEnd(f *context.CancelFunc) bool {
	l.grant.mu.Lock()
	defer l.grant.mu.Unlock()
	if l.err != nil {
		return false
	}
	l.grant.asking = append(l.grant.asking, f)
	return true
}

// keep ends the hand-overs of the grant, unless l has ended.
func (l *lease) keep() {
	if q := l.grant.queue; q != nil && l.Err() == nil {
		q.over(l.grant)
	}
}

// Verify implements verifiable.
func (l *lease) Verify(ctx context.Context) error {
	return l.call(ctx, "verify", func(ctx context.Context, cancel *context.CancelFunc) error {
		v, ok := l.grant.client.backend.(backend.Verifier)
		if !ok {
			return errNoVerifier
		}
		if err := l.grant.ask(ctx, l, cancel, v.Verify); err != nil {
			return err
		}
		return l.Err()
	})
}

// Bind implements bindable.
func (l *lease) Bind(ctx context.Context, to any) error {
	b, binds := l.grant.client.backend.(backend.Binder)
	if binds {
		l.keep()
	}
	return l.call(ctx, "verify", func(ctx context.Context, cancel *context.CancelFunc) error {
		if !binds {
			return errNoBinder
		}
		var unknown error // to is of a type that the backend does not know, which is no failure of the store
		err := l.grant.ask(ctx, l, cancel, func(ctx context.Context, req backend.Request) error {
			err := b.Bind(ctx, req, to)
			if errors.Is(err, errors.ErrUnsupported) {
				unknown = err
			}
			return err
		})
		switch {
		case unknown != nil:
			return unknown
		case err != nil:
			return err
		}
		return l.Err()
	})
}

// releaseBound is how long Unlock waits for the store's answer, whatever the caller's context says. It is longer than a
// round trip between continents, and short enough for a shutdown while the store hangs. If Unlock did not wait after
// the end of that context, it would report nearly all releases as unknown that are answered within a millisecond.
const releaseBound = time.Second

var errUnlocking = fmt.Errorf("%w: another call of Unlock has not been answered yet", ErrUnavailable)

func (l *lease) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx); err != nil {
		return &Error{"unlock", l.Key(), err}
	}
	return nil
}

// unlock ends the lease, and hands the lock over to another caller of the Client or releases it. A release uses a new
// context that has the values of ctx and ends after releaseBound. ctx itself has often ended already, and a release
// with an ended context would not be sent.
func (l *lease) unlock(ctx context.Context) (err error) {
	export := passing.ExportFrom(ctx, l)
	if q := l.grant.queue; q != nil && export == nil && q.handOver(l) {
		l.discount()
		return nil
	}
	attempts := &l.grant.client.attempts
	attempts.add() // before the lease ends: Drain and Close wait for the release
	defer attempts.done()
	request := l.grant.client.backend.Release
	if export != nil {
		request = l.exporting(export)
	}
	defer func() { // also if a hook panics
		if export == nil || !errors.Is(l.Err(), ErrLost) {
			err = l.release(ctx, request)
		}
	}()
	return l.grant.finish(l, ErrUnlocked)
}

// release releases the lock of a lease that has ended, by a request to the backend.
func (l *lease) release(ctx context.Context, request func(context.Context, backend.Request) error) error {
	if several.Undoes(ctx) && !l.grant.belongsToAnother(l) {
		l.undo(ctx)
		return nil
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()

	g := l.grant
	err := g.beginRelease(rctx, l)
	if errors.Is(err, ErrUnlocked) {
		return err
	}
	if err != nil {
		return unreleased(ctx, rctx, err)
	}
	req := g.held()
	if g.minHold > 0 {
		req.Keep = max(0, g.minHold-time.Since(g.start))
	}
	owners := g.mayBelongTo()
	for n := 0; ; n++ {
		err = fromBackend(request(rctx, req))
		if n == len(owners) || !errors.Is(err, ErrNotHeld) {
			break
		}
		req.Token = owners[n]
	}
	notHeld := errors.Is(err, ErrNotHeld)
	unanswered := g.endRelease(err == nil || notHeld)
	switch {
	case err == nil:
		return nil
	case notHeld && unanswered:
		// The earlier release may have released the lock in time, or the lock may have been lost before.
		return fmt.Errorf("%w: the lock is no longer held, but an earlier release was not answered, so it is not "+
			"known when it ended", ErrUnavailable)
	case notHeld:
		lost := g.lost(err)
		if lost == nil {
			return fmt.Errorf("%w: the store has no such lock although its TTL is not over: the key was deleted, or "+
				"this release was sent twice and the first answer was lost", ErrUnavailable)
		}
		return fmt.Errorf("%w: %w", err, lost)
	default:
		return unreleased(ctx, rctx, err)
	}
}

// undo releases the lock of a lease that was never returned to a caller. It waits until ctx ends, if not for less.
func (l *lease) undo(ctx context.Context) {
	c := l.grant.client
	if !l.counted.Swap(false) && !c.enter(&c.attempts) {
		return // the Client is closed, and the lock ends with its TTL
	}
	released := c.giveUp(ctx, l.grant.held(), nil)
	c.attempts.done()
	select {
	case <-released:
	case <-ctx.Done():
	}
}

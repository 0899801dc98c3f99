package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/several"
)

// lossGrace is how long OnElected may take to return after its lease was lost, before that counts as an overrun.
const lossGrace = 50 * time.Millisecond

// candidacy is one campaign, and the term that follows if it is won.
type candidacy struct {
	ctx    context.Context // of OnElected once term is set
	cancel context.CancelCauseFunc
	term   *Term // nil until the candidate is elected
	lasted time.Duration
	cause  error // why the term ended; nil if OnElected just returned
	failed error // of OnElected, if it is not the end of its context

	over     chan struct{} // closed when the campaign has failed, or the lock is released or lost
	unlocked error         // of the release; read it when over is closed
	watched  chan struct{} // closed when nobody supervises the term any more; nil before the term
}

// campaign waits for the lock, leads, and releases the lock. It returns what went wrong, if ctx has not ended.
func (e *Election) campaign(ctx context.Context) (*candidacy, error) {
	c := &candidacy{over: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	if !e.beginCandidacy(c) {
		return c, nil
	}
	waiting := c.ctx
	defer c.awaitSupervisor() // also if OnElected panics
	err := e.hold(waiting, c)
	if c.term == nil {
		if waiting.Err() != nil { // Run ends, or the candidate is not healthy
			return c, nil
		}
		return c, err
	}
	c.awaitSupervisor() // so OnOverrun is not called after OnDemoted
	if c.cause == nil && errors.Is(err, locker.ErrLost) {
		c.cause = err // noticed by the release
	}
	if e.config.OnDemoted != nil {
		e.config.OnDemoted(*c.term, c.demotion())
	}
	if err = c.wrong(ctx); err != nil {
		err = fmt.Errorf("term %d: %w", c.term.Number, err)
	}
	return c, err
}

// hold waits for the lock, leads, and releases the lock. Callers of Resign learn of the release at once, because
// OnOverrun and OnDemoted may take long or call Resign.
func (e *Election) hold(waiting context.Context, c *candidacy) error {
	defer e.endCandidacy(c)
	err := locker.Do(waiting, terms{e.locker}, e.key, func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		if err := e.config.fits(lease); err != nil {
			return err
		}
		e.lead(ctx, c, lease)
		return nil
	}, e.config.options()...)
	if errors.Is(err, locker.ErrUnlocked) { // OnElected has released the lock
		err = nil
	}
	c.unlocked = err
	return err
}

// terms is the Locker of the terms. Only the call that acquires one is of that kind, and not those of OnElected.
type terms struct{ locker.Locker }

func (t terms) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.Locker.Lock(several.WithKind(ctx, "term"), key, opts...)
}

// awaitSupervisor waits until nobody supervises the term any more.
func (c *candidacy) awaitSupervisor() {
	if c.watched != nil {
		<-c.watched
	}
}

// demotion returns why the term ended, for OnDemoted.
func (c *candidacy) demotion() error {
	switch {
	case c.cause == nil:
		return c.failed
	case c.failed == nil:
		return c.cause
	}
	return fmt.Errorf("%w; OnElected: %w", c.cause, c.failed)
}

// wrong returns what went wrong in the term. ctx is that of Run. A term that was ended on purpose is not wrong, and
// what Healthy returns has been reported when it was called.
func (c *candidacy) wrong(ctx context.Context) error {
	cause, unlocked := c.cause, c.unlocked
	if errors.Is(cause, ErrResigned) || errors.Is(cause, ErrUnhealthy) || errors.Is(cause, locker.ErrUnlocked) ||
		ctx.Err() != nil && errors.Is(cause, context.Cause(ctx)) {
		cause = nil
	}
	if errors.Is(cause, locker.ErrLost) && errors.Is(unlocked, locker.ErrLost) {
		unlocked = nil // the same
	}
	return errors.Join(cause, c.failed, unlocked)
}

// beginCandidacy makes c the current candidacy, unless the candidate is not healthy.
func (e *Election) beginCandidacy(c *candidacy) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unhealthy != nil {
		return false
	}
	e.candidacy = c
	return true
}

// endCandidacy ends the candidacy.
func (e *Election) endCandidacy(c *candidacy) {
	e.mu.Lock()
	e.candidacy = nil
	e.mu.Unlock()
	close(c.over)
	if c.term != nil {
		pollAgain(e.locker, e.key)
	}
}

// lead is one term. ctx ends with the lease, or when c.cancel is called.
func (e *Election) lead(ctx context.Context, c *candidacy, lease locker.Lease) {
	term := Term{Number: lease.Fence(), Lease: lease}
	begun := time.Now()
	e.mu.Lock()
	c.term, c.ctx = &term, ctx
	e.mu.Unlock()
	pollAgain(e.locker, e.key)

	returned, watched := make(chan struct{}), make(chan struct{})
	defer close(returned)
	c.watched = watched
	go func() {
		defer close(watched)
		e.supervise(ctx, c, term, returned)
	}()
	err := e.config.OnElected(ctx, term)
	c.lasted = time.Since(begun)
	stopped := errors.Is(err, locker.ErrDraining) && e.drains() // it may learn of that before its context ends
	if ctx.Err() != nil {
		c.cause = context.Cause(ctx)
		stopped = stopped || errors.Is(err, context.Canceled) || errors.Is(err, c.cause)
	}
	if !stopped {
		c.failed = err
	}
}

// supervise ends the context of OnElected when only Config.StopTime is left of the lease, and reports a term that is
// not over in time.
func (e *Election) supervise(ctx context.Context, c *candidacy, term Term, returned <-chan struct{}) {
	left := func() time.Duration { return time.Until(term.Lease.Until()) - e.config.StopTime }
	stop := time.NewTimer(left())
	defer stop.Stop()
	if e.config.StopTime == 0 {
		stop.Stop()
	}
	for {
		select {
		case <-returned:
			return
		case <-ctx.Done():
			e.awaitReturn(ctx, term, returned)
			return
		case <-stop.C:
			if left() <= 0 {
				c.cancel(ErrUnrenewed)
			}
			stop.Reset(max(left(), time.Millisecond))
		}
	}
}

// awaitReturn reports an overrun if OnElected does not return in time after the end of ctx.
func (e *Election) awaitReturn(ctx context.Context, term Term, returned <-chan struct{}) {
	ended := time.Now()
	grace := time.Until(term.Lease.Until())
	if grace <= 0 {
		grace = lossGrace
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	lost := term.Lease.Done() // may be closed later than ctx ended
	for late := false; !late; {
		select {
		case <-returned:
			return
		case <-lost:
			lost = nil
			t.Reset(min(lossGrace, grace-time.Since(ended)))
		case <-t.C:
			late = true
		}
	}
	cause := context.Cause(ctx)
	if why := term.Lease.Err(); errors.Is(why, locker.ErrLost) && !errors.Is(cause, locker.ErrLost) {
		cause = fmt.Errorf("%w, and then: %w", cause, why)
	}
	consequence := "another candidate may lead"
	if term.Lease.Err() == nil {
		consequence = "the lock is still held"
	}
	err := fmt.Errorf("term %d: %w: its context ended %v ago (%w); %s", term.Number, ErrOverrun,
		time.Since(ended).Round(time.Millisecond), cause, consequence)
	e.config.report(e.key, err)
	if e.config.OnOverrun != nil {
		e.config.OnOverrun(err)
	}
}

// drains reports whether the Client of the election drains.
func (e *Election) drains() bool {
	select {
	case <-locker.Draining(e.locker):
		return true
	default:
		return false
	}
}

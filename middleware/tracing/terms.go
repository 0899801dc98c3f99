package tracing

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
)

// InstrumentElection returns c with an OnElected and an OnOverrun that record each term, and call those of c:
//
//	election.Run(ctx, l, "shard-7", tracing.InstrumentElection(election.Config{…}))
//
// If the Locker of the election has the middleware of [New], terms are recorded with its providers and other options,
// which opts change. Otherwise the options are those of opts, with the global providers.
func InstrumentElection(c election.Config, opts ...Option) election.Config {
	var last atomic.Pointer[scope] // of the last term
	elected, overrun := c.OnElected, c.OnOverrun
	if elected != nil { // election.Run reports that it is missing
		c.OnElected = func(ctx context.Context, term election.Term) error {
			s := scopeOf(term.Lease, opts)
			last.Store(s)
			return s.term(ctx, term, elected)
		}
	}
	c.OnOverrun = func(err error) {
		m := last.Load().metrics // a leader that overruns has been elected
		m.count(background, m.overruns, labels{})
		if overrun != nil {
			overrun(err)
		}
	}
	return c
}

// scopeOf returns the scope of a term with this lease.
func scopeOf(lease locker.Lease, opts []Option) *scope {
	o := options{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	if l, ok := locker.LeaseAs[*observed](lease); ok {
		if o = l.a.options; len(opts) == 0 {
			return l.a.scope
		}
	}
	return newScope(o, opts)
}

// term calls f, and records the term. The span is begun at the end, so that what f does is not in one trace that grows
// for as long as the term lasts.
func (s *scope) term(
	ctx context.Context, term election.Term, f func(context.Context, election.Term) error,
) (err error) {
	key, class := term.Lease.Key(), ""
	var attrs []attribute.KeyValue
	if s.class != nil {
		class = s.class(key)
	}
	if s.key != nil {
		attrs = append(attrs, attribute.String("locker.key", s.key(key)))
	}
	if class != "" {
		attrs = append(attrs, keyClass.String(class))
	}
	if term.Number <= math.MaxInt64 {
		attrs = append(attrs, attribute.Int64("locker.fence", int64(term.Number)))
	}
	begun, m := time.Now(), s.metrics
	m.move(ctx, m.leading, 1, labels{class: class})
	outcome, why := "panicked", error(nil)
	defer func() {
		m.move(background, m.leading, -1, labels{class: class})
		m.seconds(background, m.term, time.Since(begun), labels{outcome: outcome, class: class})
		_, span := s.tracer.Start(background, "locker.term", s.static, trace.WithTimestamp(begun),
			trace.WithAttributes(append(attrs, result.String(outcome))...))
		if why != nil {
			span.SetStatus(codes.Error, describe(why, key))
		}
		span.End()
	}()
	err = f(ctx, term)
	outcome, why = ofTerm(ctx, err)
	return err
}

// ofTerm returns the outcome of a term, and what was wrong if that is not what somebody wanted. err is that of
// OnElected.
func ofTerm(ctx context.Context, err error) (outcome string, wrong error) {
	if ctx.Err() == nil {
		if err != nil {
			return "error", err
		}
		return "returned", nil
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, locker.ErrLost):
		return "lost", cause
	case errors.Is(cause, election.ErrUnrenewed):
		return "unrenewed", cause
	case errors.Is(cause, election.ErrUnhealthy):
		return "unhealthy", cause
	case errors.Is(cause, election.ErrResigned):
		return "resigned", nil
	}
	return "ended", nil // the context of Run has
}

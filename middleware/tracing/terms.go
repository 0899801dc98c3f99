package tracing

import (
	"context"
	"errors"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
)

// Terms returns c with an OnElected and an OnOverrun that record each term, and call those of c:
//
//	election.Run(ctx, l, "shard-7", tracing.Terms(election.Config{…}))
//
// It takes the options of [New], and can be used with it or without.
func Terms(c election.Config, opts ...Option) election.Config {
	s := newScope(opts)
	elected, overrun := c.OnElected, c.OnOverrun
	if elected != nil { // election.Run reports that it is missing
		c.OnElected = func(ctx context.Context, term election.Term) error {
			return s.term(ctx, term, elected)
		}
	}
	c.OnOverrun = func(err error) {
		s.metrics.count(background, s.metrics.overruns, labels{})
		if overrun != nil {
			overrun(err)
		}
	}
	return c
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

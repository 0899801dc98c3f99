// Package tracing makes a [locker.Locker] report to OpenTelemetry, as traces and metrics. It uses the API only: what becomes
// of them is up to the providers that the program has set up, and without any the middleware costs next to nothing.
//
//	l = locker.Wrap(l, tracing.New())
//
// # Spans
//
//   - locker.lock: a call of Lock or TryLock, which the attribute locker.operation tells apart, with the waiting. Its events
//     are locker.attempt, locker.wait, locker.wake and, of a backend that asks several nodes, locker.vote; 64 at most, the
//     rest is counted.
//   - locker.extend and locker.unlock: a call of the Lease's methods, below the span of their context, with a link to
//     locker.lock.
//   - locker.renew: a renewal in the background that changed what is known: the first that failed, and the first that
//     succeeded again. Those that go well have no span: ten thousand leases would make thousands of them per second that
//     say nothing. The counter has them all.
//   - locker.lost: a lease ended without Unlock.
//
// The last two happen when the call has long returned. They begin traces of their own, with a link to locker.lock, so that
// no trace grows for as long as a lock is held, and a sampler decides on them for themselves, by their name if it likes.
//
// The context with the span goes on to the Locker below. Spans of Redis clients do not nest there: a node sends the
// commands of many callers in one exchange, which belongs to none of them.
//
// # What is an error
//
// Contention is not: locker.outcome says "held" of a TryLock that found the lock taken, "cancelled" and "timeout" of a call
// whose context ended, and the span's status stays unset. It is "error", with error.type, for what nobody has ordered:
// "unavailable" (also if the context ended while the store was silent), "no_quorum", "foreign_key", "closed", "lost",
// "not_held", "invalid" (bad input), and "_OTHER".
//
// # Metrics
//
//	locker.lock.acquire.duration  s             calls of Lock and TryLock, with waiting and failures
//	locker.lock.wait.duration     s             the waiting of those that waited
//	locker.lock.attempts          {attempt}     attempts per call
//	locker.lock.contentions       {contention}  calls that found the lock taken
//	locker.lock.waiters           {waiter}      calls that wait now
//	locker.lease.active           {lease}       leases held now
//	locker.lease.hold.duration    s             from the acquisition to Unlock or to the loss
//	locker.lease.remaining        s             validity left when Unlock was called, 0 if there was none
//	locker.lease.lost             {lease}       leases that ended without Unlock, or were gone when it came
//	locker.lease.renewals         {renewal}     renewals in the background
//	locker.node.vote.duration     s             answers of single nodes, by name; failures have an error.type
//
// Their attributes have few values each: locker.operation, locker.outcome, error.type, locker.lost.reason, locker.node.name.
//
// # What is not recorded
//
// Keys, unless [WithKey] or [WithKeyClass] say so. Owner tokens, in no case: who has one can release the lock.
package tracing

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
)

// ScopeName is the name of the instrumentation scope: that of the tracer and of the meter.
const ScopeName = "github.com/golocker/locker/middleware/tracing"

// New returns the middleware. It may be put around several Lockers, whose figures then add up; give each one of its own,
// with [WithAttributes], to tell them apart.
func New(opts ...Option) locker.Middleware {
	o := options{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	for _, opt := range opts {
		opt(&o)
	}
	s := &scope{
		tracer:  o.tracers.Tracer(ScopeName),
		metrics: newMetrics(o.meters.Meter(ScopeName), o.attributes),
		key:     o.key,
		class:   o.class,
		static:  trace.WithAttributes(o.attributes...),
	}
	for op := range s.start {
		s.start[op] = []trace.SpanStartOption{trace.WithAttributes(append(slices.Clip(o.attributes), operation.String(ops[op]))...)}
	}
	return func(next locker.Locker) locker.Locker { return &traced{next, s} }
}

// scope is what all calls through one middleware share.
type scope struct {
	tracer  trace.Tracer
	start   [len(ops)][]trace.SpanStartOption // made once: each call would have to allocate them
	static  trace.SpanStartOption             // what the others have
	metrics *metrics
	key     func(string) string // nil: not recorded
	class   func(string) string // nil: not recorded
}

type traced struct {
	next locker.Locker
	*scope
}

// Unwrap makes [locker.As] see through.
func (t *traced) Unwrap() locker.Locker { return t.next }

// Lock implements [locker.Locker].
func (t *traced) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.acquire(ctx, opLock, key, opts)
}

// TryLock implements [locker.Locker].
func (t *traced) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.acquire(ctx, opTryLock, key, opts)
}

func (t *traced) acquire(ctx context.Context, op op, key string, opts []locker.Option) (locker.Lease, error) {
	ctx, span := t.tracer.Start(ctx, spans[op], t.start[op]...)
	measured := t.metrics.enabled(ctx)
	if !measured && !span.SpanContext().IsValid() {
		// Nobody listens. If somebody does before the lease ends, it is too late for this one: what it is spared for that is
		// the most that a program without an SDK pays.
		defer span.End()
		return t.call(ctx, op, key, opts)
	}
	a := t.newAcquisition(op, key, span, measured)
	lease, err := t.call(locker.WithTrace(ctx, &a.trace), op, key, opts)
	a.returned(ctx, lease, err)
	if err != nil {
		return nil, err
	}
	return &observed{lease, a}, nil
}

func (t *traced) call(ctx context.Context, op op, key string, opts []locker.Option) (locker.Lease, error) {
	if op == opTryLock {
		return t.next.TryLock(ctx, key, opts...)
	}
	return t.next.Lock(ctx, key, opts...)
}

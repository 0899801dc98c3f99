// Package tracing is a middleware that reports the calls of a [locker.Locker] to OpenTelemetry, as traces and metrics.
// It depends only on the OpenTelemetry API. The program configures the providers. Without providers, the middleware
// does almost no work.
//
//	l = locker.Wrap(l, tracing.New())
//
// # Spans
//
//   - locker.lock is a call of Lock or TryLock, including the waiting. The attribute locker.operation says which. Its
//     events are locker.attempt, locker.wait, locker.wake and, on backends with several nodes, locker.vote. It has at
//     most 64 events; the attribute locker.events.dropped is the number of the others. If the lock was held, the
//     attribute locker.holder is the label of the holder that the call has seen last; see locker.Label. If another
//     caller of the same Client has handed the lock over, without the store, the attribute locker.handover is "local";
//     see locker.NoLocalHandover. There is no attempt then.
//   - locker.lock with the operation trylockmany is the step of locker.LockAll and locker.TryLockAll that acquires all
//     locks at once, if the Locker can do that. The attribute locker.keys is their number. Each lock then has spans of
//     its own for what happens later. If the outcome is "held" or "unsupported", each lock may be acquired by itself
//     afterwards, with a span for each.
//   - locker.extend and locker.unlock are calls of methods of the Lease. They are children of the span in their
//     context, and have a link to locker.lock.
//   - locker.renew is a renewal in the background that failed after a success, or succeeded after a failure. Other
//     renewals have no span, because many leases would cause too many spans. The metric locker.lease.renewals counts
//     all renewals.
//   - locker.lost is the end of a lease without Unlock.
//   - locker.term is a term of a leader; see [InstrumentElection]. It is recorded when the term is over.
//
// locker.renew and locker.lost may happen long after the call has returned. They start new traces, with a link to
// locker.lock. Otherwise a trace would grow for as long as a lock is held. A sampler can decide on them by their name.
//
// The context with the span is passed to the wrapped Locker. Spans of the store's client are not children of it,
// because the commands of many callers are sent in one exchange.
//
// # What is an error
//
// Contention is not an error. The attribute locker.outcome is "held" if TryLock found the lock taken. It is "cancelled"
// or "timeout" if the context of a call ended, "already_unlocked" if Unlock or Extend found the lease unlocked, and
// "unsupported" if several locks cannot be acquired in one step. The status of the span is not set then.
//
// For failures, locker.outcome is "error", the status of the span is set, and error.type is "unavailable", "no_quorum",
// "not_replicated", "foreign_key", "closed", "lost", "not_held", "invalid" or "_OTHER". It is also "unavailable" if the
// deadline of a context passed while the store did not answer.
//
// # Metrics
//
//	locker.lock.acquire.duration  s             calls of Lock, TryLock and TryLockMany, with waiting and failures
//	locker.lock.wait.duration     s             the waiting of those that waited
//	locker.lock.attempts          {attempt}     attempts per call
//	locker.lock.contentions       {contention}  calls that found the lock taken
//	locker.lock.waiters           {waiter}      calls that wait now
//	locker.lease.active           {lease}       leases held now
//	locker.lease.hold.duration    s             from the acquisition to Unlock or to the loss
//	locker.lease.remaining        s             validity left when Unlock was called, 0 if there was none
//	locker.lease.lost             {lease}       leases that ended without Unlock, or were not held when it was called
//	locker.lease.renewals         {renewal}     renewals in the background
//	locker.node.vote.duration     s             answers of single nodes, by name; failures have an error.type
//	locker.term.duration          s             how long candidates led; see [InstrumentElection]
//	locker.term.active            {term}        terms now: 1 in the process that leads
//	locker.term.overruns          {term}        leaders that have not stopped in time
//
// Their attributes are locker.operation, locker.outcome, error.type, locker.lost.reason and locker.node.name, and with
// [WithKeyClass] also locker.key.class, on most of them. The durations of the acquisition and of the waiting also have
// locker.handover, as the span has. Each has few values.
//
// # What is not recorded
//
// Keys are not recorded, unless [WithKey] or [WithKeyClass] is used. Labels of holders are recorded on spans, unless
// [WithoutHolder] is used. They are not recorded on metrics, where each label would create a series. Owner
// tokens are never recorded, because they are sufficient to release the lock.
package tracing

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// ScopeName is the name of the instrumentation scope, which is used for the tracer and the meter.
const ScopeName = "github.com/golocker/locker/middleware/tracing"

// New returns the middleware. It may wrap several Lockers, whose measurements are then added up. To tell them apart,
// use a middleware with different [WithAttributes] for each.
func New(opts ...Option) locker.Middleware {
	s := newScope(options{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}, opts)
	return func(next locker.Locker) locker.Locker { return &traced{next, s} }
}

// newScope returns a scope with the options o, which opts change.
func newScope(o options, opts []Option) *scope {
	o.attributes = slices.Clip(o.attributes)
	for _, opt := range opts {
		opt(&o)
	}
	s := &scope{
		options: o,
		tracer:  o.tracers.Tracer(ScopeName),
		metrics: newMetrics(o.meters.Meter(ScopeName), o.attributes),
		static:  trace.WithAttributes(o.attributes...),
	}
	for op := range s.start {
		attrs := append(slices.Clip(o.attributes), operation.String(ops[op]))
		s.start[op] = []trace.SpanStartOption{trace.WithAttributes(attrs...)}
	}
	return s
}

// scope is shared by all calls through one middleware.
type scope struct {
	options
	tracer  trace.Tracer
	start   [len(ops)][]trace.SpanStartOption // for the spans of operations; created once, because that allocates
	static  trace.SpanStartOption             // for the other spans
	metrics *metrics
}

type traced struct {
	next locker.Locker
	*scope
}

// Unwrap returns the wrapped Locker, for [locker.As].
func (t *traced) Unwrap() locker.Locker { return t.next }

// Lock implements [locker.Locker].
func (t *traced) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.acquire(ctx, opLock, key, opts)
}

// TryLock implements [locker.Locker].
func (t *traced) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.acquire(ctx, opTryLock, key, opts)
}

func (t *traced) acquire(
	ctx context.Context, op op, key string, opts []locker.Option,
) (returned locker.Lease, err error) {
	ctx, span := t.tracer.Start(ctx, spans[op], t.start[op]...)
	measured := t.metrics.enabled(ctx)
	if !measured && !span.SpanContext().IsValid() {
		// There is no SDK. Returning here avoids nearly all the cost of the middleware. If an SDK is installed before
		// the lease ends, it does not see this lease.
		span.End()
		return t.call(ctx, op, key, opts)
	}
	a := t.newRecord(op, []string{key}, span, measured)
	lease, err := t.call(lockertrace.With(ctx, &a.trace), op, key, opts)
	defer func() {
		if err == nil && returned == nil { // a span or an instrument has panicked
			_ = lease.Unlock(ctx)
		}
	}()
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

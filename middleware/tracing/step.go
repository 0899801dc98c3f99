package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// TryLockMany implements [locker.ManyLocker]. The call has one span, and each of its leases those of a lease.
func (t *traced) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	if _, ok := t.next.(locker.ManyLocker); !ok {
		return locker.TryLockMany(ctx, t.next, m, opts...)
	}
	ctx, span := t.tracer.Start(ctx, spans[opTryLockMany], t.start[opTryLockMany]...)
	measured := t.metrics.enabled(ctx)
	if !measured && !span.SpanContext().IsValid() { // as in acquire
		span.End()
		return locker.TryLockMany(ctx, t.next, m, opts...)
	}
	s := t.newStep(m.Keys, span, measured)
	leases, err := locker.TryLockMany(lockertrace.With(ctx, &s.trace), t.next, m, opts...)
	s.returned(ctx, leases, err)
	return leases, err
}

// step records one call of TryLockMany and the resulting leases.
type step struct {
	*record           // of the call; it has no lease
	parts   []*record // of the leases, in the order of the keys; they have no call
}

func (s *scope) newStep(keys []string, span trace.Span, measured bool) *step {
	call := &step{record: s.newRecord(opTryLockMany, keys, span, measured)}
	for i := range keys {
		call.parts = append(call.parts, s.newHold(opTryLockMany, keys[i:i+1], span))
	}
	call.trace.Renewed, call.trace.Lost = nil, nil
	call.trace.LeaseOf = func(i int) *lockertrace.Trace { return &call.parts[i].trace }
	return call
}

// returned is called when the call has returned. It replaces each of leases by one that is recorded.
func (s *step) returned(ctx context.Context, leases []locker.Lease, err error) {
	early := make([]*locker.LostError, len(leases))
	for i, lease := range leases {
		if lease == nil {
			continue
		}
		early[i] = s.parts[i].holds(ctx)
		leases[i] = &observed{lease, s.parts[i]}
	}
	s.finished(ctx, err, attribute.Int("locker.keys", len(s.parts)))
	for i, lost := range early {
		if lost != nil {
			s.parts[i].lost(lost)
		}
	}
}

// common returns the class of keys, or an empty one if they have different classes.
func common(keys []string, class func(string) string) string {
	if len(keys) == 0 {
		return ""
	}
	first := class(keys[0])
	for _, key := range keys[1:] {
		if class(key) != first {
			return ""
		}
	}
	return first
}

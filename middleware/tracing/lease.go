package tracing

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// observed is a Lease whose Extend and Unlock are recorded.
type observed struct {
	locker.Lease
	a *record
}

// Unwrap returns the wrapped Lease, for [locker.Verify].
func (l *observed) Unwrap() locker.Lease { return l.Lease }

// begin starts the span of an operation on the lease.
func (a *record) begin(ctx context.Context, op op) (context.Context, *spanRecorder) {
	ctx, span := a.tracer.Start(ctx, spans[op], a.start[op]...)
	s := &spanRecorder{span: span, recording: span.IsRecording()}
	if s.recording {
		if lock := a.call.span.SpanContext(); lock.IsValid() {
			span.AddLink(trace.Link{SpanContext: lock})
		}
		span.SetAttributes(a.attrs...)
	}
	if s.recording || wanted(ctx, a.metrics.vote) {
		ctx = lockertrace.With(ctx, &lockertrace.Trace{Voted: func(v lockertrace.Vote) { s.voted(a.metrics, v) }})
	}
	return ctx, s
}

func (l *observed) Extend(ctx context.Context, opts ...locker.Option) error {
	a := l.a
	inner, s := a.begin(ctx, opExtend)
	err := l.Lease.Extend(inner, opts...)
	if err == nil {
		a.mu.Lock()
		a.inDoubt = false
		a.mu.Unlock()
	}
	outcome, kind := ofCall(ctx, err, "extended")
	s.end(outcome, kind, a.keys, err)
	return err
}

func (l *observed) Unlock(ctx context.Context) error {
	a := l.a
	passed := false
	defer func() {
		if !passed { // the span has panicked
			_ = l.Lease.Unlock(ctx)
		}
	}()
	inner, s := a.begin(ctx, opUnlock)
	remaining := max(0, time.Until(l.Until()))
	passed = true
	err := l.Lease.Unlock(inner)
	outcome, kind := ofUnlock(err)

	held, first := a.end()
	if first {
		end := labels{outcome: "unlocked", kind: kind, class: a.class}
		var lost *locker.LostError
		if errors.As(err, &lost) { // Unlock is the first to notice the loss
			end = labels{outcome: "lost", reason: string(lost.Reason), class: a.class}
		}
		a.ended(inner, held, end)
	}
	a.mu.Lock()
	again := a.unlocking
	a.unlocking = true
	renewed, failed := a.renewed, a.failed
	a.mu.Unlock()
	if !again {
		a.metrics.seconds(inner, a.metrics.remaining, remaining, labels{class: a.class})
	}

	var attrs []attribute.KeyValue
	if s.recording && !again {
		attrs = append(attrs, seconds("locker.remaining", remaining),
			attribute.Int("locker.renewals", renewed), attribute.Int("locker.renewals.failed", failed))
	}
	if s.recording && first {
		attrs = append(attrs, seconds("locker.held", held))
	}
	var lost *locker.LostError
	if errors.As(err, &lost) && s.recording {
		attrs = append(attrs, lostReason.String(string(lost.Reason)))
	}
	s.end(outcome, kind, a.keys, err, attrs...)
	return err
}

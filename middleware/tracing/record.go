package tracing

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// record records one call of Lock or TryLock and the resulting lease, or a part of that; see step. Its methods are
// the hooks of the Trace.
type record struct {
	*scope
	op    op
	keys  []string  // one, except for a call of TryLockMany
	one   [1]string // which keys has then, so that it is not allocated by itself
	class string
	attrs []attribute.KeyValue // of the key, for spans
	begun time.Time
	call  spanRecorder
	trace lockertrace.Trace

	mu        sync.Mutex
	attempts  int
	granted   bool              // an attempt has acquired the lock
	holder    string            // the label of the holder that was seen last
	waiting   time.Time         // when the call began to wait; zero if it did not wait
	acquired  time.Time         // when the call returned with a lease; zero before
	early     *locker.LostError // set if the lease was lost before the call returned
	over      bool              // the lease is lost or unlocked
	inDoubt   bool              // the last renewal failed
	renewed   int               // number of renewals that succeeded
	failed    int               // number of renewals that failed
	unlocking bool              // Unlock was called
}

func (s *scope) newRecord(op op, keys []string, span trace.Span, measured bool) *record {
	a := s.newHold(op, keys, span)
	if a.call.recording {
		span.SetAttributes(a.attrs...)
		a.trace.Woken = a.woken
	}
	if a.call.recording || measured { // each hook costs an allocation
		a.trace.Attempted = a.attempted
		a.trace.Waiting = a.waits
		a.trace.Voted = a.voted
	}
	return a
}

// newHold records only the lease, and what is known of its keys.
func (s *scope) newHold(op op, keys []string, span trace.Span) *record {
	a := &record{scope: s, op: op, begun: time.Now()}
	a.keys = append(a.one[:0], keys...)
	a.call.span, a.call.recording = span, span.IsRecording()
	if s.class != nil {
		if a.class = common(keys, s.class); a.class != "" {
			a.attrs = append(a.attrs, keyClass.String(a.class))
		}
	}
	if s.key != nil {
		recorded := make([]string, len(keys))
		for i, key := range keys {
			recorded[i] = s.key(key)
		}
		a.attrs = append(a.attrs, attribute.String("locker.key", strings.Join(recorded, ",")))
	}
	a.trace.Renewed = a.renewal
	a.trace.Lost = func(err error) {
		var lost *locker.LostError
		if errors.As(err, &lost) {
			a.lost(lost)
		}
	}
	return a
}

func (a *record) attempted(t lockertrace.Attempt) {
	a.mu.Lock()
	a.attempts++
	a.granted = t.Err == nil
	a.saw(t.Err)
	a.mu.Unlock()
	if a.call.recording {
		outcome, kind := "acquired", ""
		switch {
		case errors.Is(t.Err, locker.ErrHeld):
			outcome = "held"
		case t.Err != nil:
			outcome, kind = "error", kindOf(t.Err)
		}
		attrs := []attribute.KeyValue{result.String(outcome), seconds("locker.duration", t.Duration)}
		if kind != "" {
			attrs = append(attrs, errorType.String(kind))
		}
		a.call.tell("locker.attempt", attrs...)
	}
}

// saw records the label of the holder if err has one. Call with mu held.
func (a *record) saw(err error) {
	if err == nil { // errors.As would allocate
		return
	}
	var held *locker.HeldError
	if errors.As(err, &held) {
		a.holder = held.Label
	}
}

func (a *record) waits(w lockertrace.Waiting) {
	a.mu.Lock()
	first := a.waiting.IsZero()
	if first {
		a.waiting = time.Now()
	}
	a.holder = w.Label
	a.mu.Unlock()
	if !first { // an inner middleware has called Lock again
		return
	}
	a.metrics.move(background, a.metrics.waiters, 1, labels{class: a.class})
	a.metrics.count(background, a.metrics.contentions, labels{op: ops[a.op], class: a.class})
	if a.call.recording {
		a.call.tell("locker.wait", seconds("locker.remaining", w.Remaining))
	}
}

func (a *record) woken(w lockertrace.Wake) {
	a.call.tell("locker.wake",
		attribute.String("locker.wake.reason", string(w.Reason)), seconds("locker.slept", w.Slept))
}

// voted is also called for renewals, after the span of the call has ended.
func (a *record) voted(v lockertrace.Vote) { a.call.voted(a.metrics, v) }

// returned is called when the call has returned.
func (a *record) returned(ctx context.Context, lease locker.Lease, err error) {
	if err != nil {
		a.finished(ctx, err)
		return
	}
	early := a.holds(ctx)
	var attrs []attribute.KeyValue
	if a.call.recording && lease.Fence() <= math.MaxInt64 {
		attrs = append(attrs, attribute.Int64("locker.fence", int64(lease.Fence())))
	}
	a.finished(ctx, nil, attrs...)
	if early != nil {
		a.lost(early)
	}
}

// holds is called when the lease is acquired. If the lease is lost already, holds returns the loss.
func (a *record) holds(ctx context.Context) (early *locker.LostError) {
	a.mu.Lock()
	a.acquired = time.Now()
	early = a.early
	a.mu.Unlock()
	a.metrics.move(ctx, a.metrics.active, 1, labels{class: a.class})
	return early
}

// finished records the call, which has returned err, and attrs on its span.
func (a *record) finished(ctx context.Context, err error, attrs ...attribute.KeyValue) {
	now := time.Now()
	outcome, kind := ofCall(ctx, err, "acquired")
	if outcome == unsupported {
		a.call.end(outcome, kind, a.keys, err, attrs...)
		return
	}
	a.mu.Lock()
	a.saw(err)
	attempts, waiting, holder := a.attempts, a.waiting, a.holder
	way := ""
	if err == nil && !waiting.IsZero() && !a.granted { // the hook Woken would cost an allocation
		way = "local"
		attrs = append(attrs, handover.String(way))
	}
	a.mu.Unlock()

	m, l := a.metrics, labels{op: ops[a.op], outcome: outcome, kind: kind, handover: way, class: a.class}
	m.seconds(ctx, m.acquire, now.Sub(a.begun), l)
	if attempts > 0 && wanted(ctx, m.attempts) {
		m.attempts.Record(ctx, int64(attempts), m.with(l).record...)
	}
	if !waiting.IsZero() {
		m.seconds(ctx, m.wait, now.Sub(waiting), l)
		m.move(ctx, m.waiters, -1, labels{class: a.class})
	} else if outcome == "held" {
		m.count(ctx, m.contentions, labels{op: ops[a.op], class: a.class})
	}

	if a.call.recording {
		attrs = append(attrs, attribute.Int("locker.attempts", attempts))
		if !waiting.IsZero() {
			attrs = append(attrs, seconds("locker.waited", now.Sub(waiting)))
		}
		if !a.noHolder && holder != "" {
			attrs = append(attrs, attribute.String("locker.holder", holder))
		}
	}
	a.call.end(outcome, kind, a.keys, err, attrs...)
}

func (a *record) lost(e *locker.LostError) {
	a.mu.Lock()
	if a.acquired.IsZero() {
		// The lease was lost before the call returned. If the call fails, the lease was known only to an inner
		// middleware.
		a.early = e
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	if held, ok := a.end(); ok {
		a.ended(background, held, labels{outcome: "lost", reason: string(e.Reason), class: a.class})
		a.span("locker.lost", 0, "lost", e, lostReason.String(string(e.Reason)), seconds("locker.held", held))
	}
}

// end marks the lease as ended. It returns how long the lease was held, and false if it had already ended.
func (a *record) end() (held time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ok, a.over = !a.over, true
	return time.Since(a.acquired), ok
}

// ended measures the end of the lease. l has a reason if the lease was lost.
func (a *record) ended(ctx context.Context, held time.Duration, l labels) {
	m := a.metrics
	m.move(ctx, m.active, -1, labels{class: a.class})
	m.seconds(ctx, m.hold, held, l)
	if l.reason != "" {
		m.count(ctx, m.lost, labels{reason: l.reason, class: a.class})
	}
}

func (a *record) renewal(r lockertrace.Renewal) {
	outcome, kind := "renewed", ""
	switch {
	case errors.Is(r.Err, locker.ErrLost):
		outcome = "lost"
	case r.Err != nil:
		outcome, kind = "error", kindOf(r.Err)
	}
	a.metrics.count(background, a.metrics.renewals, labels{outcome: outcome, kind: kind, class: a.class})
	a.mu.Lock()
	was := a.inDoubt
	a.inDoubt = outcome == "error"
	if r.Err == nil {
		a.renewed++
	} else {
		a.failed++
	}
	a.mu.Unlock()
	if outcome != "lost" && was != (outcome == "error") { // a loss has its own span
		a.span("locker.renew", r.Duration, kind, r.Err, result.String(outcome))
	}
}

// span records a span for an event in the background that has just ended.
func (a *record) span(name string, took time.Duration, kind string, err error, attrs ...attribute.KeyValue) {
	lock := a.call.span.SpanContext()
	if !lock.IsValid() { // there is no SDK
		return
	}
	now := time.Now()
	_, span := a.tracer.Start(background, name, a.static, trace.WithTimestamp(now.Add(-took)),
		trace.WithLinks(trace.Link{SpanContext: lock}), trace.WithAttributes(attrs...))
	if span.IsRecording() {
		span.SetAttributes(a.attrs...)
		if kind != "" {
			span.SetAttributes(errorType.String(kind))
			span.SetStatus(codes.Error, describe(err, a.keys...))
		}
	}
	span.End(trace.WithTimestamp(now))
}

// background is the context for events in the background. The context of the call is not kept for the life of the
// lease, because it may reference a whole request.
var background = context.Background()

func seconds(name string, d time.Duration) attribute.KeyValue {
	return attribute.Float64(name, d.Seconds())
}

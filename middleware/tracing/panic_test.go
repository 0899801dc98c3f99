package tracing_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/tracing"
)

// fragile is a provider of spans that panics in its nth call.
type fragile struct {
	noop.TracerProvider
	n *atomic.Int64
}

func (f fragile) call() {
	if f.n.Add(-1) == 0 {
		panic("span")
	}
}

func (f fragile) Tracer(string, ...trace.TracerOption) trace.Tracer { return fragileTracer{f: f} }

type fragileTracer struct {
	noop.Tracer
	f fragile
}

func (t fragileTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.f.call()
	s := fragileSpan{f: t.f}
	return trace.ContextWithSpan(ctx, s), s
}

type fragileSpan struct {
	noop.Span
	f fragile
}

func (s fragileSpan) SpanContext() trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
}

func (s fragileSpan) IsRecording() bool                     { return true }
func (s fragileSpan) End(...trace.SpanEndOption)            { s.f.call() }
func (s fragileSpan) AddEvent(string, ...trace.EventOption) { s.f.call() }
func (s fragileSpan) SetAttributes(...attribute.KeyValue)   { s.f.call() }
func (s fragileSpan) AddLink(trace.Link)                    { s.f.call() }

// Whichever call of a span panics, no lock stays taken.
func TestSpanThatPanicsLeavesNoLock(t *testing.T) {
	keys := []string{"a", "b"}
	for name, use := range map[string]func(ctx context.Context, l locker.Locker) (locker.Lease, error){
		"Lock":    func(ctx context.Context, l locker.Locker) (locker.Lease, error) { return l.Lock(ctx, "a") },
		"TryLock": func(ctx context.Context, l locker.Locker) (locker.Lease, error) { return l.TryLock(ctx, "a") },
		"LockAll": func(ctx context.Context, l locker.Locker) (locker.Lease, error) { return locker.LockAll(ctx, l, keys) },
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				panicked := false
				virtual.Test(t, func(t *testing.T) {
					store, left := memory.NewBackend(), new(atomic.Int64)
					left.Store(int64(n))
					c, other := locker.NewClient(store), locker.NewClient(store)
					l := locker.Wrap(c, tracing.New(tracing.WithTracerProvider(fragile{n: left})))
					func() {
						defer func() { panicked = recover() != nil }()
						lease, err := use(t.Context(), l)
						if err != nil {
							t.Error(err)
							return
						}
						_ = lease.Unlock(t.Context())
					}()
					time.Sleep(time.Second)
					lease, err := locker.TryLockAll(t.Context(), other, keys)
					if err != nil {
						t.Fatalf("after a panic in call %d: %v", n, err)
					}
					if err := lease.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
					_, _ = c.Close(), other.Close()
				})
				if !panicked {
					if n < 5 {
						t.Errorf("%d calls", n-1)
					}
					return
				}
			}
		})
	}
}

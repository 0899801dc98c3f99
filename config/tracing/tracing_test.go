package tracing_test

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/config/tracing"
)

// recorder records the names of the spans that begin. Each span has an identity, as if it were sampled.
type recorder struct {
	noop.TracerProvider
	names []string
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{recorder: r} }

type tracer struct {
	noop.Tracer
	*recorder
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.names = append(t.names, name)
	identity := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
	return t.Tracer.Start(trace.ContextWithSpanContext(ctx, identity), name, opts...)
}

// A program that imports the package and opens a URL with tracing=true has spans from the global provider.
func TestTracingFromAURL(t *testing.T) {
	spans := &recorder{}
	otel.SetTracerProvider(spans)
	l, err := config.Open(t.Context(), "memory:?tracing=true")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := l.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"locker.lock", "locker.unlock"}; !slices.Equal(spans.names, want) {
		t.Errorf("spans %q, want %q", spans.names, want)
	}
}

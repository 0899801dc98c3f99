package tracing_test

import (
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/config/tracing"
)

// A program that imports the package and says tracing=true has spans from the global provider.
func TestTracingFromAURL(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
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
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
	}
	if len(names) != 2 || names[0] != "locker.lock" || names[1] != "locker.unlock" {
		t.Errorf("spans %q", names)
	}
}

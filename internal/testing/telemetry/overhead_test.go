package telemetry_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/golocker/locker"
	"github.com/golocker/locker/middleware/tracing"
)

// instant is a Locker that always returns the same lease and does not allocate. All measured allocations are thus those
// of the middleware.
type instant struct{ lease locker.Lease }

func (i instant) Lock(context.Context, string, ...locker.Option) (locker.Lease, error) {
	return i.lease, nil
}

func (i instant) TryLock(context.Context, string, ...locker.Option) (locker.Lease, error) {
	return i.lease, nil
}

// still is a lease whose methods always succeed.
type still struct{ locker.Lease }

func (still) Until() time.Time             { return time.Time{} }
func (still) Fence() uint64                { return 1 }
func (still) Unlock(context.Context) error { return nil }

type setup struct {
	name   string
	allocs float64
	opts   func() []tracing.Option
}

// setups has configurations of OpenTelemetry, with the number of allocations of lock and unlock. Only the first number
// is documented. The others are the present values, so that an increase is noticed.
var setups = []setup{
	{"no-op", 4, func() []tracing.Option {
		return []tracing.Option{tracing.WithTracerProvider(nooptrace.NewTracerProvider()),
			tracing.WithMeterProvider(noopmetric.NewMeterProvider())}
	}},
	{"global, without an SDK", 4, func() []tracing.Option {
		return []tracing.Option{tracing.WithTracerProvider(otel.GetTracerProvider()),
			tracing.WithMeterProvider(otel.GetMeterProvider())}
	}},
	{"nothing sampled, no metrics", 14, func() []tracing.Option {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
		return []tracing.Option{tracing.WithTracerProvider(p), tracing.WithMeterProvider(noopmetric.NewMeterProvider())}
	}},
	{"nothing sampled, metrics", 20, func() []tracing.Option {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
		m := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
		return []tracing.Option{tracing.WithTracerProvider(p), tracing.WithMeterProvider(m)}
	}},
	{"all sampled, metrics", 40, func() []tracing.Option {
		m := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
		return []tracing.Option{tracing.WithTracerProvider(sdktrace.NewTracerProvider()), tracing.WithMeterProvider(m)}
	}},
}

func cycle(ctx context.Context, l locker.Locker) {
	lease, _ := l.Lock(ctx, key)
	_ = lease.Unlock(ctx)
}

func TestAllocations(t *testing.T) {
	// Before OpenTelemetry 1.40 instruments do not tell whether they are enabled, so the middleware always measures.
	_, tells := any(noopmetric.Float64Histogram{}).(interface{ Enabled(context.Context) bool })
	for _, s := range setups {
		if !tells {
			s.allocs = max(s.allocs, 20)
		}
		l := locker.Wrap(instant{still{}}, tracing.New(s.opts()...))
		got := testing.AllocsPerRun(1000, func() { cycle(context.Background(), l) })
		if got > s.allocs {
			t.Errorf("%s: %v allocations, %v are allowed", s.name, got, s.allocs)
		}
	}
}

// Package middleware_test checks that every middleware keeps the contract of the Locker that it wraps, in any order.
package middleware_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/middleware/tracing"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// middlewares has all middleware except [locker.Defaults] and package audit, in the order that config uses, the
// outermost first.
var middlewares = []struct {
	name string
	make func() locker.Middleware
}{
	{"tracing", func() locker.Middleware {
		return tracing.New(tracing.WithTracerProvider(sampler{}), tracing.WithMeterProvider(listener{}))
	}},
	{"retry", func() locker.Middleware { return retry.New() }},
	{"logging", func() locker.Middleware {
		return logging.New(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}},
}

// sampler begins spans that have an identity, as sampled ones have, and that record nothing. The middleware treats them
// like recorded spans. In internal/testing/telemetry the same suite runs with the SDK.
type sampler struct{ nooptrace.TracerProvider }

func (sampler) Tracer(string, ...trace.TracerOption) trace.Tracer { return sampled{} }

type sampled struct{ nooptrace.Tracer }

func (s sampled) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	identity := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	})
	return s.Tracer.Start(trace.ContextWithSpanContext(ctx, identity), name, opts...)
}

// listener has histograms that are enabled, and drop the measured values.
type listener struct{ noopmetric.MeterProvider }

func (listener) Meter(string, ...metric.MeterOption) metric.Meter { return listening{} }

type listening struct{ noopmetric.Meter }

func (listening) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return histogram{}, nil
}

type histogram struct{ noopmetric.Float64Histogram }

func (histogram) Enabled(context.Context) bool { return true }

// orders returns all permutations of the middlewares.
func orders() (all [][]int) {
	var extend func(order []int)
	extend = func(order []int) {
		if len(order) == len(middlewares) {
			all = append(all, slices.Clone(order))
		}
		for i := range middlewares {
			if !slices.Contains(order, i) {
				extend(append(order, i))
			}
		}
	}
	extend(nil)
	return all
}

// wrap wraps l in audit and Defaults, and then in the middlewares, in the given order. The log belongs right around a
// Client.
func wrap(l locker.Locker, order []int) locker.Locker {
	var ms []locker.Middleware
	for _, i := range order {
		ms = append(ms, middlewares[i].make())
	}
	ms = append(ms, locker.Defaults(locker.TTL(locker.DefaultTTL)), audit.New(io.Discard).Middleware("store"))
	return locker.Wrap(l, ms...)
}

// name returns an order as it is written in a program, as far as the name of a test allows that.
func name(order []int, backend string) string {
	var names []string
	for _, i := range order {
		names = append(names, middlewares[i].name)
	}
	return strings.Join(append(names, backend), " of ")
}

// opener opens a Locker over simulated nodes, with a network to all of them.
type opener func(nodes simnode.Nodes, network simnode.Network, opts ...simnode.Option) locker.Locker

// simulated returns stores with n simulated nodes that share a network. The drivers of every second client keep to
// deadlines.
func simulated(n int, open opener) func(t testing.TB) conformance.Store {
	return func(testing.TB) conformance.Store {
		var w simnode.Wire
		nodes, clients := simnode.NewNodes(n), 0
		return conformance.Store{
			Client: func() locker.Locker {
				if clients++; clients%2 == 0 {
					return open(nodes, w.DeliverInTime, simnode.Direct(func() bool { return true }))
				}
				return open(nodes, w.Deliver)
			},
			Delete: func(key string) { nodes.Delete(single.DefaultPrefix + key) },
			Hang:   w.Hang,
			Left:   nodes.Left,
		}
	}
}

func openSingle(nodes simnode.Nodes, network simnode.Network, opts ...simnode.Option) locker.Locker {
	return single.New(nodes[0].Driver(network, opts...))
}

func openCluster(nodes simnode.Nodes, network simnode.Network, opts ...simnode.Option) locker.Locker {
	return single.New(simnode.Cluster(nodes, func(int) simnode.Network { return network }, opts...))
}

func openRedlock(nodes simnode.Nodes, network simnode.Network, opts ...simnode.Option) locker.Locker {
	var ds []drivers.Driver
	for _, n := range nodes {
		ds = append(ds, n.Driver(network, opts...))
	}
	return redlockOf(ds)
}

func redlockOf(ds []drivers.Driver) *locker.Client {
	return redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
}

// conform runs suites over a store whose clients are wrapped in the middlewares.
func conform(
	t *testing.T, order []int, h conformance.Harness, suites ...func(t *testing.T, h conformance.Harness),
) {
	store := h.Store
	h.Store = func(t testing.TB) conformance.Store {
		s := store(t)
		client := s.Client
		s.Client = func() locker.Locker { return wrap(client(), order) }
		return s
	}
	h.Retries = true
	for _, suite := range suites {
		suite(t, h)
	}
}

func TestConformance(t *testing.T) {
	stores := map[string]conformance.Harness{
		"memory": {
			Store: func(testing.TB) conformance.Store {
				b := memory.NewBackend()
				return conformance.Store{Client: func() locker.Locker { return locker.NewClient(b) }}
			},
		},
		"single": {
			Store: simulated(1, openSingle),
		},
		"cluster": {
			Store: simulated(3, openCluster),
		},
		"redlock": {Store: simulated(3, openRedlock)},
	}
	for backend, h := range stores {
		h.Bubble = virtual.Test
		t.Run(backend, func(t *testing.T) {
			for _, order := range short.Part(t, 1, orders()) {
				t.Run(name(order, backend), func(t *testing.T) {
					conform(t, order, h, conformance.RunLocker, conformance.RunSemaphore, conformance.RunRWLock)
				})
			}
		})
	}
}

// Optional interfaces of a Locker are found behind all of them.
func TestOptionalInterfacesAreFoundBehindMiddleware(t *testing.T) {
	for _, order := range orders() {
		c := memory.New()
		l := wrap(c, order)
		if closer, ok := locker.As[io.Closer](l); !ok || closer != io.Closer(c) {
			t.Errorf("%s: the Client's Close is hidden", name(order, "memory"))
		}
		i, ok := locker.As[inspect.Inspector](l)
		if !ok {
			t.Fatalf("%s: what looks into the store is hidden", name(order, "memory"))
		}
		if seen, err := i.Inspect(t.Context(), "k"); err != nil || seen.State != inspect.Free {
			t.Errorf("%s: the lock is shown as %+v, %v", name(order, "memory"), seen, err)
		}
		lease, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if lease.Key() != "k" || lease.Token() == "" || lease.Fence() == 0 || lease.Until().IsZero() ||
			lease.Err() != nil {
			t.Errorf("%s: the lease does not show what it is", name(order, "memory"))
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	}
}

// Observability: some workers contend for a few locks, and OpenTelemetry records it. Spans and metrics go to stdout,
// or by OTLP to a collector.
//
//	cd examples/observability
//	go run .                                             # in memory, to stdout
//	LOCKER_URL=redlock://host1,host2,host3 go run .      # on Redis: with the votes of its nodes
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 go run . -for 10m
//
// The last command sends to a collector, for long enough to see something on docs/dashboards/locker.json.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that LOCKER_URL may name
	"github.com/golocker/locker/middleware/tracing"
)

var (
	workers  = flag.Int("workers", 4, "how many `workers` contend")
	duration = flag.Duration("for", 2*time.Second, "end after this `time`, or on Ctrl-C")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	otlp := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
	t, err := newTelemetry(ctx, otlp, os.Stdout)
	if err != nil {
		return err
	}
	// This is closed last: closing the Locker ends leases, and that is recorded, too.
	defer func() { err = errors.Join(err, t.flush()) }()

	url := cmp.Or(os.Getenv("LOCKER_URL"), "memory:")
	store, err := config.Open(ctx, url)
	if err != nil {
		return err
	}
	defer store.Close()
	backend, _, _ := strings.Cut(url, ":")
	l := locker.Wrap(store, tracing.New(
		tracing.WithTracerProvider(t.tracers),
		tracing.WithMeterProvider(t.meters),
		tracing.WithAttributes(attribute.String("locker.backend", backend)),
		tracing.WithKeyClass(class),
		tracing.WithKey(tracing.Hashed),
	))

	shop := &shop{locker: l, tracer: t.tracers.Tracer("github.com/golocker/locker/examples/observability")}
	n, err := shop.open(ctx)
	fmt.Fprintf(os.Stderr, "%d orders were worked on, %d were left to others\n", n, shop.left.Load())
	return err
}

// class returns the kind of a lock. The keys themselves would make a series of metrics each.
func class(key string) string {
	kind, _, _ := strings.Cut(key, ":")
	return kind
}

// shop is a program with some work under locks.
type shop struct {
	locker locker.Locker
	tracer trace.Tracer
	left   atomic.Int64
}

// open lets all workers work until the time is over. It returns how many orders they worked on.
func (s *shop) open(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, *duration)
	defer cancel()
	var done atomic.Int64
	errs := make([]error, *workers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = s.request(ctx, &done)
			}
		})
	}
	wg.Wait()
	return done.Load(), errors.Join(errs...)
}

// request is one piece of work with a span of its own, which is the parent of the spans of its locks.
func (s *shop) request(ctx context.Context, done *atomic.Int64) error {
	ctx, span := s.tracer.Start(ctx, "work on an order")
	defer span.End()
	err := s.work(ctx)
	switch {
	case err == nil:
		done.Add(1)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // closing time
		err = nil
	case errors.Is(err, locker.ErrHeld):
		s.left.Add(1)
		err = nil
	default:
		span.SetStatus(codes.Error, "the order was not worked on")
	}
	return err
}

// work takes an order that no other worker has, and then waits for the till.
func (s *shop) work(ctx context.Context) (err error) {
	order, err := s.locker.TryLock(ctx, fmt.Sprintf("order:%d", rand.N(10)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, order.Unlock(ctx)) }()
	return locker.Do(ctx, s.locker, "till:1", func(ctx context.Context) error {
		select {
		case <-time.After(5*time.Millisecond + rand.N(20*time.Millisecond)):
		case <-ctx.Done(): // closing time, or the lock is lost
		}
		return context.Cause(ctx)
	})
}

package main

import (
	"context"
	"errors"
	"io"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// telemetry is the SDK, which exports the spans and measurements of the middleware.
type telemetry struct {
	tracers *trace.TracerProvider
	meters  *metric.MeterProvider
}

// newTelemetry sends everything by OTLP if the environment names an endpoint (OTEL_EXPORTER_OTLP_ENDPOINT and the
// like). Otherwise it writes to w.
func newTelemetry(ctx context.Context, otlp bool, w io.Writer) (*telemetry, error) {
	var spans trace.SpanExporter
	var figures metric.Exporter
	var err, err2 error
	if otlp {
		spans, err = otlptracehttp.New(ctx)
		figures, err2 = otlpmetrichttp.New(ctx)
	} else {
		spans, err = stdouttrace.New(stdouttrace.WithWriter(w))
		figures, err2 = stdoutmetric.New(stdoutmetric.WithWriter(w))
	}
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	// The environment wins (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES).
	own := resource.NewSchemaless(attribute.String("service.name", "locker-example"))
	res, err := resource.Merge(own, resource.Environment())
	if err != nil {
		return nil, err
	}
	return &telemetry{
		tracers: trace.NewTracerProvider(trace.WithBatcher(spans), trace.WithResource(res)),
		meters:  metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(figures)), metric.WithResource(res)),
	}, nil
}

// flush sends what has not been sent yet. The program may end by Ctrl-C, so its context has ended already. A
// collector that does not answer must not keep the program from ending.
func (t *telemetry) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(t.tracers.Shutdown(ctx), t.meters.Shutdown(ctx))
}

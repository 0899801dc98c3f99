package tracing

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	attributes []attribute.KeyValue
	key, class func(string) string
}

// WithTracerProvider says where spans go. nil or not given: to the global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) {
		if p != nil {
			o.tracers = p
		}
	}
}

// WithMeterProvider says where measurements go. nil or not given: to the global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(o *options) {
		if p != nil {
			o.meters = p
		}
	}
}

// WithAttributes puts attrs on all spans and measurements. They tell several Lockers of a program apart.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	attrs = slices.Clone(attrs)
	return func(o *options) { o.attributes = append(o.attributes, attrs...) }
}

// WithKey records f of the key on spans, as locker.key; not on metrics, where each value would cost a series. f may be
// [Full], [Hashed], or a function of your own; it may be called concurrently. Without this option keys are not recorded:
// they tend to name customers.
func WithKey(f func(key string) string) Option { return func(o *options) { o.key = f } }

// WithKeyClass records f of the key on spans and on most metrics, as locker.key.class: "orders" of "orders:42", say. That tells
// which kind of lock is contended or lost. f must have few values, ten or so: each multiplies the series, and past 2,000
// attribute sets OpenTelemetry lumps what comes together. It may be called concurrently. "" is not recorded.
func WithKeyClass(f func(key string) string) Option { return func(o *options) { o.class = f } }

// Full is for [WithKey]: keys are recorded as they are.
func Full(key string) string { return key }

// Hashed is for [WithKey]: the beginning of the key's SHA-256 is recorded, which finds the spans of one key without
// telling which it is. Who can guess the key can check the guess.
func Hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

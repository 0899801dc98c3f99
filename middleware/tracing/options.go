package tracing

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Option changes the middleware that [New] returns.
type Option func(*options)

type options struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	attributes []attribute.KeyValue
	key, class func(string) string // nil if they are not recorded
	noHolder   bool
}

// WithTracerProvider sets the provider for spans. The default, also if p is nil, is the global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) {
		if p != nil {
			o.tracers = p
		}
	}
}

// WithMeterProvider sets the provider for metrics. The default, also if p is nil, is the global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(o *options) {
		if p != nil {
			o.meters = p
		}
	}
}

// WithAttributes adds attrs to all spans and measurements, for example to tell several Lockers of a program apart.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	attrs = slices.Clone(attrs)
	return func(o *options) { o.attributes = append(o.attributes, attrs...) }
}

// WithKey records the result of f for the key on spans, as locker.key. It is not recorded on metrics, where each value
// would create a series. f may be [Full], [Hashed] or another function. It may be called concurrently. Without WithKey,
// keys are not recorded, because they often contain the names of customers.
func WithKey(f func(key string) string) Option { return func(o *options) { o.key = f } }

// WithKeyClass records the result of f for the key on spans and on most metrics, as locker.key.class. It shows which
// kind of lock is contended or lost. For example, f may return "orders" for "orders:42".
//
// f must return only a few different values, about ten. Each value multiplies the number of series, and OpenTelemetry
// puts all measurements beyond 2,000 attribute sets into one series. f may be called concurrently. An empty string is
// not recorded.
func WithKeyClass(f func(key string) string) Option { return func(o *options) { o.class = f } }

// WithoutHolder leaves out the attribute locker.holder on spans, which is the label of the holder that the call has
// seen. Without this option it is recorded. It is never recorded on metrics.
func WithoutHolder() Option { return func(o *options) { o.noHolder = true } }

// Full is for [WithKey]. It returns the key unchanged.
func Full(key string) string { return key }

// Hashed is for [WithKey]. It returns the beginning of the key's SHA-256 in hexadecimal. The spans of a key can be
// found by it, but the key is not visible. A reader who guesses the key can verify the guess.
func Hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

package tracing

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The attributes of spans, events and measurements.
const (
	operation  = attribute.Key("locker.operation")
	result     = attribute.Key("locker.outcome")
	errorType  = attribute.Key("error.type")
	handover   = attribute.Key("locker.handover")
	lostReason = attribute.Key("locker.lost.reason")
	nodeName   = attribute.Key("locker.node.name")
	keyClass   = attribute.Key("locker.key.class")
)

// labels are the attributes of a measurement. Empty ones are omitted.
type labels struct{ op, outcome, kind, handover, reason, node, class string }

// Boundaries of histograms, in seconds. The defaults of OpenTelemetry are for milliseconds.
var (
	latencies  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	answers    = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	holds      = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}
	validities = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	counts     = []float64{1, 2, 3, 5, 8, 13, 21, 34}
)

type metrics struct {
	acquire, wait, hold, remaining, vote metric.Float64Histogram
	attempts                             metric.Int64Histogram
	contentions, lost, renewals          metric.Int64Counter
	waiters, active, leading             metric.Int64UpDownCounter
	term                                 metric.Float64Histogram
	overruns                             metric.Int64Counter
	all                                  []any

	static []attribute.KeyValue
	sets   atomic.Pointer[map[labels]*set] // the map is replaced, never changed
}

// set is one set of attributes, as the options of measurements. It is created once, because that allocates.
type set struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// maxSets is how many sets are kept, in case the function of [WithKeyClass] has too many values.
const maxSets = 1000

func newMetrics(meter metric.Meter, static []attribute.KeyValue) *metrics {
	m := &metrics{static: slices.Clone(static)}
	m.sets.Store(&map[labels]*set{})
	var errs []error
	seconds := func(name, description string, boundaries []float64) metric.Float64Histogram {
		i, err := meter.Float64Histogram(name, metric.WithDescription(description), metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(boundaries...))
		errs, m.all = append(errs, err), append(m.all, i)
		return i
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		i, err := meter.Int64Counter(name, metric.WithDescription(description), metric.WithUnit(unit))
		errs, m.all = append(errs, err), append(m.all, i)
		return i
	}
	upDown := func(name, unit, description string) metric.Int64UpDownCounter {
		i, err := meter.Int64UpDownCounter(name, metric.WithDescription(description), metric.WithUnit(unit))
		errs, m.all = append(errs, err), append(m.all, i)
		return i
	}
	m.acquire = seconds("locker.lock.acquire.duration",
		"Duration of calls of Lock and TryLock, with waiting and failures.", latencies)
	m.wait = seconds("locker.lock.wait.duration",
		"How long calls of Lock waited for another owner, of those that did.", latencies)
	m.contentions = counter("locker.lock.contentions", "{contention}",
		"Calls of Lock and TryLock that found the lock taken.")
	m.waiters = upDown("locker.lock.waiters", "{waiter}",
		"Calls of Lock that wait for another owner now.")
	m.active = upDown("locker.lease.active", "{lease}",
		"Leases that are held now.")
	m.hold = seconds("locker.lease.hold.duration",
		"How long leases were held, from the acquisition to Unlock or to the loss.", holds)
	m.remaining = seconds("locker.lease.remaining",
		"Validity that was left when Unlock was called; 0 if there was none.", validities)
	m.lost = counter("locker.lease.lost", "{lease}",
		"Leases that ended without Unlock, or were no longer held when Unlock was called.")
	m.renewals = counter("locker.lease.renewals", "{renewal}",
		"Renewals in the background.")
	m.vote = seconds("locker.node.vote.duration",
		"How long single nodes took to answer or to fail.", answers)
	m.term = seconds("locker.term.duration",
		"How long candidates led.", holds)
	m.leading = upDown("locker.term.active", "{term}",
		"Terms of leaders of this process now.")
	m.overruns = counter("locker.term.overruns", "{term}",
		"Leaders that have not stopped in time after their term.")
	var err error
	m.attempts, err = meter.Int64Histogram("locker.lock.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts to acquire per call of Lock and TryLock."),
		metric.WithExplicitBucketBoundaries(counts...))
	m.all = append(m.all, m.attempts)
	if err := errors.Join(append(errs, err)...); err != nil {
		otel.Handle(err)
	}
	return m
}

// enabled reports whether any of the instruments is enabled.
func (m *metrics) enabled(ctx context.Context) bool {
	for _, i := range m.all {
		if wanted(ctx, i) {
			return true
		}
	}
	return false
}

// wanted reports whether anybody wants what an instrument measures. Instruments of OpenTelemetry before 1.40 do not
// tell, and then it is measured.
func wanted(ctx context.Context, instrument any) bool {
	i, ok := instrument.(interface{ Enabled(context.Context) bool })
	return !ok || i.Enabled(ctx)
}

func (m *metrics) with(l labels) *set {
	sets := m.sets.Load()
	if s, ok := (*sets)[l]; ok {
		return s
	}
	option := metric.WithAttributeSet(attribute.NewSet(append(slices.Clone(m.static), l.attributes()...)...))
	s := &set{[]metric.AddOption{option}, []metric.RecordOption{option}}
	if len(*sets) < maxSets {
		more := maps.Clone(*sets)
		more[l] = s
		m.sets.CompareAndSwap(sets, &more) // if it fails, the set is added by a later measurement
	}
	return s
}

func (l labels) attributes() (attrs []attribute.KeyValue) {
	for _, a := range []struct {
		key   attribute.Key
		value string
	}{
		{operation, l.op}, {result, l.outcome}, {errorType, l.kind}, {handover, l.handover},
		{lostReason, l.reason}, {nodeName, l.node}, {keyClass, l.class},
	} {
		if a.value != "" {
			attrs = append(attrs, a.key.String(a.value))
		}
	}
	return attrs
}

func (m *metrics) seconds(ctx context.Context, i metric.Float64Histogram, d time.Duration, l labels) {
	if wanted(ctx, i) {
		i.Record(ctx, d.Seconds(), m.with(l).record...)
	}
}

func (m *metrics) count(ctx context.Context, i metric.Int64Counter, l labels) {
	if wanted(ctx, i) {
		i.Add(ctx, 1, m.with(l).add...)
	}
}

func (m *metrics) move(ctx context.Context, i metric.Int64UpDownCounter, by int64, l labels) {
	if wanted(ctx, i) {
		i.Add(ctx, by, m.with(l).add...)
	}
}

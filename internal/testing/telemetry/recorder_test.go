package telemetry_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/middleware/tracing"
)

// recorder is an SDK whose exporters keep everything in memory.
type recorder struct {
	*testing.T
	begun   time.Time
	spans   *tracetest.InMemoryExporter
	reader  *sdkmetric.ManualReader
	tracers *sdktrace.TracerProvider
	meters  *sdkmetric.MeterProvider
	tokens  tokens
}

// tokens are the owner values that must not be recorded.
type tokens struct {
	mu  sync.Mutex
	all []string
}

func (t *tokens) note(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, token)
}

func newRecorder(t *testing.T, readers ...sdkmetric.Reader) *recorder {
	r := &recorder{T: t, begun: time.Now(), spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	r.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	opts := []sdkmetric.Option{sdkmetric.WithReader(r.reader)}
	for _, reader := range readers {
		opts = append(opts, sdkmetric.WithReader(reader))
	}
	r.meters = sdkmetric.NewMeterProvider(opts...)
	return r
}

func (r *recorder) wrap(l locker.Locker, opts ...tracing.Option) locker.Locker {
	opts = append([]tracing.Option{tracing.WithTracerProvider(r.tracers), tracing.WithMeterProvider(r.meters)}, opts...)
	return locker.Wrap(l, tracing.New(opts...))
}

// request starts a span like a program.
func (r *recorder) request() context.Context {
	ctx, span := r.tracers.Tracer("test").Start(context.Background(), "request")
	r.Cleanup(func() { span.End() })
	return ctx
}

// record runs f in virtual time and returns what was recorded. It fails if that contains a token or a key.
func record(t *testing.T, f func(r *recorder)) (spans, metrics string) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		f(r)
		synctest.Wait()
		spans, metrics = r.tree(), r.figures()
		if len(r.tokens.all) == 0 && !strings.Contains(spans, "attempts=0") {
			t.Error("no token was noted, so none can be missed")
		}
		for _, secret := range append(r.tokens.all, key) {
			if strings.Contains(spans+metrics, secret) {
				t.Errorf("%q was recorded", secret)
			}
		}
	})
	return spans, metrics
}

func (r *recorder) since(t time.Time) time.Duration { return t.Sub(r.begun) }

// tree returns all spans that have ended, except those of the test, as text with all details.
func (r *recorder) tree() string {
	all := r.spans.GetSpans()
	slices.SortStableFunc(all, func(a, b tracetest.SpanStub) int {
		return cmp.Or(a.StartTime.Compare(b.StartTime), cmp.Compare(a.Name, b.Name))
	})
	names := map[trace.SpanID]string{}
	for _, s := range all {
		names[s.SpanContext.SpanID()] = s.Name
	}
	var w strings.Builder
	for _, s := range all {
		if s.InstrumentationScope.Name != tracing.ScopeName {
			r.Errorf("span %s is of scope %s", s.Name, s.InstrumentationScope.Name)
		}
		if s.SpanKind != trace.SpanKindInternal {
			r.Errorf("span %s is of kind %s", s.Name, s.SpanKind)
		}
		fmt.Fprintf(&w, "%s %v-%v", s.Name, r.since(s.StartTime), r.since(s.EndTime))
		if s.Parent.IsValid() {
			fmt.Fprintf(&w, " in %s", cmp.Or(names[s.Parent.SpanID()], "request"))
		}
		for _, l := range s.Links {
			fmt.Fprintf(&w, " of %s", names[l.SpanContext.SpanID()])
		}
		if s.Status.Code != codes.Unset {
			fmt.Fprintf(&w, " %s: %s", s.Status.Code, s.Status.Description)
		}
		fmt.Fprintf(&w, "\n  %s\n", list(s.Attributes))
		for _, line := range eventLines(r, s.Events) {
			fmt.Fprintf(&w, "  %s\n", line)
		}
	}
	return w.String()
}

// eventLines returns the events in their order. Votes at the same time have no defined order and are sorted.
func eventLines(r *recorder, events []sdktrace.Event) (lines []string) {
	var votes []string
	flush := func() {
		slices.Sort(votes)
		lines, votes = append(lines, votes...), nil
	}
	for i, e := range events {
		line := fmt.Sprintf("%v %s: %s", r.since(e.Time), strings.TrimPrefix(e.Name, "locker."), list(e.Attributes))
		if i > 0 && !e.Time.Equal(events[i-1].Time) || e.Name != "locker.vote" {
			flush()
		}
		if e.Name == "locker.vote" {
			votes = append(votes, line)
		} else {
			lines = append(lines, line)
		}
	}
	flush()
	return lines
}

// firstFence is the clock of a bubble at its beginning, and so what tokens of package memory begin at.
const firstFence = 946684800000000

func list(attrs []attribute.KeyValue) string {
	words := make([]string, len(attrs))
	for i, a := range attrs {
		value := a.Value.Emit()
		if n := a.Value.AsInt64() - firstFence; a.Key == "locker.fence" && 0 < n && n < 100 { // a token of package memory
			value = strconv.FormatInt(n, 10)
		}
		words[i] = strings.TrimPrefix(string(a.Key), "locker.") + "=" + value
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// instrument describes an instrument as it must be.
type instrument struct {
	kind, unit, description string
	boundaries              []float64
}

var latencies = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

var instruments = map[string]instrument{
	"locker.lock.acquire.duration": {"histogram", "s",
		"Duration of calls of Lock and TryLock, with waiting and failures.", latencies},
	"locker.lock.wait.duration": {"histogram", "s",
		"How long calls of Lock waited for another owner, of those that did.", latencies},
	"locker.lock.attempts": {"histogram", "{attempt}", "Attempts to acquire per call of Lock and TryLock.",
		[]float64{1, 2, 3, 5, 8, 13, 21, 34}},
	"locker.lock.contentions": {"counter", "{contention}", "Calls of Lock and TryLock that found the lock taken.", nil},
	"locker.lock.waiters":     {"updown", "{waiter}", "Calls of Lock that wait for another owner now.", nil},
	"locker.lease.active":     {"updown", "{lease}", "Leases that are held now.", nil},
	"locker.lease.hold.duration": {"histogram", "s",
		"How long leases were held, from the acquisition to Unlock or to the loss.",
		[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}},
	"locker.lease.remaining": {"histogram", "s", "Validity that was left when Unlock was called; 0 if there was none.",
		[]float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}},
	"locker.lease.lost": {"counter", "{lease}",
		"Leases that ended without Unlock, or were no longer held when Unlock was called.",
		nil},
	"locker.lease.renewals": {"counter", "{renewal}", "Renewals in the background.", nil},
	"locker.term.active":    {"updown", "{term}", "Terms of leaders of this process now.", nil},
	"locker.term.overruns":  {"counter", "{term}", "Leaders that have not stopped in time after their term.", nil},
	"locker.term.duration": {"histogram", "s", "How long candidates led.",
		[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}},
	"locker.node.vote.duration": {"histogram", "s", "How long single nodes took to answer or to fail.",
		[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}},
}

// collect returns all data points, each as a line, and checks the description of every instrument.
func (r *recorder) collect() map[string][]string {
	var rm metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &rm); err != nil {
		r.Fatal(err)
	}
	points := map[string][]string{}
	for _, scope := range rm.ScopeMetrics {
		if scope.Scope.Name != tracing.ScopeName {
			r.Errorf("metrics of scope %s", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			got := instrument{unit: m.Unit, description: m.Description}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				got.kind = "updown"
				if data.IsMonotonic {
					got.kind = "counter"
				}
				for _, p := range data.DataPoints {
					points[m.Name] = append(points[m.Name],
						fmt.Sprintf("{%s} %d", list(p.Attributes.ToSlice()), p.Value))
				}
			case metricdata.Histogram[float64]:
				got.kind = "histogram"
				for _, p := range data.DataPoints {
					got.boundaries = p.Bounds
					points[m.Name] = append(points[m.Name],
						fmt.Sprintf("{%s} %d: %.4g", list(p.Attributes.ToSlice()), p.Count, p.Sum))
				}
			case metricdata.Histogram[int64]:
				got.kind = "histogram"
				for _, p := range data.DataPoints {
					got.boundaries = p.Bounds
					points[m.Name] = append(points[m.Name],
						fmt.Sprintf("{%s} %d: %d", list(p.Attributes.ToSlice()), p.Count, p.Sum))
				}
			default:
				r.Errorf("%s is a %T", m.Name, m.Data)
			}
			want := instruments[m.Name]
			if got.kind != want.kind || got.unit != want.unit || got.description != want.description ||
				!slices.Equal(got.boundaries, want.boundaries) {
				r.Errorf("instrument %s\ngot  %+v\nwant %+v", m.Name, got, want)
			}
		}
	}
	return points
}

// figures returns all data points as text.
func (r *recorder) figures() string {
	points := r.collect()
	var w strings.Builder
	for _, name := range slices.Sorted(maps.Keys(points)) {
		slices.Sort(points[name])
		for _, p := range points[name] {
			fmt.Fprintf(&w, "%s %s\n", strings.TrimPrefix(name, "locker."), p)
		}
	}
	return w.String()
}

// same compares texts line by line. want may be indented and begins with an empty line.
func same(t *testing.T, what, got, want string) {
	t.Helper()
	clean := func(s string) (lines []string) {
		for line := range strings.Lines(strings.TrimSpace(s)) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return lines
	}
	if !slices.Equal(clean(got), clean(want)) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}

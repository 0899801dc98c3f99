package tracing

import (
	"fmt"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"
)

// What the middleware records is tested against the OpenTelemetry SDK and Prometheus, in internal/testing/telemetry.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// If a class has too many values, the memory for its sets of attributes is bounded all the same.
func TestSetsOfAttributesAreBounded(t *testing.T) {
	m := newMetrics(noop.NewMeterProvider().Meter(""), nil)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range maxSets {
				if s := m.with(labels{class: fmt.Sprint(g, "-", i)}); len(s.add) == 0 || len(s.record) == 0 {
					t.Error("there is nothing to record with")
				}
			}
		})
	}
	wg.Wait()
	if n := len(*m.sets.Load()); n != maxSets {
		t.Errorf("%d sets of attributes are kept, want %d", n, maxSets)
	}
}

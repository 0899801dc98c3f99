package tracing

import (
	"fmt"
	"os"
	"regexp"
	"slices"
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

// The package comment is the list of the metrics, and pages refer to it.
func TestThePackageCommentListsTheMetrics(t *testing.T) {
	code, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("tracing.go")
	if err != nil {
		t.Fatal(err)
	}
	names := func(of []byte, form string) (names []string) {
		for _, m := range regexp.MustCompile(form).FindAllSubmatch(of, -1) {
			names = append(names, string(m[1]))
		}
		slices.Sort(names)
		return names
	}
	made := names(code, `(?:seconds|counter|upDown|Histogram)\("(locker\.[a-z.]+)"`)
	listed := names(text, `(?m)^//\t(locker\.[a-z.]+) +(?:s|\{)`)
	if len(made) < 10 || !slices.Equal(made, listed) {
		t.Errorf("metrics.go has %q\nthe package comment has %q", made, listed)
	}
}

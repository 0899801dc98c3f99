package conform

import (
	"slices"
	"strings"
	"testing"
)

const printed = `=== RUN   Conformance
=== RUN   Conformance/First
=== PAUSE Conformance/First
=== RUN   Conformance/Second
=== PAUSE Conformance/Second
=== RUN   Conformance/Third
=== PAUSE Conformance/Third
=== CONT  Conformance/First
=== CONT  Conformance/Third
    third.go:1: no such thing
=== NAME  Conformance/First
    first.go:1: expected one holder, seen 2 at once
        and this
=== CONT  Conformance/Second
=== NAME  Conformance/First
    property.go:32: the rule
--- FAIL: Conformance (0.00s)
    --- SKIP: Conformance/Third (0.00s)
    --- PASS: Conformance/Second (1.25s)
    --- FAIL: Conformance/First (0.50s)
FAIL
`

func TestReadTellsWhatFailedAndWhy(t *testing.T) {
	var started []string
	results := Read(strings.NewReader(printed), func(p string) { started = append(started, p) })
	if want := []string{"First", "Third", "Second"}; !slices.Equal(started, want) {
		t.Errorf("started: %q, want %q", started, want)
	}
	want := []Result{
		{"Third", Skipped, 0, []string{"third.go:1: no such thing"}},
		{"Second", Passed, 1250e6, nil},
		{"First", Failed, 500e6,
			[]string{"first.go:1: expected one holder, seen 2 at once", "and this", "property.go:32: the rule"}},
	}
	if len(results) != len(want) {
		t.Fatalf("%+v", results)
	}
	for i, r := range results {
		w := want[i]
		if r.Property != w.Property || r.Outcome != w.Outcome || r.Took != w.Took || !slices.Equal(r.Log, w.Log) {
			t.Errorf("%+v, want %+v", r, w)
		}
	}
}

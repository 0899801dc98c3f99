package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRecordKeepsVerdictsApart(t *testing.T) {
	var order []string
	verdicts := record(t, "harness", []property[string]{
		{"Passes", "rule one", func(t testing.TB, h string) { t.Logf("saw %s", h) }},
		{"Fails", "rule two", func(t testing.TB, _ string) { t.Errorf("first"); t.Errorf("second") }},
		{"FailsNow", "rule three", func(t testing.TB, _ string) {
			t.Cleanup(func() { order = append(order, "outer") })
			t.Cleanup(func() {
				order = append(order, "inner")
				assert.Error(t, t.Context().Err(), "clean-up runs with an ended context")
			})
			t.Fatalf("stop")
			panic("not reached")
		}},
		{"Skips", "rule four", func(t testing.TB, _ string) { t.Skip("no hook") }},
		{"Panics", "rule five", func(testing.TB, string) { panic("oops") }},
	})
	assert.Equal(t, map[string]verdict{
		"Passes":   {log: "saw harness"},
		"Fails":    {failed: true, log: "first\nsecond\nthe rule of Fails: rule two"},
		"FailsNow": {failed: true, log: "stop\nthe rule of FailsNow: rule three"},
		"Skips":    {skipped: true, log: "no hook"},
		"Panics":   {failed: true, log: "panic: oops\nthe rule of Panics: rule five"},
	}, verdicts)
	assert.Equal(t, []string{"inner", "outer"}, order)
}

func TestRunMakesSubtests(t *testing.T) {
	ran := make(chan string, 2)
	t.Run("suite", func(t *testing.T) {
		check := func(t testing.TB, _ int) { ran <- t.Name() }
		run(t, 0, []property[int]{{"One", "", check}, {"Two", "", check}})
	})
	assert.ElementsMatch(t, []string{t.Name() + "/suite/One", t.Name() + "/suite/Two"}, []string{<-ran, <-ran})
}

package conformance

import "testing"

// property is one promise of a contract and the check that finds out whether it is kept. H is the harness of the
// suite.
//
// A check sees a testing.TB, not a *testing.T, so that the tests of this package can run it against an
// implementation that is broken on purpose and record the verdict (see recorder_test.go), and so that it can be checked anew (see trial.go).
// It must treat it as an ordinary test would: FailNow and its like only from the goroutine that runs the check.
type property[H any] struct {
	name  string // the subtest
	rule  string // one sentence, printed on failure
	why   string // what goes wrong where it is broken: one sentence, printed too
	check func(t testing.TB, h H)
}

// run runs each property in a subtest of t: in parallel with the others, more than once if the machine stalls, or in a
// bubble of its own.
func run[H any](t *testing.T, h H, bubble func(*testing.T, func(*testing.T)), properties []property[H]) {
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) {
			if bubble != nil {
				bubble(t, func(t *testing.T) { p.verify(t, h) })
				return
			}
			t.Parallel()
			p.try(t, h)
		})
	}
}

// verify runs the check, and states the rule and its reason if it failed.
func (p property[H]) verify(t testing.TB, h H) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the rule of %s: %s", p.name, p.rule)
			t.Logf("why it matters: %s", p.why)
		}
	})
	p.check(t, h)
}

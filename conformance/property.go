package conformance

import "testing"

// property is one promise of a contract, with the check for it. H is the harness of the suite.
//
// A check takes a testing.TB, not a *testing.T, for two reasons. The tests of this package run it against
// implementations with planted bugs and record the verdict (see recorder_test.go). And a failed check may be repeated
// (see trial.go). As in any test, only the goroutine that runs the check may call FailNow and similar methods.
type property[H any] struct {
	name  string // the subtest
	rule  string // printed on failure
	why   string // what goes wrong if the rule is broken; printed as well
	check func(t testing.TB, h H)
}

// run runs each property in a subtest of t: either in its own bubble, or in parallel with the others. In the second
// case a property that failed is repeated if this process or the store stood still.
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

// verify runs the check. If it fails, verify prints the rule and its reason.
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

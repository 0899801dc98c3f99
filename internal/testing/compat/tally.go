package main

import "slices"

// tally has the results of one server.
type tally struct {
	failed []string
	flaky  []string
}

// add notes the tests of an outcome that failed.
func (t *tally) add(o *outcome) {
	for _, name := range o.failed() {
		if !slices.Contains(o.flaky, name) {
			t.failed = append(t.failed, o.dir+" "+name)
		}
	}
	if o.broken != "" {
		t.failed = append(t.failed, o.dir+": "+o.broken)
	}
	for _, name := range o.flaky {
		t.flaky = append(t.flaky, o.dir+" "+name)
	}
	slices.Sort(t.failed)
	slices.Sort(t.flaky)
}

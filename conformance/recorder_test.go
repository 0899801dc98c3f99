package conformance

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/internal/testing/virtual"
)

// verdict is the result of one property.
type verdict struct {
	failed, skipped bool
	log             string
}

// record runs each property against h as run does, and returns the verdicts by property name instead of reporting them.
// The tests of a suite expect a broken implementation to fail.
func record[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	return recordBy(t, h, properties, property[H].verify)
}

// recordInRealTime is record for checks that a stall of the machine would fail.
func recordInRealTime[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	return recordBy(t, h, properties, property[H].try)
}

func recordBy[H any](t testing.TB, h H, properties []property[H],
	verify func(property[H], testing.TB, H)) map[string]verdict {
	t.Helper()
	trials := make([]*trial, len(properties))
	var wg sync.WaitGroup
	for i, p := range properties {
		r := newTrial(t)
		r.name += "/" + p.name
		trials[i] = r
		wg.Go(func() { r.run(func() { verify(p, r, h) }) })
	}
	wg.Wait()
	verdicts := map[string]verdict{}
	for i, p := range properties {
		verdicts[p.name] = verdict{trials[i].Failed(), trials[i].Skipped(), trials[i].texts()}
	}
	return verdicts
}

// notCalled is the Bubble of harnesses for virtually.
func notCalled(*testing.T, func(*testing.T)) { panic("record makes no subtests") }

// virtually is record in one bubble for all properties.
func virtually[H any](t *testing.T, h H, properties []property[H]) (verdicts map[string]verdict) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		verdicts = record(t, h, properties)
		time.Sleep(2 * time.Minute) // goroutines that a property has abandoned come to their end
	})
	return verdicts
}

// wantFailures checks that the listed properties have failed and, unless broad is set, that no others have. Every
// failure has to print what was expected and what was seen, the rule, and its reason.
func wantFailures(t *testing.T, verdicts map[string]verdict, want []string, broad bool) {
	t.Helper()
	failed := failures(verdicts)
	names := slices.Sorted(maps.Keys(failed))
	if broad {
		assert.Subset(t, names, want)
	} else {
		assert.ElementsMatch(t, want, names)
	}
	for _, name := range names {
		said, _, _ := strings.Cut(failed[name], "\nthe rule of "+name+": ")
		for line := range strings.SplitSeq(said, "\n") {
			assert.Regexp(t, "expected .*[,;] seen ", line)
		}
		assert.Contains(t, failed[name], "\nthe rule of "+name+": ")
		assert.Contains(t, failed[name], "\nwhy it matters: ")
		if t.Failed() {
			first, _, _ := strings.Cut(failed[name], "\n")
			t.Logf("%s: %s", name, first)
		}
	}
}

// failures lists the names of the failed properties.
func failures(verdicts map[string]verdict) map[string]string {
	failed := map[string]string{}
	for name, v := range verdicts {
		if v.failed {
			failed[name] = v.log
		}
	}
	return failed
}

// texts returns the recorded lines without their positions.
func (r *trial) texts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := make([]string, len(r.notes))
	for i, n := range r.notes {
		lines[i] = n.text
	}
	return strings.Join(lines, "\n")
}

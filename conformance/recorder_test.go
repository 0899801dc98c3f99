package conformance

import (
	"sync"
	"testing"
)

// verdict is what a trial heard about one property.
type verdict struct {
	failed, skipped bool
	log             string
}

// record runs each property against h as run does, but keeps the verdicts to itself, by name of the property: a test of
// a suite wants a broken implementation to fail.
func record[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	return recordBy(t, h, properties, property[H].verify)
}

// recordInRealTime is record for what a machine that stalls would fail.
func recordInRealTime[H any](t testing.TB, h H, properties []property[H]) map[string]verdict {
	t.Helper()
	return recordBy(t, h, properties, property[H].try)
}

func recordBy[H any](t testing.TB, h H, properties []property[H], verify func(property[H], testing.TB, H)) map[string]verdict {
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

// failures lists the properties that failed.
func failures(verdicts map[string]verdict) map[string]string {
	failed := map[string]string{}
	for name, v := range verdicts {
		if v.failed {
			failed[name] = v.log
		}
	}
	return failed
}

package soak

import (
	"fmt"
	"slices"
	"time"
)

// report prints how often what has happened, and where the time went.
func (tr *trial) report(began time.Time, took time.Duration) {
	tr.Helper()
	n := func(is func(s *span) bool) int {
		return tr.judge.count(func(s *span) bool { return s.last > 0 && is(s) })
	}
	acquired := func(k kind) int { return n(func(s *span) bool { return s.Kind == k && !s.changed() }) }
	tr.Logf("acquisitions: %d of permits, %d shared, of which %d in a slot of others, %d upgradeable, %d exclusive",
		acquired(permit), acquired(shared), tr.judge.handed(), acquired(upgradeable), acquired(exclusive))
	tr.Logf("%d upgrades, %d of them with a downgrade, %d downgrades, %d certificates", n((*span).upgraded),
		tr.judge.cycles(), n((*span).downgraded), n(func(s *span) bool { return s.certificate > 0 }))
	tr.Logf("at once, at most: %v", tr.judge.most())
	all := n(func(s *span) bool { return !s.changed() })
	tr.Logf("%d acquisitions, %d processes in %v; %v", all, tr.number, took.Round(time.Second), tr.faults)

	quiet := without(stretch{began.UnixNano(), began.Add(took).UnixNano()}, tr.outages)
	in := n(func(s *span) bool { return !s.changed() && covers(quiet, s.At) })
	tr.Logf("acquisitions per minute: %s, %s while nothing was broken, which was %s of the time",
		perMinute(all, took), perMinute(in, length(quiet)), share(length(quiet), took))
	tr.Logf("somebody had it while nothing was broken: %v", tr.judge.busy(quiet))
}

func perMinute(n int, d time.Duration) string {
	if d <= 0 {
		return "none"
	}
	return fmt.Sprintf("%.0f", float64(n)/d.Minutes())
}

func share(part, whole time.Duration) string {
	if whole <= 0 {
		return "none"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// busy returns for which share of some times somebody relied on a lease, by key. Where that is nearly always, holders
// make the others wait, and elsewhere the store does.
func (j *judge) busy(times []stretch) map[string]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	busy := map[string]string{}
	for key, spans := range j.byKey() {
		var held []stretch
		for _, s := range spans {
			if s.last > 0 {
				held = append(held, stretch{s.At, s.last})
			}
		}
		var idle time.Duration
		for _, s := range times {
			idle += length(without(s, held))
		}
		busy[key] = share(length(times)-idle, length(times))
	}
	return busy
}

// stretch is a time from one moment to another.
type stretch struct{ from, until int64 }

// without returns what is left of all if others are taken out, which are in the order of their beginnings.
func without(all stretch, others []stretch) (left []stretch) {
	for _, o := range others {
		if o.from >= all.until {
			break
		}
		if o.from > all.from {
			left = append(left, stretch{all.from, o.from})
		}
		all.from = max(all.from, o.until)
	}
	if all.from < all.until {
		left = append(left, all)
	}
	return left
}

func length(all []stretch) (d time.Duration) {
	for _, s := range all {
		d += time.Duration(s.until - s.from)
	}
	return d
}

func covers(all []stretch, at int64) bool {
	return slices.ContainsFunc(all, func(s stretch) bool { return s.from <= at && at < s.until })
}

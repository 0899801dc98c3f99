package soak

import (
	"cmp"
	"fmt"
	"slices"
)

// permits finds calls that got another number of permits than they asked for, a permit that the program does not have,
// one that two had at once or whose token has not grown, and more permits at once than bounds allow. spans are those of
// one key, in the order of At.
func permits(spans []*span, bounds []bound) (wrong []string) {
	bySlot := map[int][]*span{}
	for _, s := range spans {
		if len(s.Slots) != s.Weight {
			wrong = append(wrong, fmt.Sprintf("%v has not as many permits as were asked for", s.word))
		}
		for _, slot := range s.Slots {
			if slot >= s.Limit {
				wrong = append(wrong, fmt.Sprintf("%v has a permit that is not one of the program's", s.word))
			}
			bySlot[slot] = append(bySlot[slot], s)
		}
	}
	for slot, holders := range bySlot {
		for _, broken := range slices.Concat(overlaps(holders), tokens(holders)) {
			wrong = append(wrong, fmt.Sprintf("permit %d: %s", slot, broken))
		}
	}
	_, over := crowd(spans, bounds)
	return append(wrong, over...)
}

// crowd returns how many permits, or other leases, were relied on at once at most, and finds times at which there were
// more than a bound allows.
func crowd(spans []*span, bounds []bound) (most int, wrong []string) {
	type event struct {
		at    int64
		more  int
		bound int // 0: as before
	}
	var events []event
	for _, s := range spans {
		if s.last > 0 {
			n := max(1, len(s.Slots))
			events = append(events, event{at: s.At, more: n}, event{at: s.last, more: -n})
		}
	}
	for _, b := range bounds {
		events = append(events, event{at: b.from, bound: b.n})
	}
	slices.SortFunc(events, func(a, b event) int { // at the same time, the ends come first, and then the bounds
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.more, b.more))
	})
	in, allowed := 0, 0
	for _, e := range events {
		in += e.more
		if e.bound > 0 {
			allowed = e.bound
		}
		most = max(most, in)
		if e.more >= 0 && allowed > 0 && in > allowed {
			wrong = append(wrong, fmt.Sprintf("%d permits were held at %d, and there are %d", in, e.at, allowed))
		}
	}
	return most, wrong
}

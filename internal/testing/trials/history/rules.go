package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Violation says where a history breaks a rule.
type Violation struct {
	Rule string
	Text string
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// Rules has the conditions under which a history is judged.
type Rules struct {
	// Sound says that no node lost data that it should have, and that the rates of clocks differed by less than one per
	// cent. If it is false, only the rules about tokens are checked.
	Sound bool
	// Slack is how far recorded times may be wrong. It is 0 in simulations.
	Slack time.Duration
	// Prompt is how much later than its deadline a call may return. If it is 0, this is not checked.
	Prompt time.Duration
}

// Check returns the violations in the history.
func (h *History) Check(r Rules) []Violation {
	events := h.Events()
	c := checker{Rules: r}
	keys, byKey := holds(events)
	for _, key := range keys {
		hs := byKey[key]
		c.unique(hs)
		c.realTime(hs)
		c.proofs(hs)
		if r.Sound {
			c.exclusion(hs)
			c.order(hs)
			c.certificates(hs)
			c.losses(hs)
		}
		c.ends(hs)
	}
	c.promptness(events)
	return c.found
}

type checker struct {
	Rules
	found []Violation
}

func (c *checker) add(rule, format string, args ...any) {
	c.found = append(c.found, Violation{rule, fmt.Sprintf(format, args...)})
}

// exclusion (ME) checks that the times for which holders rely on a lock do not overlap.
func (c *checker) exclusion(hs []*Hold) {
	var last *Hold
	for _, h := range hs {
		if h.End() <= h.Return {
			continue
		}
		if last != nil && h.Return+c.Slack < last.End() {
			c.add("ME", "key %s: %v, and %v", h.Key, last, h)
		}
		if last == nil || h.End() > last.End() {
			last = h
		}
	}
}

// unique (UNIQ) checks that no token was given twice.
func (c *checker) unique(hs []*Hold) {
	seen := map[uint64]*Hold{}
	for _, h := range hs {
		if other := seen[h.Fence]; other != nil {
			c.add("UNIQ", "key %s: %v, and %v", h.Key, other, h)
		}
		seen[h.Fence] = h
	}
}

// realTime (RT) checks that an acquisition that began after another one had returned has the greater token. A hold that
// was handed over within a process has it only if timing is sound.
func (c *checker) realTime(hs []*Hold) {
	began := slices.Clone(hs)
	slices.SortStableFunc(began, func(a, b *Hold) int { return cmp.Compare(a.Call, b.Call) })
	var greatest *Hold
	i := 0
	for _, h := range began {
		for ; i < len(hs) && hs[i].Return < h.Call; i++ {
			if greatest == nil || hs[i].Fence > greatest.Fence {
				greatest = hs[i]
			}
		}
		if greatest != nil && h.Fence < greatest.Fence && (c.Sound || !h.HandedOver()) { // unique reports equal tokens
			c.add("RT", "key %s: %v, after %v", h.Key, h, greatest)
		}
	}
}

// order (HO) checks that tokens have the order of the holds, even if the attempts overlapped.
func (c *checker) order(hs []*Hold) {
	var last *Hold
	for _, h := range hs {
		if h.End() <= h.Return {
			continue
		}
		if last != nil && h.Return >= last.End() && h.Fence < last.Fence {
			c.add("HO", "key %s: %v, after %v", h.Key, h, last)
		}
		if last == nil || h.Fence > last.Fence {
			last = h
		}
	}
}

// certificates (VER) checks successful extensions and releases. When one was requested, no other client may have had a
// greater token. It is checked if timing is sound, because otherwise the library does not promise it (docs/adr/0010).
func (c *checker) certificates(hs []*Hold) {
	check := c.newer("VER", hs)
	for _, h := range hs {
		for _, e := range h.extended {
			check(h, "extended", e.Call)
		}
		if h.Released != never {
			check(h, "released", h.Unlock)
		}
	}
}

// proofs (CERT) checks successful verifications in the same way, but always.
func (c *checker) proofs(hs []*Hold) {
	check := c.newer("CERT", hs)
	for _, h := range hs {
		for _, e := range h.verified {
			check(h, "verified", e.Call)
		}
	}
}

// newer returns a check whether a token greater than that of a hold had been issued before a call.
func (c *checker) newer(rule string, hs []*Hold) (check func(h *Hold, what string, call time.Duration)) {
	greatest := make([]uint64, len(hs)+1) // the greatest token of the first i that returned
	for i, h := range hs {
		greatest[i+1] = max(greatest[i], h.Fence)
	}
	return func(h *Hold, what string, call time.Duration) {
		before, _ := slices.BinarySearchFunc(hs, call-c.Slack,
			func(h *Hold, t time.Duration) int { return cmp.Compare(h.Return, t) })
		if g := greatest[before]; g > h.Fence {
			c.add(rule, "key %s: %v was %s at %v, after token %d had been issued", h.Key, h, what, call, g)
		}
	}
}

// losses (LOST) checks that no owner is told before the end of its lease that it does not have the lock.
func (c *checker) losses(hs []*Hold) {
	for _, h := range hs {
		if h.NotHeld < h.Until-c.Slack {
			c.add("LOST", "key %s: %v was released at %v, and found gone, before its end at %v", h.Key, h, h.NotHeld,
				h.Until)
		}
		if h.Taken && h.Ended+c.Slack < h.Until {
			c.add("LOST", "key %s: %v was told at %v that it is somebody else's, before its end at %v", h.Key, h,
				h.Ended, h.Until)
		}
	}
}

// ends (DONE) checks that Done is closed no later than the end of the lease.
func (c *checker) ends(hs []*Hold) {
	for _, h := range hs {
		if h.Ended != never && h.Ended > h.Until+c.Slack {
			c.add("DONE", "key %s: %v ended at %v, after its end at %v", h.Key, h, h.Ended, h.Until)
		}
	}
}

// unlockBound is how long Unlock waits for its answer, whatever its context says.
const unlockBound = time.Second

// promptness (PROMPT) checks that calls return when their contexts end, and Unlock within its bound.
func (c *checker) promptness(events []Event) {
	for _, e := range events {
		end := max(e.Deadline, e.Call)
		if e.Op == Unlock {
			end = e.Call + unlockBound
		}
		if c.Prompt > 0 && e.Deadline > 0 && e.Return > end+c.Prompt {
			c.add("PROMPT", "key %s: %s by client %d returned at %v, and its time had ended at %v", e.Key, e.Op,
				e.Client, e.Return, end)
		}
	}
}

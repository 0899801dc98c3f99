package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Violation is one rule broken once.
type Violation struct {
	Rule string
	Text string
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// Rules say what a history has to keep to.
type Rules struct {
	// Sound: nodes did not forget what they should know, and clocks ran alike within one per cent. Otherwise only the
	// rules about tokens are looked at.
	Sound bool
	// Slack is by how much times may be wrong. 0 in simulations.
	Slack time.Duration
	// Prompt is how much later than its deadline a call may return. 0: not looked at.
	Prompt time.Duration
}

// Check returns what is wrong with the history.
func (h *History) Check(r Rules) []Violation {
	events := h.Events()
	c := checker{Rules: r}
	keys, byKey := holds(events)
	for _, key := range keys {
		hs := byKey[key]
		c.unique(hs)
		c.realTime(hs)
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

// exclusion (ME): what holders rely on does not overlap.
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

// unique (UNIQ): no token twice.
func (c *checker) unique(hs []*Hold) {
	seen := map[uint64]*Hold{}
	for _, h := range hs {
		if other := seen[h.Fence]; other != nil {
			c.add("UNIQ", "key %s: %v, and %v", h.Key, other, h)
		}
		seen[h.Fence] = h
	}
}

// realTime (RT): an acquisition that began after another one had returned has the greater token.
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
		if greatest != nil && h.Fence < greatest.Fence { // equal ones are not unique
			c.add("RT", "key %s: %v, after %v", h.Key, h, greatest)
		}
	}
}

// order (HO): tokens are in the order of holds, also of those whose attempts overlapped.
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

// certificates (VER): when an extension or a release that succeeded was asked for, nobody had been given a greater
// token. It is checked where timing is sound; without that, the library does not promise it (docs/adr/0010).
func (c *checker) certificates(hs []*Hold) {
	greatest := make([]uint64, len(hs)+1) // of the first i to have returned
	for i, h := range hs {
		greatest[i+1] = max(greatest[i], h.Fence)
	}
	check := func(h *Hold, what string, call time.Duration) {
		before, _ := slices.BinarySearchFunc(hs, call-c.Slack,
			func(h *Hold, t time.Duration) int { return cmp.Compare(h.Return, t) })
		if g := greatest[before]; g > h.Fence {
			c.add("VER", "key %s: %v was %s at %v, after token %d had been issued", h.Key, h, what, call, g)
		}
	}
	for _, h := range hs {
		for _, e := range h.extended {
			check(h, "extended", e.Call)
		}
		if h.Released != never {
			check(h, "released", h.Unlock)
		}
	}
}

// losses (LOST): nobody is told before the end of his lease that he does not have the lock.
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

// ends (DONE): Done is closed no later than the lease's end.
func (c *checker) ends(hs []*Hold) {
	for _, h := range hs {
		if h.Ended != never && h.Ended > h.Until+c.Slack {
			c.add("DONE", "key %s: %v ended at %v, after its end at %v", h.Key, h, h.Ended, h.Until)
		}
	}
}

// unlockBound is how long Unlock waits for its answer, whatever its context says.
const unlockBound = time.Second

// promptness (PROMPT): calls return with their contexts, and Unlock within its bound.
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

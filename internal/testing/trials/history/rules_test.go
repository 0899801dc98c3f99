package history

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/internal/testing/played"
)

// Histories with one fault break the rule that forbids it, and the model finds those that it can.
func TestRulesAndModelFindWhatIsWrong(t *testing.T) {
	for name, tt := range played.Cases {
		t.Run(name, func(t *testing.T) {
			h := &History{start: played.Epoch}
			for _, log := range played.Play(t, tt.Lines...) {
				h.Add(log.Client, log.Text)
			}
			var broken []string
			for _, v := range h.Check(judge.Options{Prompt: time.Millisecond}) {
				broken = append(broken, v.Rule)
			}
			slices.Sort(broken)
			if !slices.Equal(broken, tt.Rules) {
				t.Errorf("broken: %v, want %v", broken, tt.Rules)
			}
			if found := h.CheckModel(100 * time.Millisecond); (len(found) > 0) != tt.Model {
				t.Errorf("the model says %v, want something: %v", found, tt.Model)
			}
		})
	}
}

// A history of thousands of holds is decided quickly, even if the fault is at its end.
func TestModelDecidesLongHistories(t *testing.T) {
	var lines []string
	for i := range 3000 {
		at := 10 * i
		lines = append(lines, fmt.Sprintf("%d-%d a lock %d until %d", max(0, at-20), at, i+1, at+10))
		if i%3 > 0 {
			lines = append(lines, fmt.Sprintf("%d-%d a unlock %s", at, at+1, []string{"", "unknown"}[i%2]))
		}
	}
	model := func(lines ...string) []Violation {
		h := &History{start: played.Epoch}
		for _, log := range played.Play(t, lines...) {
			h.Add(log.Client, log.Text)
		}
		return h.CheckModel(200 * time.Millisecond)
	}
	if found := model(lines...); len(found) > 0 {
		t.Error(found)
	}
	if found := model(append(lines, "29900-30000 z lock 2500 until 30010")...); len(found) == 0 {
		t.Error("an illegal end was not found")
	}
}

func TestRegister(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		r := Register{Fenced: fenced}
		old, _ := r.Read(1)
		value, _ := r.Read(2)
		if !r.Write(2, value) {
			t.Error("the holder was refused")
		}
		if ok := r.Write(1, old); ok == fenced || r.Lost == 0 == !fenced {
			t.Errorf("fenced %v: a late write is accepted: %v, %d updates are lost", fenced, ok, r.Lost)
		}
	}
}

func TestNodeLogFindsWhatIsWrong(t *testing.T) {
	state := func(owner string, expires time.Duration, fence int64) NodeState {
		return NodeState{Owner: owner, Expires: expires, Fence: fence}
	}
	free, a, b := NodeState{}, state("a", 10, 5), state("b", 10, 6)
	with := func(s NodeState, marked, waits bool, slot int64) NodeState {
		s.Marked, s.Waits, s.Slot = marked, waits, slot
		return s
	}
	for name, tt := range map[string]struct {
		steps []NodeStep
		want  string // empty: no violation
	}{
		"grant, extension, release": {[]NodeStep{
			{Script: "acquire", Owner: "a", Before: free, After: a},
			{Script: "extend", Owner: "a", Before: a, After: state("a", 20, 5)},
			{Script: "release", Owner: "a", Before: a, After: free},
		}, ""},
		"hand-over":            {[]NodeStep{{Script: "handover", Owner: "a", Before: a, After: b}}, ""},
		"expiry and hand-over": {[]NodeStep{{Script: "handover", Owner: "c", Before: free, After: a}}, ""},
		"a rest": {[]NodeStep{{Script: "release", Owner: "a", Before: a,
			After: state("hold:a", 20, 0)}}, ""},
		"a mark": {[]NodeStep{{Script: "enqueue", Owner: "b", Before: a, After: a}}, ""},
		"loss of data": {[]NodeStep{{Script: "acquire", Before: free, After: a},
			{Life: 1, Script: "acquire", Before: NodeState{}, After: state("b", 1, 1)}}, ""},
		"a node that has rested": {[]NodeStep{{Life: 1, Began: 1, At: 6, Script: "acquire", Before: free, After: a}}, ""},
		"a node that does not rest": {[]NodeStep{{Life: 1, Began: 1, At: 5, Script: "acquire", Before: free,
			After: a}}, "after the node lost data"},
		"a counter that is less than before": {[]NodeStep{{Script: "extend", Owner: "b", Before: b, After: b},
			{Script: "extend", Owner: "a", Before: a, After: a}}, "went back"},
		"an owner that lowers its counter": {[]NodeStep{{Script: "raise", Owner: "a", Before: a,
			After: state("a", 10, 4)}}, "went back"},
		"a counter that stays": {[]NodeStep{{Script: "acquire", Owner: "a", Before: free, After: a},
			{Script: "release", Owner: "a", Before: a, After: free},
			{Script: "acquire", Owner: "b", Before: free, After: state("b", 10, 5)}}, "no greater counter"},
		"a hand-over with the same counter": {[]NodeStep{{Script: "handover", Owner: "a", Before: a,
			After: state("b", 10, 5)}}, "no greater counter"},
		"a lock without a counter": {[]NodeStep{{Script: "acquire", Owner: "a", Before: free,
			After: state("a", 10, 0)}}, "no greater counter"},
		"an extension that creates": {[]NodeStep{{Script: "extend", Owner: "a", Before: free, After: a}}, "created"},
		"an extension that shortens": {[]NodeStep{{Script: "extend", Owner: "a", Before: a,
			After: state("a", 9, 5)}}, "shortened"},
		"a raise of another's counter": {[]NodeStep{{Script: "raise", Owner: "b", Before: a,
			After: state("a", 10, 9)}}, "somebody else"},
		"a release of another's lock": {[]NodeStep{{Script: "release", Owner: "b", Before: a,
			After: free}}, "taken"},
		"a mark, a grant and a mark": {[]NodeStep{
			{Script: "enqueue", Owner: "b", Before: a, After: with(a, true, true, 0)},
			{Script: "extend", Owner: "a", Before: with(a, true, true, 0), After: with(a, true, true, 0)},
			{Script: "handover", Owner: "a", Before: with(a, true, true, 0), After: b},
			{Script: "turn", Owner: "c", Before: b, After: with(b, true, true, 0)},
			{Script: "turnrelease", Owner: "b", Before: with(b, true, true, 0), After: with(free, false, true, 0)},
		}, ""},
		"a mark that is lost": {[]NodeStep{{Script: "extend", Owner: "a", Before: with(a, true, false, 0),
			After: a}}, "mark was lost"},
		"a waiter without a mark": {[]NodeStep{{Script: "enqueue", Owner: "b", Before: a,
			After: with(a, false, true, 0)}}, "not marked"},
		"a hand-over without a mark": {[]NodeStep{{Script: "handover", Owner: "a", Before: with(a, true, true, 0),
			After: with(b, false, true, 0)}}, "not marked"},
		"slots": {[]NodeStep{
			{Script: "acquire", Owner: "a", Counter: "f", Before: free, After: with(a, false, false, 5)},
			{Script: "raise", Owner: "a", Counter: "f", Before: with(a, false, false, 6),
				After: with(state("a", 10, 8), false, false, 8)},
			{Script: "acquire", Owner: "b", Counter: "g", Lock: "l", Before: free, After: with(b, false, false, 6)},
			{Life: 1, Script: "acquire", Owner: "b", Counter: "f", Before: free, After: with(b, false, false, 6)},
		}, ""},
		"a slot that went back": {[]NodeStep{
			{Script: "acquire", Owner: "a", Counter: "f", Before: free, After: with(a, false, false, 5)},
			{Script: "release", Owner: "a", Counter: "f", Before: with(a, false, false, 4), After: with(free, false, false, 5)},
		}, "slot went back"},
		"a slot that is set back": {[]NodeStep{{Script: "acquire", Owner: "a", Counter: "f",
			Before: with(free, false, false, 9), After: with(a, false, false, 5)}}, "slot went back"},
		"a slot below its lock": {[]NodeStep{{Script: "raise", Owner: "a", Counter: "f", Before: with(a, false, false, 5),
			After: with(state("a", 10, 8), false, false, 5)}}, "below"},
		"a grant over another's lock": {[]NodeStep{{Script: "acquire", Owner: "b", Before: a, After: b}}, "taken"},
	} {
		t.Run(name, func(t *testing.T) {
			l := NodeLog{Rest: 5}
			for _, s := range tt.steps {
				l.Add(s)
			}
			switch {
			case tt.want == "" && len(l.Found) > 0, tt.want != "" && len(l.Found) != 1:
				t.Error(l.Found)
			case tt.want != "" && !strings.Contains(l.Found[0].Text, tt.want):
				t.Errorf("%v, want something that says %q", l.Found, tt.want)
			}
		})
	}
}

func TestTokensAreTheCountersOfTheirGrants(t *testing.T) {
	h := New()
	h.Add(0, played.Play(t, "0-1 a lock 7 until 9 grant "+grantOf("a"))[0].Text)
	var l NodeLog
	step := func(node int, fence int64) {
		l.Add(NodeStep{Node: node, Script: "acquire", Owner: "a", After: NodeState{Owner: "a", Fence: fence}})
	}
	step(0, 7)
	step(1, 6) // of another counter
	if found := l.CheckTokens(h, 1); len(found) > 0 {
		t.Error(found)
	}
	if found := l.CheckTokens(h, 2); len(found) != 1 || found[0].Rule != "OWN" {
		t.Error(found)
	}
	step(2, 7)
	if found := l.CheckTokens(h, 2); len(found) > 0 {
		t.Error(found)
	}
}

func TestQuota(t *testing.T) {
	found := Quota(map[string]int{"raises": 1, "cuts": 9}, map[string]int{"raises": 1, "cuts": 10, "hangs": 1})
	if len(found) != 2 || !strings.Contains(found[0].Text, "cuts") || !strings.Contains(found[1].Text, "hangs") {
		t.Error(found)
	}
}

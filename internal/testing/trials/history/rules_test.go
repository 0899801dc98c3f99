package history

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// play makes a history from lines like these:
//
//	0-2 a lock 7 until 20      client a asks at 0 and has the lock at 2 ms, with token 7, until 20
//	5-6 a extend until 30
//	7-8 a unlock               or: unlock notheld, unlock unknown
//	9 a done                   or: done taken
//
// Each client has one lease at a time.
func play(t *testing.T, lines ...string) *History {
	t.Helper()
	h := New()
	owners, fences := map[string]string{}, map[string]uint64{}
	for _, line := range lines {
		f := strings.Fields(line)
		ms := func(s string) time.Duration {
			d, err := time.ParseDuration(s + "ms")
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		from, to, ok := strings.Cut(f[0], "-")
		if !ok {
			to = from
		}
		who := f[1]
		e := Event{Client: int(who[0] - 'a'), Key: "k", Op: Op(f[2]), Call: ms(from), Return: ms(to), Outcome: OK}
		if e.Op == Lock {
			fences[who] = uint64(ms(f[3]) / time.Millisecond)
			owners[who] = line
		}
		e.Owner, e.Fence = owners[who], fences[who]
		if i := slices.Index(f, "until"); i > 2 {
			e.Until = ms(f[i+1])
		}
		for word, o := range map[string]Outcome{"notheld": NotHeld, "unknown": Unknown, "taken": Taken, "held": Held} {
			if slices.Contains(f, word) {
				e.Outcome = o
			}
		}
		if i := slices.Index(f, "deadline"); i > 0 {
			e.Deadline = ms(f[i+1])
		}
		h.Add(e)
	}
	return h
}

var sound = Rules{Sound: true, Prompt: time.Millisecond}

// A history with one fault breaks the rule that forbids it. The test asks the model as well.
func TestRulesFindWhatIsWrong(t *testing.T) {
	for name, tt := range map[string]struct {
		history []string
		rules   []string
		model   bool // the model finds it, too
	}{
		"nothing": {[]string{"0-2 a lock 7 until 20", "5-6 a unlock", "1-7 b lock 8 until 30",
			"40-41 c lock 9 until 60"}, nil, false},
		"a hold that ends by itself": {[]string{"0-2 a lock 7 until 20", "1-21 b lock 8 until 40", "19 a done",
			"39 b done"}, nil, false},
		"a release whose answer was lost": {[]string{"0-2 a lock 7 until 90", "5-6 a unlock unknown",
			"1-30 b lock 8 until 40"}, nil, false},
		"two holders": {[]string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30", "19 a done"},
			[]string{"ME"}, true},
		"two holders, the second short": {[]string{"0-2 a lock 7 until 50", "3-5 b lock 8 until 30",
			"40-45 c lock 9 until 70"}, []string{"ME", "ME"}, true},
		"a hold that was extended meanwhile": {[]string{"0-2 a lock 7 until 20", "3-5 a extend until 50",
			"20-25 b lock 8 until 60"},
			[]string{"ME"}, true},
		"a token twice": {[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "3-6 b lock 7 until 20",
			"7-8 b unlock"}, []string{"UNIQ"}, true},
		"a smaller token later": {[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "5-6 b lock 6 until 20"},
			[]string{"RT", "HO"}, true},
		"a smaller token later, attempts overlap": {
			[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "1-6 b lock 6 until 20"}, []string{"HO"}, true},
		"extended after another": {
			[]string{"0-2 a lock 7 until 20", "30-31 b lock 8 until 50", "32-33 b unlock", "35-36 a extend until 50"},
			// The hold of a goes on before and after the hold of b.
			[]string{"ME", "VER"}, true},
		"released after another": {[]string{"0-2 a lock 7 until 20", "30-31 b lock 8 until 50", "32-33 b unlock",
			"35-36 a unlock"}, []string{"VER"}, true},
		"verified before another": {[]string{"0-2 a lock 7 until 20", "5-35 a verify",
			"20-31 b lock 8 until 50"}, nil, false},
		"verified after another": {[]string{"0-2 a lock 7 until 20", "20-31 b lock 8 until 50", "35-36 a verify"},
			[]string{"CERT"}, true},
		"not verified after another": {[]string{"0-2 a lock 7 until 20", "20-31 b lock 8 until 50",
			"35-36 a verify unknown"}, nil, false},
		"found gone too early": {[]string{"0-2 a lock 7 until 20", "5-6 a unlock notheld"}, []string{"LOST"}, false},
		"told too early":       {[]string{"0-2 a lock 7 until 20", "6 a done taken"}, []string{"LOST"}, false},
		"told in time": {[]string{"0-2 a lock 7 until 20", "20-21 a unlock notheld",
			"15-19 b lock 8 until 60"}, []string{"ME"}, true},
		"told too late":       {[]string{"0-2 a lock 7 until 20", "21 a done"}, []string{"DONE"}, false},
		"late to come back":   {[]string{"0-12 a trylock held deadline 10"}, []string{"PROMPT"}, false},
		"Unlock has a second": {[]string{"0-2 a lock 7 until 2000", "3-1003 a unlock deadline 10"}, nil, false},
		"Unlock takes longer": {[]string{"0-2 a lock 7 until 2000", "3-1005 a unlock deadline 10"},
			[]string{"PROMPT"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := play(t, tt.history...)
			var broken []string
			for _, v := range h.Check(sound) {
				broken = append(broken, v.Rule)
			}
			slices.Sort(broken)
			slices.Sort(tt.rules)
			if !slices.Equal(broken, tt.rules) {
				t.Errorf("broken: %v, want %v", h.Check(sound), tt.rules)
			}
			if found := h.CheckModel(100 * time.Millisecond); (len(found) > 0) != tt.model {
				t.Errorf("the model says %v, want something: %v", found, tt.model)
			}
		})
	}
}

// Without sound timing only the rules about tokens and Done are checked.
func TestRulesWithoutSoundTiming(t *testing.T) {
	h := play(t, "0-2 a lock 7 until 20", "3-5 b lock 8 until 30", "6-7 a unlock notheld")
	if found := h.Check(Rules{}); len(found) > 0 {
		t.Error(found)
	}
	h = play(t, "0-2 a lock 7 until 20", "3-5 b lock 8 until 30", "6-7 a verify")
	if found := h.Check(Rules{}); len(found) != 1 || found[0].Rule != "CERT" {
		t.Errorf("verified after another: %v", found)
	}
}

// A history of thousands of holds is decided quickly, even if the fault is at its end.
func TestModelDecidesLongHistories(t *testing.T) {
	h := New()
	at := func(i int) time.Duration { return time.Duration(i) * 10 * time.Millisecond }
	for i := range 3000 {
		owner := string(rune(0x4e00 + i))
		h.Add(Event{Op: Lock, Key: "k", Owner: owner, Fence: uint64(i + 1), Call: at(i - 2), Return: at(i),
			Until: at(i + 1), Outcome: OK})
		if i%3 > 0 {
			h.Add(Event{Op: Unlock, Key: "k", Owner: owner, Call: at(i) + 1, Return: at(i) + 1000,
				Outcome: []Outcome{OK, Unknown}[i%2]})
		}
	}
	linger := 200 * time.Millisecond
	if found := h.CheckModel(linger); len(found) > 0 {
		t.Error(found)
	}
	h.Add(Event{Op: Lock, Key: "k", Owner: "z", Fence: 2500, Call: at(2990), Return: at(3000), Until: at(3010),
		Outcome: OK})
	if found := h.CheckModel(linger); len(found) == 0 {
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
	h.Add(Event{Op: Lock, Key: "k", Owner: "a", Fence: 7, Outcome: OK})
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

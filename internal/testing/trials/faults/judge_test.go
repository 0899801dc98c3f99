package faults

import (
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/trials/history"
)

// result is what came of an episode.
type result struct {
	episode
	from, to time.Duration // of the fault
	injected int
	accounts []account

	failed  []history.Violation // promises that were broken
	outside []history.Violation // what was not promised, and did not hold
	ops     map[string]tally
	events  int
	holds   int
	lost    [2]int // updates, by the register that looks at tokens and its twin
	refused int
	equal   bool // two servers have granted in the same microsecond
}

// tally is what became of one kind of operation while the fault lasted.
type tally struct{ hit, ok, held int }

// The operations that faults hit, in the order of the report.
var operations = []string{"acquire", "raise", "wait", "extend", "hold", "release"}

func (r *result) fail(rule, format string, args ...any) {
	r.failed = append(r.failed, history.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// lapse is a failure unless locks may be forgotten.
func (r *result) lapse(rule, format string, args ...any) {
	v := history.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)}
	if r.kind.forgets {
		r.outside = append(r.outside, v)
	} else {
		r.failed = append(r.failed, v)
	}
}

// tokensFail reports that not even tokens are promised.
func (r *result) tokensFail() bool { return r.kind.instantly && r.place.nodes > 1 }

// fenced reports that a register that looks at tokens loses nothing.
func (r *result) fenced() bool { return !r.tokensFail() && !r.equal }

func (r *result) judge(b *bed) {
	tokensFail := r.tokensFail()
	for _, v := range b.history.Check(history.Rules{Sound: true}) {
		switch token := v.Rule == "UNIQ" || v.Rule == "RT"; {
		case v.Rule == "DONE": // looked at below
		case v.Rule == "UNIQ" && r.kind.rivals && !r.equal: // by chance, so not a second time
			r.equal = true
			r.outside = append(r.outside, v)
		case token && tokensFail, !token && r.kind.forgets:
			r.outside = append(r.outside, v)
		default:
			r.failed = append(r.failed, v)
		}
	}
	if !r.kind.forgets {
		r.failed = append(r.failed, b.history.CheckModel(time.Minute+r.kind.behind)...)
	}
	r.promptness(b)
	for i, a := range r.accounts {
		if a.Wrong > 0 {
			r.fail("ERR", "Err of client %d said nil %d times after Until", i, a.Wrong)
		}
		if a.Err != "" {
			r.fail("CLOSE", "client %d: %s", i, a.Err)
		}
	}
	lost, refused := b.resource.lost()
	r.lost, r.refused = lost, refused[0]
	if lost[0] > 0 && r.fenced() {
		r.fail("FENCE", "%d updates of a register that looks at tokens are lost", lost[0])
	}
	r.count(b.history.Events())
	r.countRaises(b)
	r.testimony(b)
	r.failed = append(r.failed, history.Quota(
		map[string]int{"acquisitions": r.holds, "faults": r.injected},
		map[string]int{"acquisitions": 20, "faults": 1})...)
}

// promptness looks at Done and at deadlines, of clients that were not stopped themselves, with as much slack as timers
// were found to need.
func (r *result) promptness(b *bed) {
	slack := time.Duration(0)
	for id, a := range r.accounts {
		if !b.stopped[id] {
			slack = max(slack, 250*time.Millisecond+2*a.Stall)
		}
	}
	timed := history.New()
	for _, e := range b.history.Events() {
		if !b.stopped[e.Client] {
			timed.Add(e)
		}
	}
	for _, v := range timed.Check(history.Rules{Slack: slack, Prompt: slack}) {
		if v.Rule == "DONE" || v.Rule == "PROMPT" {
			r.fail(v.Rule, "%s; %v late would pass, for so busy is the machine", v.Text, slack)
		}
	}
}

// count finds out which operations the fault has hit: those that were under way at some time while it lasted.
func (r *result) count(events []history.Event) {
	r.ops = map[string]tally{}
	ended := map[string]history.Event{}
	for _, e := range events {
		if e.Op == history.Done {
			ended[e.Owner] = e
		}
	}
	r.events = len(events)
	for _, e := range events {
		op, from, to, outcome := "", e.Call, e.Return, e.Outcome
		switch {
		case e.Op == history.Extend:
			op = "extend"
		case e.Op == history.Unlock:
			op = "release"
		case e.Op == history.TryLock, e.Op == history.Lock && !strings.HasPrefix(e.Key, "held/"):
			op = "acquire"
		case e.Op == history.Lock:
			op = "wait"
		}
		if op == "" {
			continue
		}
		r.add(op, from, to, outcome)
		if (op == "acquire" || op == "wait") && outcome == history.OK {
			r.holds++
			// Those that are extended by hand may be lost without any fault.
			if end, ok := ended[e.Owner]; ok && !strings.HasPrefix(e.Key, "extend/") {
				r.add("hold", e.Return, end.Return,
					map[bool]history.Outcome{true: history.OK, false: history.Lost}[end.Outcome == history.Unlocked])
			}
		}
	}
}

func (r *result) add(op string, from, to time.Duration, outcome history.Outcome) {
	if to < r.from || from > r.to {
		return
	}
	t := r.ops[op]
	t.hit++
	switch outcome {
	case history.OK:
		t.ok++
	case history.Held:
		t.held++
	}
	r.ops[op] = t
}

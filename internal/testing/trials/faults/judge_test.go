package faults

import (
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/middleware/audit"
)

// result is the result of an episode.
type result struct {
	episode
	from, to time.Duration // beginning and end of the fault
	injected int
	accounts []account

	failed  []history.Violation // promises that were broken
	outside []history.Violation // violations of rules that are not promised under this fault
	ops     map[string]tally
	events  int
	holds   int
	lost    [2]int // lost updates of the register that checks tokens, and of the other one
	refused int
	equal   bool // two servers have granted in the same microsecond
}

// tally counts the operations of one kind during the fault, by their results.
type tally struct{ hit, ok, held int }

// operations are the kinds of operations that faults hit, in the order of the report.
var operations = []string{"acquire", "raise", "wait", "extend", "hold", "release"}

func (r *result) fail(rule, format string, args ...any) {
	r.failed = append(r.failed, history.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// lapse reports a failure, unless the fault makes nodes forget locks.
func (r *result) lapse(rule, format string, args ...any) {
	v := history.Violation{Rule: rule, Text: fmt.Sprintf(format, args...)}
	if r.kind.forgets {
		r.outside = append(r.outside, v)
	} else {
		r.failed = append(r.failed, v)
	}
}

// tokensFail reports whether under this fault even tokens are not promised.
func (r *result) tokensFail() bool { return r.kind.instantly && r.place.nodes > 1 }

// fenced reports whether a register that checks tokens must lose no update.
func (r *result) fenced() bool { return !r.tokensFail() && !r.equal }

func (r *result) judge(b *testbed) {
	tokensFail := r.tokensFail()
	for _, v := range b.history.Check(judge.Options{}) {
		switch token := v.Rule == "UNIQ" || v.Rule == "RT"; {
		case v.Rule == "DONE": // checked by promptness
		case v.Rule == "UNIQ" && r.kind.rivals && !r.equal: // it happens by chance, so a second time is a failure
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

// promptness checks Done and deadlines of the clients that were not stopped themselves. The slack is how late timers
// were found to be.
func (r *result) promptness(b *testbed) {
	slack := time.Duration(0)
	for id, a := range r.accounts {
		if !b.stopped[id] {
			slack = max(slack, 250*time.Millisecond+2*a.Stall)
		}
	}
	timed := b.history.Only(func(client int) bool { return !b.stopped[client] })
	for _, v := range timed.Check(judge.Options{Slack: slack, Prompt: slack}) {
		if v.Rule == "DONE" || v.Rule == "PROMPT" {
			r.fail(v.Rule, "%s; %v late would pass, for so busy is the machine", v.Text, slack)
		}
	}
}

// count counts the operations that the fault has hit. These are the operations that were under way at some time during
// the fault.
func (r *result) count(events []history.Event) {
	r.ops = map[string]tally{}
	type lease struct {
		grant string
		fence uint64
	}
	type end struct {
		at   time.Duration
		lost bool
	}
	ended := map[lease]end{}
	for _, e := range events {
		switch _, again := ended[lease{e.Grant, e.Fence}]; {
		case e.Op == history.Done:
			ended[lease{e.Grant, e.Fence}] = end{e.Return, true}
		case e.Op == history.Unlock && !again:
			ended[lease{e.Grant, e.Fence}] = end{e.Call, false}
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
		if (op == "acquire" || op == "wait") && outcome == audit.OK {
			r.holds++
			// Leases that are extended by hand may be lost without any fault.
			if end, ok := ended[lease{e.Grant, e.Fence}]; ok && !strings.HasPrefix(e.Key, "extend/") {
				r.add("hold", e.Return, end.at, map[bool]audit.Outcome{false: audit.OK, true: history.Lost}[end.lost])
			}
		}
	}
}

func (r *result) add(op string, from, to time.Duration, outcome audit.Outcome) {
	if to < r.from || from > r.to {
		return
	}
	t := r.ops[op]
	t.hit++
	switch outcome {
	case audit.OK:
		t.ok++
	case audit.Held:
		t.held++
	}
	r.ops[op] = t
}

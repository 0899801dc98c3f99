package script_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

var names = map[*script.Source]string{
	acquireScript: "acquire", raiseScript: "raise", extendScript: "extend", releaseScript: "release",
	enqueueScript: "enqueue", claimScript: "claim", handoverScript: "handover",
	turnScript: "turn", turnReleaseScript: "turnrelease", inspectScript: "inspect", forceScript: "force",
	verifyScript: "verify", exportScript: "export", resumeScript: "resume",
}

// sameReply reports whether two replies of a script are the same, save that clocks have gone on between them. Only
// what is a time by its place in the reply may differ: codes, ranks and numbers of waiters are as small as times are,
// and must not.
func sameReply(sc *script.Source, a, b drivers.Reply) bool {
	as, isArray := a.([]drivers.Reply)
	bs, both := b.([]drivers.Reply)
	if !isArray || !both {
		counts := sc == acquireScript || sc == enqueueScript || sc == resumeScript
		return reflect.DeepEqual(a, b) || counts && near(a, b, 1e15, 5e15, 5e6)
	}
	if len(as) != len(bs) || as[0] != bs[0] {
		return false
	}
	places := timed[fmt.Sprint(names[sc], " ", as[0])]
	for i := range as {
		switch {
		case reflect.DeepEqual(as[i], bs[i]):
		// what is left of a TTL, or until the next question
		case slices.Contains(places.ms, i) && near(as[i], bs[i], 0, 1e6, 1900):
		case slices.Contains(places.clock, i) && near(as[i], bs[i], 1e15, 5e15, 5e6): // in us; not a counter beyond the clock
		default:
			return false
		}
	}
	return true
}

// timed says which elements of a reply are times in ms, and which are a clock or follow it, by script and code.
var timed = map[string]struct{ ms, clock []int }{
	"acquire 0": {ms: []int{1}, clock: []int{2}},
	"enqueue 0": {ms: []int{1, 3}, clock: []int{4}},
	"enqueue 2": {ms: []int{1, 3}, clock: []int{4}},
	"enqueue 1": {ms: []int{2}, clock: []int{1}},
	"claim 1":   {ms: []int{2}, clock: []int{1}},
	"turn 0":    {ms: []int{1, 3}, clock: []int{4}},
	"turn 1":    {ms: []int{1}},
	"turn 2":    {ms: []int{1, 3}, clock: []int{4}},
	"turn 3":    {ms: []int{1}},
	"inspect 0": {clock: []int{2, 4}},
	"inspect 1": {ms: []int{1}, clock: []int{2, 4}},
	"inspect 2": {clock: []int{2, 4}},
}

// near reports whether both are numbers between from and to, and differ by less than by.
func near(a, b drivers.Reply, from, to, by int64) bool {
	x, isInt := a.(int64)
	y, both := b.(int64)
	return isInt && both && min(x, y) > from && max(x, y) < to && max(x-y, y-x) < by
}

func pick[T any](rnd *rand.Rand, choices ...T) T { return choices[rnd.IntN(len(choices))] }

// code is what a reply says, without numbers that are its own: a counter grants.
func code(reply drivers.Reply) any {
	switch r := reply.(type) {
	case []drivers.Reply:
		return r[0]
	case int64:
		if r > 16 {
			return int64(1)
		}
	}
	return reply
}

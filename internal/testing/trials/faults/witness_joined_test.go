package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestAWitnessFollowsJoinedCommands(t *testing.T) {
	counters := does(fmt.Sprintf("MSET %s %016d %s %016d", fenceA, 6, fenceA, 7))
	set := func(owner string, counter int, nx string) string {
		return does("SET lock:a " + valueOf(owner, counter) + " PX 60000 " + nx)
	}
	// The same lock is there twice.
	acquisitions := calls("many", "6 lock:a lock:a w w "+fenceA+" "+fenceA+" 2 1 60000 60000 |two|1| |three|1|")
	acquisition := calls("many", "3 lock:a w "+fenceA+" 1 1 60000 |two|1|")
	free := []string{calls("many", "1 lock:a 0 1 "+valueOf("one", 5)), does("GET lock:a"), does("DEL lock:a")}
	for name, tt := range map[string]struct {
		then  [][]string
		wrong string // "": nothing
	}{
		"granted once": {[][]string{
			free, {acquisitions, counters, set("two", 6, "NX"), set("three", 7, "NX")},
			{calls("many", "2 lock:a lock:a 0 1 "+valueOf("three", 7)+" "+valueOf("two", 6)), does("DEL lock:a")},
			acquires("four", 8)}, ""},
		"one alone": {[][]string{free, {acquisition, does(fmt.Sprintf("SET %s %016d", fenceA, 6)), set("two", 6, "")}},
			""},
		"locks before counters": {[][]string{free, {acquisitions, set("two", 6, "NX"), counters}},
			"slot is below that of the lock"},
		"granted over a lock": {[][]string{{acquisition, counters, set("two", 6, "")}}, "taken from its owner"},
		"released by another": {[][]string{{calls("many", "1 lock:a 0 1 "+valueOf("two", 6)), does("DEL lock:a")}},
			"taken from its owner"},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := newLines().see(slices.Concat(acquires("one", 5), slices.Concat(tt.then...))...)
			if (tt.wrong != "") != (len(wrong) > 0) || len(wrong) > 0 && !strings.Contains(wrong[0], tt.wrong) {
				t.Errorf("%q, want %q", wrong, tt.wrong)
			}
		})
	}
}

package faults

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// lines plays lines of MONITOR to a witness that has seen everything from the beginning.
type lines struct{ w *witness }

func newLines() lines {
	w := &witness{began: time.Now()}
	w.forget(true)
	return lines{w}
}

// see returns what is wrong by now.
func (l lines) see(lines ...string) (wrong []string) {
	for _, line := range lines {
		l.w.read(fmt.Sprintf("%d.000000 %s", l.w.began.Unix(), line))
	}
	l.w.conclude()
	for _, v := range l.w.log.Found {
		_, text, _ := strings.Cut(v.Text, "}: ")
		wrong = append(wrong, text)
	}
	return wrong
}

// sent is a command of a client, and does is one of a script. Words are separated by spaces.
func sent(words string) string { return "[0 127.0.0.1:1] " + quoted(words) }
func does(words string) string { return "[0 lua] " + quoted(words) }

func quoted(words string) string {
	args := strings.Fields(words)
	for i := range args {
		args[i] = strconv.Quote(args[i])
	}
	return strings.Join(args, " ")
}

// calls is a call of a script.
func calls(name, words string) string {
	sum := sha1.Sum([]byte(source(name)))
	return sent("EVALSHA " + hex.EncodeToString(sum[:]) + " " + words)
}

var fenceA = counterOf("lock:a")

func valueOf(owner string, counter int) string { return fmt.Sprintf("%016d|%s|1|", counter, owner) }

func acquires(owner string, counter int) []string {
	return []string{
		calls("acquire", "3 lock:a {lock:a}:lockwait "+fenceA+" |"+owner+"|1| 60000 1 0"),
		does(fmt.Sprintf("SET %s %016d", fenceA, counter)),
		does("SET lock:a " + valueOf(owner, counter) + " PX 60000 NX"),
	}
}

func TestAWitnessFollowsLocks(t *testing.T) {
	set := func(counter int) string { return does(fmt.Sprintf("SET %s %016d", fenceA, counter)) }
	inPlace := func(counter int) string { return does(fmt.Sprintf("SETRANGE lock:a 0 %016d", counter)) }
	extend := calls("extend", "2 lock:a "+fenceA+" |one|1| 60000 "+fmt.Sprintf("%016d", 7))
	release := []string{calls("release", "2 lock:a {lock:a}:lockwait |one|1| 0:0:5:"), does("DEL lock:a")}
	join := []string{
		calls("enqueue", "4 lock:a {lock:a}:lockwait "+fenceA+" {lock:a}:lockqueue |two|1| 10:10:0:c"),
		does("ZADD {lock:a}:lockqueue NX 1 two"),
	}
	mark := does("APPEND lock:a +")
	unmarked := does("SET lock:a " + valueOf("one", 5) + " PX 60000")
	handOver := func(mark string) []string {
		return []string{
			calls("handover", "4 lock:a {lock:a}:lockwait "+fenceA+" {lock:a}:lockqueue |one|1| 0:0:5"),
			does("DEL lock:a"), does("ZPOPMIN {lock:a}:lockqueue"), set(6),
			does("SET lock:a " + valueOf("two", 6) + mark + " PX 2000"),
		}
	}
	other := counterOf("lock:b")
	otherLock := []string{
		calls("acquire", "3 lock:b {lock:b}:lockwait "+other+" |b|1| 60000 1 0"),
		does(fmt.Sprintf("SET %s %016d", other, 2)), does("SET lock:b " + valueOf("b", 2) + " PX 60000 NX"),
	}
	for name, tt := range map[string]struct {
		then  [][]string
		wrong string // "": nothing
	}{
		"raised":                         {[][]string{{extend, set(7), inPlace(7)}}, ""},
		"raised before the slot":         {[][]string{{extend, inPlace(7), set(7)}}, "slot is below that of the lock"},
		"lowered":                        {[][]string{{extend, inPlace(4)}}, "went back"},
		"the slot goes back":             {[][]string{{extend, set(4)}}, "slot went back"},
		"marked":                         {[][]string{join, {mark}}, ""},
		"not marked":                     {[][]string{join}, "not marked"},
		"marked twice":                   {[][]string{join, {mark, mark}}, "taken from its owner"},
		"marked, and raised":             {[][]string{join, {mark, extend, set(7), inPlace(7)}}, ""},
		"the mark is lost":               {[][]string{join, {mark, extend, unmarked}}, "mark was lost"},
		"handed over":                    {[][]string{join, {mark}, handOver("")}, ""},
		"handed over, and another waits": {[][]string{join, {mark}, handOver("+")}, ""},
		"another slot":                   {[][]string{otherLock}, ""},
		"the server compares and deletes": {
			[][]string{{sent("DELIFEQ lock:a " + valueOf("one", 5))}, acquires("two", 6)}, ""},
		"the server compares, and does not delete": {
			[][]string{{sent("DELEX lock:a IFEQ " + valueOf("one", 4))}, acquires("two", 6)}, "taken from its owner"},
		"the counter of the slot is lost": {[][]string{release, {sent("DEL " + fenceA)}, acquires("two", 3)}, ""},
		"granted with the same counter":   {[][]string{release, acquires("two", 5)}, "no greater counter"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLines()
			wrong := l.see(slices.Concat(acquires("one", 5), slices.Concat(tt.then...))...)
			if (tt.wrong != "") != (len(wrong) > 0) || len(wrong) > 0 && !strings.Contains(wrong[0], tt.wrong) {
				t.Errorf("%q, want %q", wrong, tt.wrong)
			}
		})
	}
}

// The server does not mark a lock that has ended, and when exactly that is, the witness does not know.
func TestAWitnessDoesNotAskForTheMarkOfALockThatMayHaveEnded(t *testing.T) {
	l := newLines()
	wrong := l.see(
		calls("acquire", "3 lock:a {lock:a}:lockwait "+fenceA+" |one|1| 50 1 0"), does("SET "+fenceA+" 0000000000000005"),
		does("SET lock:a "+valueOf("one", 5)+" PX 50 NX"),
		calls("enqueue", "4 lock:a {lock:a}:lockwait "+fenceA+" {lock:a}:lockqueue |two|1| 10:10:0:c"),
		does("ZADD {lock:a}:lockqueue NX 1 two"))
	if len(wrong) > 0 {
		t.Errorf("%q, want nothing", wrong)
	}
}

func TestAWitnessAllowsForWhatScriptsThatItDoesNotRecogniseDo(t *testing.T) {
	for name, line := range map[string]string{
		"unknown": `"EVAL" "return redis.call('DEL', KEYS[1])" "1" "lock:a"`,
		// As Valkey 8.1.1 shows it, which does not escape quotes.
		"unreadable": `"EVAL" "-- a "b"\n` + strings.ReplaceAll(source("release"), "\n", `\n`) + `" "1" "lock:a" "one"`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLines()
			l.see(acquires("one", 1)...)
			l.see("[0 127.0.0.1:1] "+line, does("DEL lock:a"))
			if wrong := l.see(acquires("two", 2)...); len(wrong) > 0 {
				t.Errorf("of a lock that the script has deleted: %v", wrong)
			}
			if wrong := l.see(acquires("three", 3)...); len(wrong) != 1 {
				t.Errorf("of a lock that was taken from its owner afterwards: %v", wrong)
			}
		})
	}
}

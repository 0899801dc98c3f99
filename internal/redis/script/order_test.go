package script_test

import (
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/internal/redis/script"
)

// The counter of the slot is written before the lock that has it. So if the server refuses the second of the two, there
// is no lock with a counter that the slot does not know.
func TestCountersOfSlotsAreWrittenFirst(t *testing.T) {
	x := newQueue(t)
	raiseTo := func(token int64) {
		x.is("raise", send(t, x.n, raiseScript, raiseScript.Command(ownedKeys(x.k), text("a"),
			script.CounterText(uint64(token)))), int64(1))
	}
	lines := x.executes(func() {
		token := x.enqueue("a", usualArgs)[1].(int64)
		raiseTo(token + 5)
		x.is("extend", x.extend("a", token+9), int64(1))
		x.enqueue("b", usualArgs)
		x.release("a", "0:0:0")
		x.release("b", "0:0:0")
		c := acquired(t, send(t, x.n, acquireScript, acquireCommand("c", 1, 0))).Counter
		x.is("export", x.exports("c", int64(c), timeout, 0), int64(1))
		x.resumed("c2", timeout)
		x.release("c2", "0:0:0")
		joint{t, x.s, x.n.driver}.sends(
			&script.Usual{Lock: "k", Wait: x.k.Wait(), Fence: x.k.Fence(), Text: text("d"), TTL: timeout, Quantum: 1},
			taking("other", "e"))
	})
	slot, checked := "", map[string]int{}
	for _, words := range lines {
		switch {
		case len(words) < 3:
		case words[1] == x.k.Fence() && (words[0] == "SET" || words[0] == "MSET"):
			slot = max(slot, words[2])
		case words[1] != "k":
		case words[0] == "SET":
			checked["SET"]++
			if words[2][:16] > slot {
				t.Errorf("%q, and the slot has %s", words, slot)
			}
		case words[0] == "SETRANGE":
			checked["SETRANGE"]++
			if words[3] > slot {
				t.Errorf("%q, and the slot has %s", words, slot)
			}
		}
	}
	if checked["SET"] != 6 || checked["SETRANGE"] != 2 {
		t.Errorf("seen: %v in %q", checked, lines)
	}
}

// executes returns the commands that scripts execute while f runs.
func (x queue) executes(f func()) (lines [][]string) {
	x.t.Helper()
	c, err := redis.Dial("tcp", x.s.Addr(), redis.DialReadTimeout(timeout))
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Do("MONITOR"); err != nil {
		x.t.Fatal(err)
	}
	f()
	x.s.Cmd(x.t, "ECHO", "the end")
	for {
		line, err := redis.String(c.Receive())
		if err != nil {
			x.t.Fatal(err)
		}
		if _, command, ok := strings.Cut(line, " lua] "); ok {
			lines = append(lines, strings.Fields(strings.ReplaceAll(command, `"`, "")))
		} else if strings.HasSuffix(line, `"the end"`) {
			return lines
		}
	}
}

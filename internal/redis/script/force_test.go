package script_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// force takes the lock from the owner of value.
func (x queue) force(value string, turns bool) drivers.Reply {
	x.t.Helper()
	return send(x.t, x.n, forceScript, x.k.Force(value, 10*time.Second, turns, nil).Words)
}

// Of our locks, the owner is compared, and nothing that may have changed since somebody looked.
func TestForceComparesTheOwner(t *testing.T) {
	const is = "0000000000000005|a|1|host"
	for name, tt := range map[string]struct {
		is, seen string
		want     int64
	}{
		"the same":                                   {is, is, 1},
		"marked since":                               {is + "+", is, 1},
		"unmarked since":                             {is, is + "+", 1},
		"raised since":                               {is, "0000000000000004" + is[16:], 1},
		"another node's vote":                        {is, "0000000000000005|a|12|host", 1},
		"another owner's":                            {is, "0000000000000005|b|1|host", 0},
		"an owner that is a prefix":                  {is, "0000000000000005|aa|1|host", 0},
		"another library's, by its whole value":      {"a", "a", 1},
		"another library's, with any bytes":          {"5:x\x00|+:\n", "5:x\x00|+:\n", 1},
		"another library's, which changed":           {"b", "a", 0},
		"another library's, which was our owner":     {"a", is, 0},
		"ours, whose owner was another library's":    {is, "a", 0},
		"a lock that is kept":                        {"hold:a", "hold:a", 1},
		"a lock that is kept, by its owner":          {"hold:a", is, 0},
		"our lock, by what it will be kept as":       {is, "hold:a", 0},
		"nobody's":                                   {"", is, 0},
		"a value that is nearly that of a lock":      {is + "|x", is + "|x", 1},
		"a value that is nearly that, and not equal": {is + "|x", is + "|y", 0},
	} {
		x := newQueue(t)
		if tt.is != "" {
			x.s.Cmd(t, "SET", "k", tt.is, "PX", 10000)
		}
		x.is(name, x.force(tt.seen, false), tt.want)
		if left, want := x.s.Cmd(t, "EXISTS", "k"), tt.want == 0 && tt.is != ""; left == int64(1) != want {
			t.Errorf("%s: the lock is there: %v", name, left)
		}
		again := map[int64]int64{1: 2}[tt.want]
		x.is(name+", again", x.force(tt.seen, false), again)
	}
}

func TestForceLeavesWhatIsNotALockAlone(t *testing.T) {
	x := newQueue(t)
	x.s.Cmd(t, "SET", "k", "0000000000000005|a|1|")
	x.is("a value that never expires", x.force("0000000000000005|a|1|", false), int64(0))
	x.s.Cmd(t, "DEL", "k")
	x.s.Cmd(t, "HSET", "k", "f", "v")
	x.is("a hash", x.force("0000000000000005|a|1|", false), int64(0))
	if n := x.s.Cmd(t, "EXISTS", "k"); n != int64(1) || x.tombstones() != 0 {
		t.Errorf("%v keys are left, and %d tombstones", n, x.tombstones())
	}
}

// A lock that an operator has taken is not acquired by commands that its owner sent before, and the owner finds that it
// is lost.
func TestForceLeavesATombstone(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "B's")
	x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	x.enqueue("b", usualArgs+"B's")
	value := strings.TrimSuffix(x.s.Cmd(t, "GET", "k").(string), "+")
	x.is("force", x.force(value, false), int64(1))
	x.held("b")
	e.hears("B's b")
	x.is("force, again", x.force(value, false), int64(2))
	x.held("b")
	e.hears()
	x.is("a late attempt", x.enqueue("a", usualArgs), []drivers.Reply{int64(-1)})
	x.is("release", x.release("a", "0:0:0"), int64(4))
	x.leave("b")
	x.is("release of what nobody has", x.release("a", "0:0:0"), int64(4))
	x.is("a late attempt", send(t, x.n, acquireScript, acquireCommand("a", 1, 0)), int64(-1))
}

// In Redlock, the waiter that has the turn is notified again, or the turn goes to the next one.
func TestForceGoesOnWithTheTurn(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "A's", "B's")
	x.has("a", x.ask("a", forTurn+"A's"), false)
	acquire(t, x.n, "l", 10*time.Second)
	x.waits("b", x.ask("b", forTurn+"B's"), 0)
	x.is("force", x.force(script.CounterText(1)+"|l|3|", true), int64(1))
	e.hears("A's a")
	x.turn("a")
	acquire(t, x.n, "m", 10*time.Second)
	x.has("a", x.ask("a", forTurn+"nobody listens"), true)
	x.is("force", x.force(script.CounterText(1)+"|m|3|", true), int64(1))
	e.hears("B's b")
	x.turn("b")
	x.waiting()
}

// Out of memory, an operator can take a lock, and the next waiter gets it.
func TestForceOutOfMemory(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	x.is("force", x.force(fmt.Sprint(x.s.Cmd(t, "GET", "k")), false), int64(1))
	x.held("b")
}

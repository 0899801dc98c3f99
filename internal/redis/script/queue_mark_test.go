package script_test

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/redis/script"
)

// A waiter that joins the queue marks the lock, once. The mark stays while the lock is held, and does not change its
// TTL.
func TestJoiningMarksTheLock(t *testing.T) {
	x := newQueue(t)
	token := x.granted("a", x.enqueue("a|1|host", usualArgs), 0, 10*time.Second)
	value := script.CounterText(uint64(token)) + "|a|1|host"
	x.value(value)
	x.enqueue("try", "10000:0:0:1:")
	x.value(value)
	x.s.Cmd(t, "PEXPIRE", "k", 5000)
	for _, o := range []string{"b", "c", "b"} {
		x.enqueue(o, usualArgs)
		x.value(value + "+")
	}
	if left := x.s.PTTL(t, "k"); left <= 0 || left > 5*time.Second {
		t.Errorf("with the mark, the lock lives for %v", left)
	}
	x.is("extend", x.extend("a", token), int64(1|waited))
	x.value(value + "+")
	x.is("raise", send(t, x.n, raiseScript, raiseScript.Command(ownedKeys(x.k), text("a"),
		script.CounterText(uint64(token)+5))), int64(1))
	value = script.CounterText(uint64(token)+5) + "|a|1|host+"
	x.value(value)
	x.granted("a", x.claim("a", "60000"), time.Minute, time.Minute)
	x.value(value)
	x.is("extend to a greater token", x.extend("a", token+7), int64(1|waited))
	x.value(script.CounterText(uint64(token)+7) + "|a|1|host+")
}

// A release compares the values of other libraries, so they stay as they are. A lock that is kept after its release has
// no owner.
func TestOnlyOurLocksAreMarked(t *testing.T) {
	x := newTurns(t)
	for _, value := range []string{"theirs", "hold:a", "1|a|1|", "0000000000000001|a|1|l+", "0000000000000001|a|1|a|b"} {
		x.s.Cmd(t, "SET", "k", value, "PX", 10000)
		x.enqueue("b", usualArgs)
		x.ask("c", forTurn)
		x.value(value)
		send(t, x.n, acquireScript, acquireCommand("d", 1, 0))
		x.value(value)
	}
	// Nor does a waiter create a lock that would never end.
	x.s.Cmd(t, "FLUSHALL")
	x.has("b", x.ask("b", forTurn), false)
	x.waits("c", x.ask("c", forTurn), 0)
	x.held("")
}

// A lock that is granted while others wait has the mark from the beginning. No other lock has it.
func TestHandOverMarksTheLockIfOthersWait(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b|1|host", usualArgs)
	x.enqueue("c", usualArgs)
	marked := func(o string, want bool) {
		t.Helper()
		value, _ := x.s.Cmd(t, "GET", "k").(string)
		if got := value[len(value)-1] == '+'; got != want {
			t.Errorf("%s's lock is %q", o, value)
		}
		x.held(o)
	}
	x.release("a", "0:0:0")
	marked("b", true)
	if v, _ := script.ReadValue(x.s.Cmd(t, "GET", "k").(string)); v.Label != "host" {
		t.Errorf("granted with the label %q", v.Label)
	}
	x.claim("b|1|host", "10000")
	marked("b", true)
	x.release("b", "0:0:0")
	marked("c", false)
	// One that takes an expired lock by itself.
	x.enqueue("d", usualArgs)
	x.enqueue("e", usualArgs)
	x.s.Cmd(t, "DEL", "k")
	x.granted("d", x.enqueue("d", usualArgs), 0, 10*time.Second)
	marked("d", true)
	x.s.Cmd(t, "DEL", "k")
	x.granted("e", x.enqueue("e", usualArgs), 0, 10*time.Second)
	marked("e", false)
}

// One that does not use the queue marks a lock that others may wait for.
func TestAcquireMarksTheLockIfOthersWait(t *testing.T) {
	x := newTurns(t)
	marked := func(what string, want bool) {
		t.Helper()
		value, _ := x.s.Cmd(t, "GET", "k").(string)
		if got := value[len(value)-1] == '+'; got != want {
			t.Errorf("%s: the lock is %q", what, value)
		}
	}
	acquire(t, x.n, "a", 10*time.Second)
	marked("nobody waits", false)
	x.enqueue("b", usualArgs)
	x.s.Cmd(t, "DEL", "k")
	acquire(t, x.n, "c", 10*time.Second)
	marked("b waits", true)
	x.s.Cmd(t, "FLUSHALL")
	x.has("w", x.ask("w", forTurn), false)
	acquire(t, x.n, "d", 10*time.Second)
	marked("w has the turn", false)
	x.has("w", x.ask("w", forTurn), true) // it keeps its turn, which a release has to end
	marked("w has the turn, and says so", true)
	x.s.Cmd(t, "FLUSHALL")
	acquire(t, x.n, "e", 10*time.Second)
	x.waits("w", x.ask("w", forTurn), 0)
	marked("w waits for the turn", true)
}

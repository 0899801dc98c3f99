package script_test

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/redis/script"
)

// theirs makes another library acquire the lock.
func (x queue) theirs() {
	x.t.Helper()
	if x.s.Cmd(x.t, "SET", x.k.Lock, "c29tZWJvZHkncw==", "NX", "PX", 600000) == nil {
		x.t.Fatal("the lock is not free")
	}
}

// polls checks that o waits in the queue for the lock, and whether it has to poll.
func (x queue) polls(o, args string, want bool) {
	x.t.Helper()
	reply := x.enqueue(o, args)
	if p, err := script.ReadPosition(reply); err != nil || p.Status != script.Waiting || p.Poll != want {
		x.t.Errorf("%s got %v, read as %+v, %v; polls: want %v", o, reply, p, err, want)
	}
}

// polls checks that w waits for the turn or has it, while the lock is held, and whether it has to poll.
func (x turns) polls(w string, mine, want bool) {
	x.t.Helper()
	reply := x.ask(w, forTurn)
	s, err := script.ReadStanding(reply)
	if err != nil || (s.Status == script.Granted) != mine || s.Poll != want {
		x.t.Errorf("%s got %v, read as %+v, %v; its turn: want %v, polls: want %v", w, reply, s, err, mine, want)
	}
}

// The release of another library notifies nobody. So the first waiter polls, and only that one.
func TestOneWaiterPollsBehindAnotherLibrary(t *testing.T) {
	x := newQueue(t)
	x.theirs()
	x.polls("try", "10000:0:0:1:", false) // does not wait
	x.polls("a", usualArgs, true)
	x.polls("b", usualArgs, false)
	x.polls("c", usualArgs, false)
	x.polls("a", usualArgs, true)
	x.is("leave", x.leave("a"), int64(4))
	x.polls("c", usualArgs, false)
	x.polls("b", usualArgs, true)
	x.leave("b")
	x.leave("c")

	// Waiters that have died do not poll. They stay in the queue until the lock is free.
	for _, o := range []string{"d", "e"} {
		x.enqueue(o, "10000:1:0:1:")
	}
	x.passes(5 * time.Millisecond)
	x.polls("f", usualArgs, true)
	x.polls("g", usualArgs, false)
	x.waiting("d", "e", "f", "g")
	x.s.Cmd(t, "DEL", "k")
	x.granted("f", x.enqueue("f", usualArgs), 0, 10*time.Second)
}

// Nobody polls for a lock of this library, because its release notifies the first waiter, nor for one that is kept
// after its release, because nobody can release it.
func TestNobodyPollsForALockOfThisLibrary(t *testing.T) {
	x := newTurns(t)
	const ours = "0000000000000001|o|1|"
	for _, value := range []string{ours, ours + "+", ours + "label", ours + "label+", "hold:o"} {
		x.s.Cmd(t, "SET", "k", value, "PX", 10000)
		x.queue.polls("a", usualArgs, false)
		x.s.Cmd(t, "DEL", x.k.Queue(), x.k.Wait())
		x.polls("w", false, false)
		x.s.Cmd(t, "DEL", x.k.Queue(), x.k.Wait())
	}
}

// On Redlock, the waiter that has the turn polls, or the first one if nobody has it.
func TestOneWaiterForTheTurnPollsBehindAnotherLibrary(t *testing.T) {
	x := newTurns(t)
	x.theirs()
	x.polls("a", false, true)
	x.polls("b", false, false)
	x.s.Cmd(t, "DEL", "k")
	x.polls("a", true, false) // it asks the nodes
	x.theirs()
	x.polls("a", true, true)
	x.polls("b", false, false)
	x.is("leave", x.leave("a"), int64(4))
	x.polls("b", false, true)
	// A key without an expiry is no lock, and will not be released.
	x.s.Cmd(t, "PERSIST", "k")
	x.polls("b", false, false)
	x.s.Cmd(t, "SET", x.k.Turn(), "b ", "PX", 1000)
	x.polls("b", true, false)
}

package script_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// turns is a queue for the turn to ask Redlock's nodes, on one of them.
type turns struct{ queue }

func newTurns(t *testing.T) turns { return turns{newQueue(t)} }

// As the arguments of turn.lua: the longest lease, no ticket, no channel.
const forTurn = "6000:0:"

func (x turns) ask(w, args string) []drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	return x.array(send(x.t, x.n, turnScript, turnScript.Command(
		turnKeys(x.k), w, args)))
}

func (x turns) leave(w string) drivers.Reply {
	x.t.Helper()
	return x.release("-:0:0:0:" + w + ":") // an attempt that was not made
}

func (x turns) release(args string) drivers.Reply {
	x.t.Helper()
	o, args, _ := strings.Cut(args, ":")
	return send(x.t, x.n, turnReleaseScript, turnReleaseScript.Command(
		turnKeys(x.k), text(o), undoing(args)))
}

// has checks that reply says that it is w's turn, and that the lock is held or not.
func (x turns) has(w string, reply []drivers.Reply, held bool) {
	x.t.Helper()
	if len(reply) != 3 || reply[0] != int64(1) || (reply[1].(int64) > 0) != held {
		x.t.Fatalf("%s got %v, want its turn, and lock held: %v", w, reply, held)
	}
	x.turn(w)
}

// turn checks which waiter has the turn. An empty w means that nobody has it.
func (x turns) turn(w string) {
	x.t.Helper()
	got, _ := x.s.Cmd(x.t, "GET", x.k.Turn()).(string)
	if len(got) > 0 {
		got = got[:1]
	}
	if got != w {
		x.t.Errorf("it is %q's turn, want %q's", got, w)
	}
	if left := x.s.PTTL(x.t, x.k.Turn()); w != "" && (left <= 0 || left > script.ClaimWindow) {
		x.t.Errorf("the turn ends in %v", left)
	}
}

func TestTurnGoesFromOneToTheNext(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "C's", "D's")
	x.has("a", x.ask("a", forTurn+"A's"), false)
	x.waiting()
	x.waits("b", x.ask("b", forTurn), 0)
	x.waits("c", x.ask("c", forTurn+"C's"), 1)
	ticket := x.waits("d", x.ask("d", forTurn+"D's"), 2)
	if again := x.waits("d", x.ask("d", forTurn+"D's"), 2); again != ticket {
		t.Errorf("ticket %d, before %d", again, ticket)
	}
	x.s.Cmd(t, "PEXPIRE", x.k.Turn(), 1500)
	if wake := x.ask("d", forTurn+"D's")[3].(int64); wake > 1501 {
		t.Errorf("asked to come back in %d ms, when the turn has 1500", wake)
	}
	x.has("a", x.ask("a", forTurn+"A's"), false)
	x.lives(x.k.Turn(), script.ClaimWindow)
	x.is("leave", x.leave("a"), int64(waited))
	x.turn("b") // cannot be told
	x.has("b", x.ask("b", forTurn), false)
	x.is("leave", x.leave("b"), int64(waited))
	e.hears("C's c")
	x.turn("c")
	x.is("leave, again", x.leave("b"), int64(0))
	x.is("leave while waiting", x.leave("d"), int64(0))
	e.hears()
	x.waiting()
	x.turn("c")
	x.is("leave", x.leave("c"), int64(0))
	if left := x.s.Keys(t, "*"); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// Nobody has the turn to ask while the lock is taken here. Asking for it does nothing to the lock but set the mark.
func TestTurnWaitsForTheLock(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "A's", "B's")
	token := acquire(t, x.n, "l", 10*time.Second)
	before := fmt.Sprint(x.s.Cmd(t, "GET", "k"), "+", x.s.Cmd(t, "GET", x.k.Fence()))
	r := x.ask("a", forTurn+"A's")
	x.waits("a", r, 0)
	if left := r[1].(int64); left <= 6000 || left > 10000 {
		t.Errorf("the lock is held for %d ms more", left)
	}
	x.waits("b", x.ask("b", forTurn+"B's"), 1)
	x.is("leave", x.leave("n"), int64(4))
	x.turn("")
	if after := fmt.Sprint(x.s.Cmd(t, "GET", "k"), x.s.Cmd(t, "GET", x.k.Fence())); after != before {
		t.Errorf("the lock was %s, is %s", before, after)
	}
	x.is("release", x.release("l:0:0:"+fmt.Sprint(token)+":"), int64(1|waited))
	e.hears("A's a")
	x.turn("a")
	x.waiting("b")
	x.is("release, again", x.release("l:0:0:"+fmt.Sprint(token)+":"), int64(waited))
	e.hears("A's a") // a reminder
	x.waiting("b")
	x.is("the counter", x.s.Cmd(t, "GET", x.k.Fence()), script.CounterText(token))
}

// A waiter that has the turn while another owner has the lock is not in the queue, and waits nevertheless. It does not
// wait if it has become the owner.
func TestWaiterThatHasTheTurnCounts(t *testing.T) {
	x := newTurns(t)
	count := func(own string, want int64) {
		t.Helper()
		r := x.array(send(t, x.n, inspectScript, inspectScript.Command(append(queueKeys(x.k), x.k.Turn()), own)))
		if r[3] != want {
			t.Errorf("for the owner that has had the turn as %q, %v wait, want %d", own, r[3], want)
		}
	}
	count("", 0)
	x.has("a", x.ask("a", forTurn), false)
	acquire(t, x.n, "l", 10*time.Second)
	x.has("a", x.ask("a", forTurn), true)
	count("", 1)
	count("b", 1)
	count("a", 0)
	x.waits("b", x.ask("b", forTurn), 0)
	count("", 2)
	count("a", 1)
	if r := x.array(send(t, x.n, inspectScript, inspectScript.Command(queueKeys(x.k)))); r[3] != int64(1) {
		t.Errorf("%v are in the queue, want 1", r[3])
	}
	x.leave("a")
	count("", 1)
	x.leave("b")
	count("", 0)
}

// The owner's own turn ends with its lock; somebody else's does not.
func TestReleaseEndsTheOwnersTurn(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "A's", "B's")
	x.has("a", x.ask("a", forTurn+"A's"), false)
	acquire(t, x.n, "l", 10*time.Second)
	x.has("a", x.ask("a", forTurn+"A's"), true) // keeps it while it holds
	x.waits("b", x.ask("b", forTurn+"B's"), 0)
	x.is("release", x.release("l:0:0:0:a"), int64(1|waited))
	e.hears("B's b")
	x.turn("b")
	x.waiting()

	// Somebody asked out of turn, and was first: the waiter that has the turn is notified of the release.
	acquire(t, x.n, "m", 10*time.Second)
	x.waits("a", x.ask("a", forTurn+"A's"), 0)
	x.is("leave", x.release("m:10000:0:0:m:"), int64(1|waited))
	e.hears("B's b")
	x.turn("b")
	x.waiting("a")
	x.is("leave, again", x.release("m:10000:0:0:m:"), int64(2))
	e.hears()

	// An owner that waits under another name is not in the queue any more when it has released.
	acquire(t, x.n, "n", 10*time.Second)
	x.is("release", x.release("n:0:0:0:a"), int64(1|waited))
	x.waiting()
}

// Others have waited for a lease to be released, also where it is not known whether it ever was. They have not for one
// that leaves, unless its last attempt has the lock.
func TestLeavingTellsNobodyUnlessItFreesTheLock(t *testing.T) {
	for _, tomb := range []string{"0", "10000"} {
		x := newTurns(t)
		e := listen(t, x.s, "A's")
		x.has("a", x.ask("a", forTurn+"A's"), false)
		x.waits("b", x.ask("b", forTurn), 0)
		x.is("leave", x.release("l:"+tomb+":0:0:b:"), int64(0))
		e.hears()
		x.waiting()
		x.is("release", x.release("m:"+tomb+":0:0:c"), int64(waited))
		e.hears("A's a")
		acquire(t, x.n, "n", 10*time.Second)
		x.is("leave", x.release("n:"+tomb+":0:0:c:"), int64(1|waited))
		e.hears("A's a")
		x.turn("a")
		want := 3 // those of l, m and n
		if tomb == "0" {
			want = 0
		}
		if got := x.tombstones(); got != want {
			t.Errorf("%d tombstones, want %d", got, want)
		}
	}
}

func TestTurnOfOneThatListensNoMoreGoesOn(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "B's")
	x.has("a", x.ask("a", forTurn+"nobody listens"), false)
	acquire(t, x.n, "l", 10*time.Second)
	x.waits("c", x.ask("c", forTurn+"nobody listens"), 0)
	x.waits("b", x.ask("b", forTurn+"B's"), 1)
	x.is("release", x.release("l:0:0:0:"), int64(1|waited))
	e.hears("B's b")
	x.turn("b")
	x.waiting()
	// One that cannot be told keeps it, and asks.
	x.has("b", x.ask("b", forTurn), false)
	acquire(t, x.n, "m", 10*time.Second)
	x.waits("d", x.ask("d", forTurn), 0)
	x.is("release", x.release("m:0:0:0:"), int64(1|waited))
	e.hears()
	x.turn("b")
	x.waiting("d")
	// One with a new connection is told over that.
	x.has("b", x.ask("b", forTurn+"B's"), false)
	acquire(t, x.n, "n", 10*time.Second)
	x.is("release", x.release("n:0:0:0:"), int64(1|waited))
	e.hears("B's b")
}

func TestTurnReleaseRests(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "A's", "B's")
	x.has("a", x.ask("a", forTurn+"A's"), false)
	token := acquire(t, x.n, "l", 10*time.Second)
	x.waits("b", x.ask("b", forTurn+"B's"), 0)
	for _, want := range []int64{1, 2, 2} {
		x.is("release", x.release("l:10000:5000:"+fmt.Sprint(token)+":a"), want)
		x.held("hold:l")
		x.turn("")
		x.waiting("b")
	}
	e.hears()
	x.s.Cmd(t, "DEL", "k") // the rest is over
	x.has("b", x.ask("b", forTurn+"B's"), false)
	acquire(t, x.n, "m", 10*time.Second)
	x.is("release after a newer token", x.release("m:0:0:"+fmt.Sprint(token)+":b"), int64(3))
}

func TestManyDeadWaitersForTheTurnTakeSeveralCalls(t *testing.T) {
	x := newTurns(t)
	dead := func() {
		for i := range 100 {
			x.s.Cmd(t, "ZADD", x.k.Queue(), i, "dead"+fmt.Sprint(i))
		}
	}
	acquire(t, x.n, "l", 10*time.Second)
	x.ask("a", forTurn)
	dead()
	x.is("release", x.release("l:10000:0:0:"), int64(1|again))
	x.is("release, again", x.release("l:10000:0:0:"), int64(2|waited))
	x.turn("a")
	x.ask("b", forTurn)
	dead()
	x.is("leave", x.leave("a"), int64(8))
	x.is("leave, again", x.leave("a"), int64(waited))
	x.turn("b")
	x.is("leave", x.leave("b"), int64(0))
	dead()
	r := x.ask("c", forTurn)
	x.waits("c", r, 36)
	if r[3] != int64(0) {
		t.Errorf("asked to come back in %v ms, want at once", r[3])
	}
	x.has("c", x.ask("c", forTurn), false)
}

// If the server is out of memory, waiters get its error, and releasing and leaving work.
func TestTurnOutOfMemory(t *testing.T) {
	x := newTurns(t)
	e := listen(t, x.s, "B's", "C's")
	x.has("a", x.ask("a", forTurn), false)
	acquire(t, x.n, "l", 10*time.Second)
	x.ask("b", forTurn+"B's")
	x.ask("c", forTurn+"C's")
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	r := send(t, x.n, turnScript, turnScript.Command(turnKeys(x.k), "d", forTurn))
	if e, ok := r.(drivers.ServerError); !ok || e.Code() != "OOM" {
		t.Errorf("asking answers %v", r)
	}
	x.waiting("b", "c")
	x.has("a", x.ask("a", forTurn), true)
	x.is("release", x.release("l:10000:0:0:a"), int64(1|waited))
	e.hears("B's b")
	x.is("leave", x.leave("b"), int64(waited))
	e.hears("C's c")
	x.turn("c")
}

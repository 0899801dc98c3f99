package script_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

func TestEnqueueTakesAFreeLock(t *testing.T) {
	x := newQueue(t)
	x.s.Cmd(t, "SET", x.k.Fence(), "8000000000000000")
	token := x.granted("a", x.enqueue("a", usualArgs), 10*time.Second, 10*time.Second)
	if token != 8000000000000001 {
		t.Errorf("token %d after 8000000000000000", token)
	}
	x.waiting()
	x.s.Cmd(t, "PEXPIRE", "k", 5000)
	if again := x.granted("a", x.enqueue("a", usualArgs), time.Second, 5*time.Second); again != token {
		t.Errorf("delivered again: token %d, then %d", token, again)
	}
	if left := x.s.PTTL(t, "k"); left > 5*time.Second {
		t.Errorf("the second delivery prolonged the lock to %v", left)
	}
	x.s.Cmd(t, "DEL", x.k.Fence())
	if again := x.granted("a", x.enqueue("a", usualArgs), time.Second, 5*time.Second); again != token {
		t.Errorf("after the counter was lost: token %d, then %d", token, again)
	}
}

// The lock goes from one to the next in the order of their arrival, and with it the token grows.
func TestReleaseHandsOverInOrder(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "B's", "C:s")
	a := x.granted("a", x.enqueue("a", usualArgs), 10*time.Second, 10*time.Second)
	x.waits("b", x.enqueue("b", usualArgs+"B's"), 0)
	ticket := x.waits("c", x.enqueue("c", usualArgs+"C:s"), 1)
	if again := x.waits("c", x.enqueue("c", usualArgs+"C:s"), 1); again != ticket {
		t.Errorf("a heartbeat changed the ticket from %d to %d", ticket, again)
	}
	x.waits("b", x.enqueue("b", usualArgs+"B's"), 0)
	x.is("b claims too early", x.claim("b", "10000"), []drivers.Reply{int64(0)})
	x.waiting("b", "c")
	e.hears()

	x.is("release", x.release("a", "0:0:"+fmt.Sprint(a)), int64(1|waited))
	e.hears("B's b")
	x.held("b")
	if left := x.s.PTTL(t, "k"); left <= 0 || left > script.ClaimWindow {
		t.Errorf("b has %v to claim the lock", left)
	}
	x.waiting("c")
	b := x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second)
	if b <= a {
		t.Errorf("token %d after %d", b, a)
	}
	x.granted("b", x.claim("b", "5000"), 6*time.Second, 10*time.Second) // does not shorten
	x.is("extend", x.extend("b", b), int64(1|waited))
	x.is("extend with the token before", x.extend("b", a), int64(3))

	x.is("release", x.release("b", "0:0:"+fmt.Sprint(b)), int64(1|waited))
	e.hears("C:s c")
	if c := x.granted("c", x.claim("c", "10000"), 10*time.Second, 10*time.Second); c <= b {
		t.Errorf("token %d after %d", c, b)
	}
	x.is("release", x.release("c", "0:0:0"), int64(1))
	if left := x.s.Keys(t, "*"); len(left) != 1 {
		t.Errorf("%q are left, want the counter only", left)
	}
}

// A TTL shorter than the window is not prolonged by a hand-over.
func TestHandoverIsNoLongerThanTheTTL(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b", "1500:6000:0:1:")
	x.release("a", "0:0:0")
	x.held("b")
	if left := x.s.PTTL(t, "k"); left > 1500*time.Millisecond {
		t.Errorf("b wants 1.5s and was granted %v", left)
	}
}

func TestTryLockDoesNotWaitAndDoesNotOvertake(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "B's")
	try := "10000:0:0:1:"
	x.enqueue("a", usualArgs)
	r := x.enqueue("try", try)
	x.waits("try", r, -1)
	if left := r[1].(int64); left <= 6000 || left > 10000 {
		t.Errorf("the lock is held for %d ms more", left)
	}
	x.waiting()
	x.enqueue("b", usualArgs+"B's")
	x.s.Cmd(t, "DEL", "k") // expired, or another library's release
	x.waits("try", x.enqueue("try", try), -1)
	e.hears("B's b")
	x.held("b")
	x.waiting()
	// only dead waiters
	x.s.Cmd(t, "DEL", "k")
	x.enqueue("c", usualArgs)
	x.s.Cmd(t, "DEL", "k")
	x.s.Cmd(t, "ZADD", x.k.Queue(), 1, "dead")
	x.granted("try", x.enqueue("try", try), 10*time.Second, 10*time.Second)
	x.waiting()
}

func TestEnqueueLeavesWhatIsNotALockAlone(t *testing.T) {
	x := newQueue(t)
	for name, set := range map[string][]any{
		"hash": {"HSET", "k", "f", "v"}, "string without expiry": {"SET", "k", "v"}, "list": {"RPUSH", "k", "v"},
	} {
		x.s.Cmd(t, "FLUSHALL")
		x.enqueue("a", usualArgs)
		x.enqueue("b", usualArgs)
		x.waiting("b")
		x.s.Cmd(t, "DEL", "k")
		x.s.Cmd(t, set...)
		before := fmt.Sprintf("%q", x.s.Cmd(t, "DUMP", "k"))
		x.is(name+": enqueue", x.enqueue("b", usualArgs), []drivers.Reply{int64(-2)})
		x.waiting()
		x.is(name+": TryLock", x.enqueue("try", "10000:0:0:1:"), []drivers.Reply{int64(-2)})
		x.is(name+": claim", x.claim("b", "10000"), []drivers.Reply{int64(0)})
		others := int64(0) // MGET does not see what is no string
		if name == "string without expiry" {
			others = 4
		}
		x.is(name+": release", x.release("b", "0:0:0"), others)
		x.is(name+": leave", x.leave("b"), others)
		if after := fmt.Sprintf("%q", x.s.Cmd(t, "DUMP", "k")); after != before {
			t.Errorf("%s was changed", name)
		}
	}
}

// A waiter that has died is skipped: its deadline has passed or is absurd, its record is missing, or nobody listens on
// its channel. Its record is deleted, too.
func TestTheDeadAreSkipped(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "D's")
	x.enqueue("a", usualArgs)
	ticket := x.waits("b", x.enqueue("b", usualArgs+"nobody listens"), 0)
	x.enqueue("late", "10000:1:0:1:")
	x.enqueue("unknown", usualArgs)
	x.enqueue("absurd", usualArgs)
	x.enqueue("d", usualArgs+"D's")
	x.s.Cmd(t, "HDEL", x.k.Wait(), "unknown")
	x.s.Cmd(t, "HSET", x.k.Wait(), "absurd", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli(), ":10000:|"))
	x.passes(10 * time.Millisecond)
	x.is("release", x.release("a", "0:0:0"), int64(1|waited))
	e.hears("D's d")
	x.held("d")
	x.waiting()

	// A waiter that was skipped although it lives comes back to its place.
	x.enqueue("f", usualArgs)
	if again := x.waits("b", x.enqueue("b", "10000:6000:"+fmt.Sprint(ticket)+":1:"), 0); again != ticket {
		t.Errorf("ticket %d, before %d", again, ticket)
	}
	x.waiting("b", "f")
}

func TestManyDeadWaitersTakeSeveralCalls(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	dead := func() {
		for i := range 100 {
			x.s.Cmd(t, "ZADD", x.k.Queue(), i, "dead"+fmt.Sprint(i))
		}
	}
	x.enqueue("b", usualArgs)
	dead()
	x.is("release", x.release("a", "10000:0:0"), int64(1+8))
	x.held("")
	x.is("release, again", x.release("a", "10000:0:0"), int64(2|waited))
	x.held("b")
	x.s.Cmd(t, "DEL", "k")
	dead()
	r := x.enqueue("c", usualArgs)
	x.waits("c", r, 36)
	if r[3] != int64(0) {
		t.Errorf("asked to come back in %v ms, want at once", r[3])
	}
	x.granted("c", x.enqueue("c", usualArgs), 10*time.Second, 10*time.Second)
}

// A lease cannot be so long that its waiter counts as absurd.
func TestLeaseIsBounded(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b", "10000:600000:0:1:")
	x.release("a", "0:0:0")
	x.held("b")
}

// A lock that was held too short stays taken for a while, by nobody.
func TestReleaseWithRest(t *testing.T) {
	x := newQueue(t)
	token := x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	x.enqueue("b", usualArgs)
	x.is("release", x.release("a", "10000:5000:"+fmt.Sprint(token)), int64(1))
	x.lives("k", 5*time.Second)
	x.held("hold:a")
	for range 2 {
		x.is("release, again", x.release("a", "10000:20000:"+fmt.Sprint(token)), int64(2))
		x.held("hold:a")
		if left := x.s.PTTL(t, "k"); left > 5*time.Second {
			t.Errorf("a second release prolonged the rest to %v", left)
		}
	}
	x.is("extend", x.extend("a", token), int64(0))
	x.is("enqueue", x.enqueue("a", usualArgs), []drivers.Reply{int64(-1)})
	r := x.enqueue("b", usualArgs)
	x.waits("b", r, 0)
	if r[3] != int64(script.ClaimWindow/time.Millisecond) {
		t.Errorf("asked to come back in %v ms", r[3])
	}
	x.s.Cmd(t, "PEXPIRE", "k", 1500) // less than the window
	if wake := x.enqueue("b", usualArgs)[3].(int64); wake > 1501 {
		t.Errorf("asked to come back in %d ms, when 1500 are left", wake)
	}
	// without a tombstone
	x.s.Cmd(t, "DEL", "k")
	x.granted("b", x.enqueue("b", usualArgs), 0, 10*time.Second)
	x.is("release", x.release("b", "0:5000:0"), int64(1))
	x.is("release, again", x.release("b", "0:5000:0"), int64(0))
	x.held("hold:b")
}

func TestHandoverCertifiesThatNoNewerTokenWasIssued(t *testing.T) {
	x := newQueue(t)
	for _, want := range []int64{1, 3} {
		token := x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
		if want == 3 {
			put(t, x.s, "a", uint64(token)+1)
		}
		x.enqueue("b", usualArgs)
		x.is("release", x.release("a", "10000:0:"+fmt.Sprint(token)), want|waited)
		x.held("b")                                // its own token does not count
		again := map[int64]int64{1: 2, 3: 4}[want] // either says the same as the first
		x.is("release, again", x.release("a", "10000:0:"+fmt.Sprint(token)), again)
		x.exhume("a")
		x.leave("b")
		x.exhume("b")
	}
}

package script_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

func TestProtocolConstantsAreTheScripts(t *testing.T) {
	for name, want := range map[string]time.Duration{"CLAIM": script.ClaimWindow, "MAXLEASE": script.MaxLease, "keep": script.CounterKeep} {
		m := regexp.MustCompile(`(?m)^local ` + name + ` = (\d+) `).FindStringSubmatch(script.Expand("mint.lua") + script.Expand("queue.lua"))
		if m == nil || m[1] != script.Milliseconds(want) {
			t.Errorf("queue.lua has %s = %q, want %s", name, m, script.Milliseconds(want))
		}
	}
}

// Of a client that has not authenticated, Redis takes ten words, and would answer "unauthenticated multibulk length"
// instead of NOAUTH.
func TestCallsHaveTenWordsAtMost(t *testing.T) {
	for _, s := range []*script.Source{
		acquireScript, raiseScript, extendScript, releaseScript, enqueueScript, claimScript, handoverScript,
		turnScript, turnReleaseScript,
	} {
		source := s.Text()
		words := 3
		for _, what := range []string{"KEYS", "ARGV"} {
			last := 0
			for _, m := range regexp.MustCompile(what+`\[(\d)\]`).FindAllStringSubmatch(source, -1) {
				i, _ := strconv.Atoi(m[1])
				last = max(last, i)
			}
			words += last
		}
		if words < 6 || words > 10 {
			t.Errorf("%d words: %s", words, strings.SplitN(source, "\n", 2)[0])
		}
	}
}

// What an uncontended lock costs the server: calls of commands, the script's own not counted.
func TestCostOfAnUncontendedLock(t *testing.T) {
	x := newLine(t)
	calls := func(what string, want int, f func()) {
		t.Helper()
		f() // the script is known from now on
		x.s.Cmd(t, "FLUSHALL")
		f()
		x.s.Cmd(t, "CONFIG", "RESETSTAT")
		f()
		got := 0
		for _, m := range regexp.MustCompile(`cmdstat_(\w+):calls=(\d+)`).FindAllStringSubmatch(x.s.Cmd(t, "INFO", "commandstats").(string), -1) {
			if m[1] != "evalsha" && m[1] != "config" && m[1] != "del" {
				n, _ := strconv.Atoi(m[2])
				got += n
			}
		}
		if got != want {
			t.Errorf("%s makes %d calls, want %d", what, got, want)
		}
	}
	k := x.k
	calls("acquire", 4, func() {
		x.s.Cmd(t, "DEL", "k")
		send(t, x.n, acquireScript, acquireCommand("a", 1, 0))
	})
	calls("enqueue", 5, func() {
		x.s.Cmd(t, "DEL", "k")
		x.enqueue("a", patient)
	})
	// DEL is not counted; SET is ours.
	held := func(release func()) func() {
		return func() {
			x.s.Cmd(t, "SET", "k", "a", "PX", 10000)
			release()
		}
	}
	calls("release", 1+1, held(func() {
		x.is("release", send(t, x.n, releaseScript, releaseScript.Command([]string{k.Lock, k.Tombstone("a"), k.Fence()}, "a", "0:0:9999999999999999:")), int64(1))
	}))
	calls("handover", 1+2, held(func() { x.is("handover", x.release("a", "0:0:9999999999999999"), int64(1)) }))
	calls("turnrelease", 1+2, held(func() {
		x.is("turnrelease", send(t, x.n, turnReleaseScript, turnReleaseScript.Command(
			[]string{k.Lock, k.Tombstone("a"), k.Fence(), k.Turn(), k.Queue(), k.Waiters()}, "a:0:0:9999999999999999:")), int64(1))
	}))
}

func TestEnqueueTakesAFreeLock(t *testing.T) {
	x := newLine(t)
	x.s.Cmd(t, "SET", x.k.Fence(), "8000000000000000")
	token := x.granted("a", x.enqueue("a", patient), 10*time.Second, 10*time.Second)
	if token != 8000000000000001 {
		t.Errorf("token %d after 8000000000000000", token)
	}
	x.waiting()
	if left := pttl(t, x.s, x.k.Fence()); left < script.CounterKeep {
		t.Errorf("the counter expires in %v", left)
	}
	x.s.Cmd(t, "PEXPIRE", "k", 5000)
	if again := x.granted("a", x.enqueue("a", patient), time.Second, 5*time.Second); again != token {
		t.Errorf("delivered again: token %d, then %d", token, again)
	}
	if left := pttl(t, x.s, "k"); left > 5*time.Second {
		t.Errorf("the second delivery prolonged the lock to %v", left)
	}
	x.s.Cmd(t, "DEL", x.k.Fence())
	if again := x.granted("a", x.enqueue("a", patient), time.Second, 5*time.Second); again == 0 {
		t.Error("no token after the counter was lost")
	}
}

// The lock goes from one to the next in the order of their arrival, and with it the token grows.
func TestReleaseHandsOverInOrder(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "B's", "C:s")
	a := x.granted("a", x.enqueue("a", patient), 10*time.Second, 10*time.Second)
	x.waits("b", x.enqueue("b", patient+"B's"), 0)
	ticket := x.waits("c", x.enqueue("c", patient+"C:s"), 1)
	if again := x.waits("c", x.enqueue("c", patient+"C:s"), 1); again != ticket {
		t.Errorf("a heartbeat changed the ticket from %d to %d", ticket, again)
	}
	x.waits("b", x.enqueue("b", patient+"B's"), 0)
	x.is("b claims too early", x.claim("b", "10000"), []drivers.Reply{int64(0)})
	x.waiting("b", "c")
	e.hears()

	x.is("release", x.release("a", "0:0:"+fmt.Sprint(a)), int64(1))
	e.hears("B's b")
	x.held("b")
	if left := pttl(t, x.s, "k"); left <= 0 || left > script.ClaimWindow {
		t.Errorf("b has %v to claim the lock", left)
	}
	x.waiting("c")
	b := x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second)
	if b <= a {
		t.Errorf("token %d after %d", b, a)
	}
	x.granted("b", x.claim("b", "5000"), 6*time.Second, 10*time.Second) // does not shorten
	x.is("extend", x.extend("b", b), int64(1))
	x.is("extend with the token before", x.extend("b", a), int64(3))

	x.is("release", x.release("b", "0:0:"+fmt.Sprint(b)), int64(1))
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
	x := newLine(t)
	x.enqueue("a", patient)
	x.enqueue("b", "1500:6000:0:")
	x.release("a", "0:0:0")
	x.held("b")
	if left := pttl(t, x.s, "k"); left > 1500*time.Millisecond {
		t.Errorf("b wants 1.5s and was granted %v", left)
	}
}

func TestTryLockDoesNotWaitAndDoesNotOvertake(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "B's")
	try := "10000:0:0:"
	x.enqueue("a", patient)
	r := x.enqueue("try", try)
	x.waits("try", r, -1)
	if left := r[1].(int64); left <= 6000 || left > 10000 {
		t.Errorf("the lock is held for %d ms more", left)
	}
	x.waiting()
	x.enqueue("b", patient+"B's")
	x.s.Cmd(t, "DEL", "k") // expired, or another library's release
	x.waits("try", x.enqueue("try", try), -1)
	e.hears("B's b")
	x.held("b")
	x.waiting()
	// only dead waiters
	x.s.Cmd(t, "DEL", "k")
	x.enqueue("c", patient)
	x.s.Cmd(t, "DEL", "k")
	x.s.Cmd(t, "ZADD", x.k.Queue(), 1, "dead")
	x.granted("try", x.enqueue("try", try), 10*time.Second, 10*time.Second)
	x.waiting()
}

func TestEnqueueLeavesWhatIsNotALockAlone(t *testing.T) {
	x := newLine(t)
	for name, set := range map[string][]any{
		"hash": {"HSET", "k", "f", "v"}, "string without expiry": {"SET", "k", "v"}, "list": {"RPUSH", "k", "v"},
	} {
		x.s.Cmd(t, "FLUSHALL")
		x.enqueue("a", patient)
		x.enqueue("b", patient)
		x.waiting("b")
		x.s.Cmd(t, "DEL", "k")
		x.s.Cmd(t, set...)
		before := fmt.Sprintf("%q", x.s.Cmd(t, "DUMP", "k"))
		x.is(name+": enqueue", x.enqueue("b", patient), []drivers.Reply{int64(-2)})
		x.waiting()
		x.is(name+": TryLock", x.enqueue("try", "10000:0:0:"), []drivers.Reply{int64(-2)})
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

// Who cannot be there is skipped: its deadline has passed or is absurd, nothing is known of it, or nobody listens where
// it wants to be told. What is left of it goes, too.
func TestTheDeadAreSkipped(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "D's")
	x.enqueue("a", patient)
	ticket := x.waits("b", x.enqueue("b", patient+"nobody listens"), 0)
	x.enqueue("late", "10000:1:0:")
	x.enqueue("unknown", patient)
	x.enqueue("absurd", patient)
	x.enqueue("d", patient+"D's")
	x.s.Cmd(t, "HDEL", x.k.Waiters(), "unknown")
	x.s.Cmd(t, "HSET", x.k.Waiters(), "absurd", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli(), ":10000:"))
	x.passes(10 * time.Millisecond)
	x.is("release", x.release("a", "0:0:0"), int64(1))
	e.hears("D's d")
	x.held("d")
	x.waiting()

	// Who was skipped although it lives comes back to its place.
	x.enqueue("f", patient)
	if again := x.waits("b", x.enqueue("b", "10000:6000:"+fmt.Sprint(ticket)+":"), 0); again != ticket {
		t.Errorf("ticket %d, before %d", again, ticket)
	}
	x.waiting("b", "f")
}

func TestManyDeadWaitersTakeSeveralCalls(t *testing.T) {
	x := newLine(t)
	x.enqueue("a", patient)
	dead := func() {
		for i := range 100 {
			x.s.Cmd(t, "ZADD", x.k.Queue(), i, "dead"+fmt.Sprint(i))
		}
	}
	x.enqueue("b", patient)
	dead()
	x.is("release", x.release("a", "10000:0:0"), int64(1+8))
	x.held("")
	x.is("release, again", x.release("a", "10000:0:0"), int64(2))
	x.held("b")
	x.s.Cmd(t, "DEL", "k")
	dead()
	r := x.enqueue("c", patient)
	x.waits("c", r, 36)
	if r[3] != int64(0) {
		t.Errorf("asked to come back in %v ms, want at once", r[3])
	}
	x.granted("c", x.enqueue("c", patient), 10*time.Second, 10*time.Second)
}

// A lease cannot be so long that its waiter counts as absurd.
func TestLeaseIsBounded(t *testing.T) {
	x := newLine(t)
	x.enqueue("a", patient)
	x.enqueue("b", "10000:600000:0:")
	x.release("a", "0:0:0")
	x.held("b")
}

// A lock that was held too short stays taken for a while, by nobody.
func TestReleaseWithRest(t *testing.T) {
	x := newLine(t)
	token := x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
	x.enqueue("b", patient)
	x.is("release", x.release("a", "10000:5000:"+fmt.Sprint(token)), int64(1))
	x.lives("k", 5*time.Second)
	x.held("hold:a")
	for range 2 {
		x.is("release, again", x.release("a", "10000:20000:"+fmt.Sprint(token)), int64(2))
		x.held("hold:a")
		if left := pttl(t, x.s, "k"); left > 5*time.Second {
			t.Errorf("a second release prolonged the rest to %v", left)
		}
	}
	x.is("extend", x.extend("a", token), int64(0))
	x.is("enqueue", x.enqueue("a", patient), []drivers.Reply{int64(-1)})
	r := x.enqueue("b", patient)
	x.waits("b", r, 0)
	if r[3] != int64(script.ClaimWindow/time.Millisecond) {
		t.Errorf("asked to come back in %v ms", r[3])
	}
	x.s.Cmd(t, "PEXPIRE", "k", 1500) // less than the window
	if wake := x.enqueue("b", patient)[3].(int64); wake > 1501 {
		t.Errorf("asked to come back in %d ms, when 1500 are left", wake)
	}
	// without a tombstone
	x.s.Cmd(t, "DEL", "k")
	x.granted("b", x.enqueue("b", patient), 0, 10*time.Second)
	x.is("release", x.release("b", "0:5000:0"), int64(1))
	x.is("release, again", x.release("b", "0:5000:0"), int64(0))
	x.held("hold:b")
}

func TestHandoverCertifiesThatNoNewerTokenWasIssued(t *testing.T) {
	x := newLine(t)
	for _, want := range []int64{1, 3} {
		token := x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
		if want == 3 {
			x.s.Cmd(t, "SET", x.k.Fence(), token+1)
		}
		x.enqueue("b", patient)
		x.is("release", x.release("a", "10000:0:"+fmt.Sprint(token)), want)
		x.held("b")                                // its own token does not count
		again := map[int64]int64{1: 2, 3: 4}[want] // either says the same as the first
		x.is("release, again", x.release("a", "10000:0:"+fmt.Sprint(token)), again)
		x.s.Cmd(t, "DEL", x.k.Tombstone("a"))
		x.leave("b")
		x.s.Cmd(t, "DEL", x.k.Tombstone("b"))
	}
}

// Programs without the queue keep exclusion, and the queue goes on after them.
func TestPlainAndQueuedExcludeEachOther(t *testing.T) {
	x := newLine(t)
	x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
	if v := acquired(t, send(t, x.n, acquireScript, acquireCommand("p", 1, 0))); v.Status != script.Waiting {
		t.Errorf("the plain script answers %v", v)
	}
	x.enqueue("b", patient)
	x.is("plain release", send(t, x.n, releaseScript, releaseCommand("a", true)), int64(1))
	v := acquired(t, send(t, x.n, acquireScript, acquireCommand("p", 1, 0)))
	if v.Status != script.Granted {
		t.Fatal(v)
	}
	x.waits("b", x.enqueue("b", patient), 0)
	x.is("plain release", send(t, x.n, releaseScript, releaseCommand("p", true)), int64(1))
	if token := x.granted("b", x.enqueue("b", patient), 0, 10*time.Second); token <= int64(v.Counter) {
		t.Errorf("token %d after %d", token, v.Counter)
	}
}

func TestPlainReleaseRestsAndHints(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "free:k")
	release := func(o, args string) drivers.Reply {
		t.Helper()
		return send(t, x.n, releaseScript, releaseScript.Command([]string{x.k.Lock, x.k.Tombstone(o), x.k.Fence()}, o, args))
	}
	token := acquire(t, x.n, "a", 10*time.Second)
	x.is("another's release", release("b", "0:0:0:free:k"), int64(4))
	e.hears()
	x.is("release", release("a", "10000:0:"+fmt.Sprint(token)+":free:k"), int64(1))
	e.hears("free:k free")
	x.is("release, again", release("a", "10000:0:0:free:k"), int64(2))
	e.hears()
	acquire(t, x.n, "b", 10*time.Second)
	x.is("release after a newer token", release("b", "0:0:"+fmt.Sprint(token)+":free:k"), int64(3))
	e.hears("free:k free")
	acquire(t, x.n, "c", 10*time.Second)
	x.is("a clean-up", release("c", "10000:0:0:"), int64(1))
	e.hears()
	acquire(t, x.n, "d", 10*time.Second)
	x.is("release with rest", release("d", "10000:5000:0:free:k"), int64(1))
	x.is("again", release("d", "10000:9000:0:free:k"), int64(2))
	e.hears()
	x.held("hold:d")
	if left := pttl(t, x.s, "k"); left > 5*time.Second {
		t.Errorf("it rests for %v", left)
	}
}

package node

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigo"
	"github.com/golocker/locker/internal/redistest"
)

// line is one lock on a real server, and those who wait for it.
type line struct {
	t *testing.T
	s *redistest.Server
	n *Node
	k keys
}

func newLine(t *testing.T) line {
	s, n := real(t)
	return line{t, s, n, keysOf("k")}
}

// As the arguments of enqueue.lua: 10 s TTL, the longest lease, no ticket, no channel.
const patient = "10000:6000:0:"

func (x line) enqueue(o, args string) []drivers.Reply {
	x.t.Helper()
	return x.array(send(x.t, x.n, enqueueScript, enqueueScript.command(
		[]string{x.k.lock, x.k.fence, x.k.gone + o, x.k.queue(), x.k.waiters()}, o, args)))
}

func (x line) claim(o, ttl string) []drivers.Reply {
	x.t.Helper()
	return x.array(send(x.t, x.n, claimScript, claimScript.command(
		[]string{x.k.lock, x.k.fence, x.k.queue(), x.k.waiters()}, o, ttl)))
}

func (x line) release(o, args string) drivers.Reply {
	x.t.Helper()
	return send(x.t, x.n, handoverScript, handoverScript.command(
		[]string{x.k.lock, x.k.gone + o, x.k.fence, x.k.queue(), x.k.waiters()}, o, args))
}

func (x line) leave(o string) drivers.Reply {
	x.t.Helper()
	return x.release(o, "10000:0:0")
}

func (x line) extend(o string, token int64) drivers.Reply {
	x.t.Helper()
	return send(x.t, x.n, extendScript, extendScript.command([]string{x.k.lock, x.k.fence}, o, "10000", fmt.Sprint(token)))
}

func (x line) array(reply drivers.Reply) []drivers.Reply {
	x.t.Helper()
	a, ok := reply.([]drivers.Reply)
	if !ok {
		x.t.Fatalf("the script answers %v", reply)
	}
	return a
}

// granted checks that reply grants the lock to o with at least from and at most to left, and returns the token.
func (x line) granted(o string, reply []drivers.Reply, from, to time.Duration) int64 {
	x.t.Helper()
	if len(reply) != 3 || reply[0] != int64(1) {
		x.t.Fatalf("%s got %v, want a grant", o, reply)
	}
	if left := time.Duration(reply[2].(int64)) * time.Millisecond; left < from || left > to {
		x.t.Errorf("%s was granted the lock for %v, want %v to %v", o, left, from, to)
	} else if lives := pttl(x.t, x.s, x.k.lock); lives > left || lives < left-time.Second {
		x.t.Errorf("%s was told that the lock lives for %v; it lives for %v", o, left, lives)
	}
	x.held(o)
	if got := x.s.Cmd(x.t, "GET", x.k.fence); got != fmt.Sprint(reply[1]) {
		x.t.Errorf("%s has the token %v, the counter is %v", o, reply[1], got)
	}
	return reply[1].(int64)
}

// waits checks that reply makes o wait at rank, and returns its ticket.
func (x line) waits(o string, reply []drivers.Reply, rank int) int64 {
	x.t.Helper()
	if len(reply) != 5 || reply[0] != int64(0) || reply[2] != int64(rank) {
		x.t.Fatalf("%s got %v, want rank %d", o, reply, rank)
	}
	return reply[4].(int64)
}

// held checks who holds the lock, "" for nobody.
func (x line) held(by string) {
	x.t.Helper()
	got, _ := x.s.Cmd(x.t, "GET", x.k.lock).(string)
	if got != by {
		x.t.Errorf("the lock is %q's, want %q's", got, by)
	}
}

// waiting checks who waits, the first first. The queue and what is known of the waiters must agree, and not live for
// ever.
func (x line) waiting(want ...string) {
	x.t.Helper()
	got := x.strings(x.s.Cmd(x.t, "ZRANGE", x.k.queue(), 0, -1))
	if strings.Join(got, " ") != strings.Join(want, " ") {
		x.t.Errorf("%q wait, want %q", got, want)
	}
	if n := x.s.Cmd(x.t, "HLEN", x.k.waiters()); n != int64(len(got)) {
		x.t.Errorf("%v waiters are known, %d are in the queue", n, len(got))
	}
	for _, key := range []string{x.k.queue(), x.k.waiters()} {
		if left := pttl(x.t, x.s, key); len(want) > 0 && (left <= 0 || left > 2*maxLease) {
			x.t.Errorf("%s expires in %v", key, left)
		}
	}
}

func (x line) strings(reply any) (list []string) {
	for _, v := range reply.([]any) {
		list = append(list, v.(string))
	}
	return list
}

// is checks one reply.
func (x line) is(what string, got, want drivers.Reply) {
	x.t.Helper()
	if !reflect.DeepEqual(got, want) {
		x.t.Errorf("%s answers %v, want %v", what, got, want)
	}
}

// ear hears what is published on channels.
type ear struct {
	t    *testing.T
	conn redis.PubSubConn
}

func listen(t *testing.T, s *redistest.Server, channels ...any) *ear {
	t.Helper()
	conn, err := redis.Dial("unix", s.Socket(), redis.DialReadTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	e := &ear{t, redis.PubSubConn{Conn: conn}}
	if err := e.conn.Subscribe(channels...); err != nil {
		t.Fatal(err)
	}
	e.heard()
	return e
}

// heard returns what was heard since it was last asked, as "channel payload".
func (e *ear) heard() (messages []string) {
	e.t.Helper()
	if err := e.conn.Ping(""); err != nil {
		e.t.Fatal(err)
	}
	for {
		switch m := e.conn.Receive().(type) {
		case redis.Message:
			messages = append(messages, m.Channel+" "+string(m.Data))
		case redis.Pong:
			return messages
		case error:
			e.t.Fatal(m)
		}
	}
}

func (e *ear) hears(want ...string) {
	e.t.Helper()
	if got := e.heard(); strings.Join(got, "|") != strings.Join(want, "|") {
		e.t.Errorf("heard %q, want %q", got, want)
	}
}

func TestProtocolConstantsAreTheScripts(t *testing.T) {
	for name, want := range map[string]time.Duration{"CLAIM": claimWindow, "MAXLEASE": maxLease, "keep": counterKeep} {
		m := regexp.MustCompile(`(?m)^local ` + name + ` = (\d+) `).FindStringSubmatch(expand("mint.lua") + expand("queue.lua"))
		if m == nil || m[1] != milliseconds(want) {
			t.Errorf("queue.lua has %s = %q, want %s", name, m, milliseconds(want))
		}
	}
}

// Of a client that has not authenticated, Redis takes ten words, and would answer "unauthenticated multibulk length"
// instead of NOAUTH.
func TestCallsHaveTenWordsAtMost(t *testing.T) {
	for _, s := range []*script{
		acquireScript, raiseScript, extendScript, releaseScript, enqueueScript, claimScript, handoverScript,
		turnScript, turnReleaseScript,
	} {
		source := s.source
		words := 3
		for _, what := range []string{"KEYS", "ARGV"} {
			last := 0
			for _, m := range regexp.MustCompile(what+`\[(\d)\]`).FindAllStringSubmatch(source, -1) {
				i, _ := strconv.Atoi(m[1])
				last = max(last, i)
			}
			words += last
		}
		if words < 7 || words > 10 {
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
	calls("acquire", 5, func() {
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
		x.is("release", send(t, x.n, releaseScript, releaseScript.command([]string{k.lock, k.gone + "a", k.fence}, "a", "0:0:9999999999999999:")), int64(1))
	}))
	calls("handover", 1+2, held(func() { x.is("handover", x.release("a", "0:0:9999999999999999"), int64(1)) }))
	calls("turnrelease", 1+2, held(func() {
		x.is("turnrelease", send(t, x.n, turnReleaseScript, turnReleaseScript.command(
			[]string{k.lock, k.gone + "a", k.fence, k.turn(), k.queue(), k.waiters()}, "a:0:0:9999999999999999:")), int64(1))
	}))
}

func TestEnqueueTakesAFreeLock(t *testing.T) {
	x := newLine(t)
	x.s.Cmd(t, "SET", x.k.fence, "8000000000000000")
	token := x.granted("a", x.enqueue("a", patient), 10*time.Second, 10*time.Second)
	if token != 8000000000000001 {
		t.Errorf("token %d after 8000000000000000", token)
	}
	x.waiting()
	if left := pttl(t, x.s, "k"); left < 9*time.Second || left > 10*time.Second {
		t.Errorf("the lock lives for %v", left)
	}
	if left := pttl(t, x.s, x.k.fence); left < counterKeep {
		t.Errorf("the counter expires in %v", left)
	}
	x.s.Cmd(t, "PEXPIRE", "k", 5000)
	if again := x.granted("a", x.enqueue("a", patient), time.Second, 5*time.Second); again != token {
		t.Errorf("delivered again: token %d, then %d", token, again)
	}
	if left := pttl(t, x.s, "k"); left > 5*time.Second {
		t.Errorf("the second delivery prolonged the lock to %v", left)
	}
	x.s.Cmd(t, "DEL", x.k.fence)
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
	if left := pttl(t, x.s, "k"); left <= 0 || left > claimWindow {
		t.Errorf("b has %v to claim the lock", left)
	}
	x.waiting("c")
	b := x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second)
	if b <= a {
		t.Errorf("token %d after %d", b, a)
	}
	if left := pttl(t, x.s, "k"); left < 9*time.Second {
		t.Errorf("b claimed the lock for %v", left)
	}
	x.granted("b", x.claim("b", "5000"), 9*time.Second, 10*time.Second) // does not shorten
	x.is("extend", x.extend("b", b), int64(1))
	x.is("extend with the token before", x.extend("b", a), int64(0))

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
	x.enqueue("b", "500:6000:0:")
	x.release("a", "0:0:0")
	x.held("b")
	if left := pttl(t, x.s, "k"); left > 500*time.Millisecond {
		t.Errorf("b wants 500ms and was granted %v", left)
	}
}

func TestTryLockDoesNotWaitAndDoesNotOvertake(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "B's")
	try := "10000:0:0:"
	x.enqueue("a", patient)
	r := x.enqueue("try", try)
	x.waits("try", r, -1)
	if left := r[1].(int64); left <= 9000 || left > 10000 {
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
	x.s.Cmd(t, "ZADD", x.k.queue(), 1, "dead")
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
		x.is(name+": release", x.release("b", "0:0:0"), int64(0))
		x.is(name+": leave", x.leave("b"), int64(0))
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
	x.s.Cmd(t, "HDEL", x.k.waiters(), "unknown")
	x.s.Cmd(t, "HSET", x.k.waiters(), "absurd", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli(), ":10000:"))
	time.Sleep(20 * time.Millisecond) // the server's clock, not ours
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
			x.s.Cmd(t, "ZADD", x.k.queue(), i, "dead"+fmt.Sprint(i))
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
	for range 2 {
		x.held("hold:a")
		if left := pttl(t, x.s, "k"); left <= 4*time.Second || left > 5*time.Second {
			t.Errorf("it rests for %v", left)
		}
		x.is("release, again", x.release("a", "10000:20000:"+fmt.Sprint(token)), int64(2))
	}
	x.is("extend", x.extend("a", token), int64(0))
	x.is("enqueue", x.enqueue("a", patient), []drivers.Reply{int64(-1)})
	r := x.enqueue("b", patient)
	x.waits("b", r, 0)
	if r[3] != int64(claimWindow/time.Millisecond) {
		t.Errorf("asked to come back in %v ms", r[3])
	}
	x.s.Cmd(t, "PEXPIRE", "k", 300)
	if wake := x.enqueue("b", patient)[3].(int64); wake > 301 {
		t.Errorf("asked to come back in %d ms, when 300 are left", wake)
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
			x.s.Cmd(t, "SET", x.k.fence, token+1)
		}
		x.enqueue("b", patient)
		x.is("release", x.release("a", "10000:0:"+fmt.Sprint(token)), want)
		x.held("b")                                // its own token does not count
		again := map[int64]int64{1: 2, 3: 0}[want] // either says the same as the first
		x.is("release, again", x.release("a", "10000:0:"+fmt.Sprint(token)), again)
		x.s.Cmd(t, "DEL", x.k.gone+"a")
		x.leave("b")
		x.s.Cmd(t, "DEL", x.k.gone+"b")
	}
}

// The schedules of docs/safety.md. Each of them broke an earlier draft.

func TestScheduleLostPush(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "B's")
	x.enqueue("a", patient)
	x.enqueue("b", patient+"B's")
	x.release("a", "0:0:0")
	e.hears("B's b") // lost on its way
	token := x.granted("b", x.enqueue("b", patient+"B's"), 0, claimWindow)
	if left := pttl(t, x.s, "k"); left > claimWindow {
		t.Errorf("the heartbeat prolonged the lock to %v", left)
	}
	if claimed := x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second); claimed != token {
		t.Errorf("token %d by heartbeat, %d by claim", token, claimed)
	}
}

func TestScheduleReleaseDeliveredTwice(t *testing.T) {
	for _, args := range []string{"0:0:0", "10000:0:0", "0:5000:0", "10000:5000:0"} {
		x := newLine(t)
		e := listen(t, x.s, "B's", "C's")
		x.enqueue("a", patient)
		x.enqueue("b", patient+"B's")
		x.enqueue("c", patient+"C's")
		x.is("release", x.release("a", args), int64(1))
		if strings.Contains(args, ":5000:") {
			x.s.Cmd(t, "DEL", "k") // the rest is over
			x.granted("b", x.enqueue("b", patient+"B's"), 10*time.Second, 10*time.Second)
		} else {
			e.hears("B's b")
		}
		before := pttl(t, x.s, "k")
		again := int64(0)
		if strings.HasPrefix(args, "10000") {
			again = 2
		}
		x.is(args+" again", x.release("a", args), again)
		e.hears()
		x.held("b")
		x.waiting("c")
		if after := pttl(t, x.s, "k"); after > before {
			t.Errorf("%s again: b's lock lives for %v instead of %v", args, after, before)
		}
	}
}

func TestScheduleLeaveDeliveredTwice(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "C's", "D's")
	x.enqueue("a", patient)
	x.enqueue("b", patient)
	x.enqueue("c", patient+"C's")
	x.enqueue("d", patient+"D's")
	x.is("leave while waiting", x.leave("b"), int64(0))
	x.waiting("c", "d")
	x.is("leave, again", x.leave("b"), int64(0))
	x.is("leave while holding", x.leave("a"), int64(1))
	e.hears("C's c")
	x.is("leave, again", x.leave("a"), int64(2))
	x.is("leave of b, again", x.leave("b"), int64(0))
	e.hears()
	x.held("c")
	x.waiting("d")
}

func TestScheduleGrantedAgainAfterAnother(t *testing.T) {
	x := newLine(t)
	x.enqueue("a", patient)
	x.enqueue("b", patient)
	x.release("a", "0:0:0")
	old := x.granted("b", x.enqueue("b", patient), 0, claimWindow) // and stalls
	x.s.Cmd(t, "DEL", "k")                                         // expired
	c := x.granted("c", x.enqueue("c", patient), 0, 10*time.Second)
	x.waits("b", x.enqueue("b", patient), 0) // a late heartbeat
	x.release("c", "0:0:"+fmt.Sprint(c))
	x.held("b")
	x.is("the late extension", x.extend("b", old), int64(0))
	if token := x.granted("b", x.claim("b", "10000"), 0, 10*time.Second); token <= c {
		t.Errorf("the old push gives token %d, c had %d", token, c)
	}
	x.is("release with the old token", x.release("b", "0:0:"+fmt.Sprint(old)), int64(3))
}

func TestScheduleLateHeartbeatLeavesNoGhost(t *testing.T) {
	x := newLine(t)
	x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
	x.is("release", x.release("a", "10000:0:0"), int64(1))
	x.is("a late copy", x.enqueue("a", patient), []drivers.Reply{int64(-1)})
	x.is("a late claim", x.claim("a", "10000"), []drivers.Reply{int64(0)})
	x.held("")

	x.is("leave before enqueue", x.leave("b"), int64(0))
	x.is("a late copy", x.enqueue("b", patient), []drivers.Reply{int64(-1)})
	x.held("")
	x.enqueue("c", patient)
	x.enqueue("d", patient)
	x.leave("d")
	x.is("a late heartbeat", x.enqueue("d", patient), []drivers.Reply{int64(-1)})
	x.is("of one that does not wait", x.enqueue("d", "10000:0:0:"), []drivers.Reply{int64(-1)})
	x.waiting()
	x.release("c", "0:0:0")
	x.held("")

	// One whose tombstone is over is granted the lock, and gives it back when it hears of that.
	x.s.Cmd(t, "DEL", x.k.gone+"d")
	x.enqueue("e", patient)
	x.enqueue("d", patient)
	x.enqueue("f", patient)
	x.release("e", "0:0:0")
	x.held("d")
	x.is("leave", x.leave("d"), int64(1))
	x.held("f")
}

// One without a channel keeps its place among those that have one.
func TestScheduleWithoutChannel(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "C's", "new")
	x.enqueue("a", patient)
	x.enqueue("b", patient)
	ticket := x.waits("c", x.enqueue("c", patient+"C's"), 1)
	x.release("a", "0:0:0")
	e.hears()
	x.granted("b", x.enqueue("b", patient), 0, claimWindow) // finds itself granted
	// One that has a new connection, and has lost its place meanwhile, goes back to it.
	x.enqueue("d", patient)
	x.s.Cmd(t, "ZREM", x.k.queue(), "c")
	x.waits("c", x.enqueue("c", "10000:6000:"+fmt.Sprint(ticket)+":new"), 0)
	x.waiting("c", "d")
	x.release("b", "0:0:0")
	e.hears("new c")
}

// A releaser that may not publish releases, and serves the next, who will ask.
func TestSchedulePublishRefused(t *testing.T) {
	x := newLine(t)
	x.s.Cmd(t, "ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
	pool := &redis.Pool{MaxIdle: 1, Dial: func() (redis.Conn, error) {
		return redis.Dial("tcp", x.s.Addr(), redis.DialUsername("mute"), redis.DialPassword("pw"))
	}}
	mute := x
	mute.n = New(redigo.New(pool), Options{Name: "mute", Timeout: timeout})
	t.Cleanup(func() {
		_ = mute.n.Close()
		_ = pool.Close()
	})
	e := listen(t, x.s, "B's", "free")
	mute.enqueue("a", patient)
	x.enqueue("b", patient+"B's")
	x.enqueue("c", patient+"B's")
	x.is("release", mute.release("a", "0:0:0"), int64(1))
	e.hears()
	x.held("b")
	x.waiting("c")
	x.granted("b", x.enqueue("b", patient+"B's"), 0, claimWindow)
	x.s.Cmd(t, "DEL", "k")
	x.waits("d", mute.enqueue("d", patient), 0)
	x.held("c")
	x.is("plain release", send(t, mute.n, releaseScript, releaseScript.command([]string{x.k.lock, x.k.gone + "c", x.k.fence},
		"c", "0:0:0:free")), int64(1))
	e.hears()
}

// Whatever is lost of a queue, somebody gets the lock; and those who come back with their tickets are in order again.
func TestScheduleEvicted(t *testing.T) {
	for name, lose := range map[string]func(x line){
		"queue":   func(x line) { x.s.Cmd(t, "DEL", x.k.queue()) },
		"waiters": func(x line) { x.s.Cmd(t, "DEL", x.k.waiters()) },
		"lock":    func(x line) { x.s.Cmd(t, "DEL", x.k.lock) },
		"counter": func(x line) { x.s.Cmd(t, "DEL", x.k.fence) },
		"all":     func(x line) { x.s.Cmd(t, "FLUSHALL") },
	} {
		x := newLine(t)
		a := x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
		tickets := map[string]int64{}
		for i, o := range []string{"b", "c", "d"} {
			tickets[o] = x.waits(o, x.enqueue(o, patient), i)
		}
		back := func(o string) []drivers.Reply {
			return x.enqueue(o, "10000:6000:"+fmt.Sprint(tickets[o])+":")
		}
		lose(x)
		if name == "lock" || name == "all" {
			// The first that asks is the one, or finds that an earlier one is.
			x.release("a", "10000:0:0")
		}
		x.release("a", "10000:0:"+fmt.Sprint(a))
		for _, o := range []string{"d", "c", "b"} {
			back(o)
		}
		var served []string
		for range 3 {
			o := x.s.Cmd(t, "GET", "k").(string)
			served = append(served, o)
			if token := x.granted(o, x.claim(o, "10000"), 0, 10*time.Second); token <= a {
				t.Errorf("%s: token %d after %d", name, token, a)
			}
			x.release(o, "10000:0:0")
		}
		x.held("")
		x.waiting()
		if name == "queue" || name == "waiters" || name == "all" {
			if strings.Join(served, "") != "dbc" { // d came first when there was no queue
				t.Errorf("%s: served %q", name, served)
			}
		} else if strings.Join(served, "") != "bcd" {
			t.Errorf("%s: served %q", name, served)
		}
	}
}

// Known waiters without a queue are forgotten with the next that comes: they would never be dropped.
func TestWaitersWithoutQueueAreForgotten(t *testing.T) {
	x := newLine(t)
	x.enqueue("a", patient)
	x.enqueue("b", patient)
	x.s.Cmd(t, "DEL", x.k.queue())
	x.enqueue("c", patient)
	x.waiting("c")
}

// A clock that was stepped back: those that come later are behind, and who has a ticket is where it was.
func TestScheduleClockSteppedBack(t *testing.T) {
	x := newLine(t)
	x.enqueue("a", patient)
	future := time.Now().Add(time.Hour).UnixMicro()
	x.enqueue("b", patient)
	x.s.Cmd(t, "ZADD", x.k.queue(), future, "b")
	if ticket := x.waits("c", x.enqueue("c", patient), 1); ticket != future+1 {
		t.Errorf("ticket %d behind %d", ticket, future)
	}
	x.waits("d", x.enqueue("d", "10000:6000:"+fmt.Sprint(future-1)+":"), 2) // a ticket from the future is none
	x.waits("e", x.enqueue("e", "10000:6000:5:"), 0)
	x.waiting("e", "b", "c", "d")
}

func TestScheduleOutOfMemory(t *testing.T) {
	x := newLine(t)
	e := listen(t, x.s, "B's", "C's")
	token := x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
	x.enqueue("b", patient+"B's")
	x.enqueue("c", patient+"C's")
	x.enqueue("d", patient)
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	refused := func(what string, k keys, o, args string) {
		t.Helper()
		r := send(t, x.n, enqueueScript, enqueueScript.command([]string{k.lock, k.fence, k.gone + o, k.queue(), k.waiters()}, o, args))
		if e, ok := r.(drivers.ServerError); !ok || e.Code() != "OOM" {
			t.Errorf("%s answers %v", what, r)
		}
	}
	refused("enqueue of a free lock", keysOf("other"), "a", patient)
	refused("enqueue", x.k, "f", patient)
	if got := x.s.Keys(t, "*other*"); len(got) != 0 {
		t.Errorf("what was refused left %q", got)
	}
	x.waiting("b", "c", "d")
	x.is("extend", x.extend("a", token), int64(1))
	x.is("leave", x.leave("d"), int64(0))
	x.is("release", x.release("a", "10000:0:"+fmt.Sprint(token)), int64(1))
	e.hears("B's b")
	b := x.granted("b", x.enqueue("b", patient+"B's"), 0, claimWindow)
	x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second)
	x.is("release", x.release("b", "10000:0:"+fmt.Sprint(b)), int64(1))
	e.hears("C's c")
	x.held("c")
	x.is("release with rest", x.release("c", "10000:5000:0"), int64(1))
	x.held("hold:c")
	x.is("release, again", x.release("c", "10000:5000:0"), int64(2))
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	x.is("a late copy", x.enqueue("d", patient), []drivers.Reply{int64(-1)}) // its tombstone could be set
	x.waiting()
}

// Programs without the queue keep exclusion, and the queue goes on after them.
func TestPlainAndQueuedExcludeEachOther(t *testing.T) {
	x := newLine(t)
	x.granted("a", x.enqueue("a", patient), 0, 10*time.Second)
	if v, err := decodeVote(send(t, x.n, acquireScript, acquireCommand("p", 1, 0))); v.Granted || err == nil {
		t.Errorf("the plain script answers %v, %v", v, err)
	}
	x.enqueue("b", patient)
	x.is("plain release", send(t, x.n, releaseScript, releaseCommand("a", true)), int64(1))
	v, err := decodeVote(send(t, x.n, acquireScript, acquireCommand("p", 1, 0)))
	if err != nil || !v.Granted {
		t.Fatal(v, err)
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
		return send(t, x.n, releaseScript, releaseScript.command([]string{x.k.lock, x.k.gone + o, x.k.fence}, o, args))
	}
	token := acquire(t, x.n, "a", 10*time.Second)
	x.is("another's release", release("b", "0:0:0:free:k"), int64(0))
	e.hears()
	x.is("release", release("a", "10000:0:"+decimal(token)+":free:k"), int64(1))
	e.hears("free:k free")
	x.is("release, again", release("a", "10000:0:0:free:k"), int64(2))
	e.hears()
	acquire(t, x.n, "b", 10*time.Second)
	x.is("release after a newer token", release("b", "0:0:"+decimal(token)+":free:k"), int64(3))
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

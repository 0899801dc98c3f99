package script_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// permits is one group on a real server.
type permits struct{ queue }

func newPermits(t testing.TB) permits {
	x := permits{newQueue(t)}
	x.k = script.KeysOf("lock:", "{k}#permits")
	return x
}

// as is an attempt of o to have weight of n permits.
func (x permits) as(o string, n, weight int) script.Attempt {
	return script.Attempt{
		Keys: x.k, Token: o, Node: 1, Label: "of " + o, Wants: &script.Wants{N: n, Weight: weight},
	}
}

func (x permits) position(cmd script.Command) script.Position {
	x.t.Helper()
	*x.asked = time.Now()
	p, err := script.ReadPosition(sendCommand(x.t, x.n, cmd))
	if err != nil {
		x.t.Fatal(err)
	}
	return p
}

const permitsTTL = 10 * time.Second

// asks is a request of o, which waits.
func (x permits) asks(o string, n, weight int) script.Position {
	x.t.Helper()
	return x.position(x.as(o, n, weight).Enqueue(permitsTTL, script.MaxPositionTTL, 0, ""))
}

func (x permits) tries(o string, n, weight int) script.Position {
	x.t.Helper()
	return x.position(x.as(o, n, weight).Enqueue(permitsTTL, 0, 0, ""))
}

func (x permits) claims(o string) script.Position {
	x.t.Helper()
	return x.position(x.as(o, 1, 1).Claim(permitsTTL))
}

func (x permits) releases(r script.Release) drivers.Reply {
	x.t.Helper()
	r.Notify = script.NotifyQueue
	return sendCommand(x.t, x.n, r.Command())
}

func (x permits) returns(o string, c uint64) drivers.Reply {
	x.t.Helper()
	return x.releases(script.Release{Attempt: x.as(o, 1, 1), Certify: c})
}

func (x permits) leaves(o string) drivers.Reply {
	x.t.Helper()
	return x.releases(script.Release{Attempt: x.as(o, 1, 1), Tombstone: time.Minute})
}

// has checks that o was granted these numbers for its whole TTL, and returns its counter.
func (x permits) has(o string, p script.Position, want ...int) uint64 {
	x.t.Helper()
	if p.Status != script.Granted || !p.Whole || !slices.Equal(p.Permits, want) {
		x.t.Fatalf("%s got %+v, want the permits %v", o, p, want)
	}
	x.entry(o, permitsTTL)
	return p.Counter
}

// given checks that o finds that it was granted these numbers by somebody else, and returns its counter.
func (x permits) given(o string, want ...int) uint64 {
	x.t.Helper()
	if left := time.Until(time.UnixMicro(int64(x.score(o)))); left > script.ClaimWindow+50*time.Millisecond {
		x.t.Errorf("%s has %v to claim its permits", o, left)
	}
	p := x.asks(o, 1, 1)
	if p.Status != script.Granted || p.Whole || p.Left > script.ClaimWindow || !slices.Equal(p.Permits, want) {
		x.t.Fatalf("%s got %+v, want the permits %v", o, p, want)
	}
	return p.Counter
}

// waits checks that o waits behind that many others at least.
func (x permits) waits(o string, p script.Position, rank int) {
	x.t.Helper()
	if p.Status != script.Waiting || p.Rank != rank {
		x.t.Fatalf("%s got %+v, want the rank %d", o, p, rank)
	}
}

// entry checks that the entry of o ends in d, and that the keys outlive it.
func (x permits) entry(o string, d time.Duration) {
	x.t.Helper()
	const clocks = 50 * time.Millisecond
	end := time.UnixMicro(int64(x.score(o)))
	if left := time.Until(end); left > d+clocks || left < d-time.Since(*x.asked)-clocks {
		x.t.Errorf("the entry of %s ends in %v, want %v", o, left, d)
	}
	for _, key := range []string{x.k.Lock, x.k.Entries()} {
		if life := x.s.PTTL(x.t, key); life < time.Until(end) {
			x.t.Errorf("%s expires in %v, before the entry of %s", key, life, o)
		}
	}
}

func (x permits) score(o string) (us float64) {
	x.t.Helper()
	text, _ := x.s.Cmd(x.t, "ZSCORE", x.k.Lock, o).(string)
	if _, err := fmt.Sscan(text, &us); err != nil {
		x.t.Fatalf("%s has no entry: %v", o, err)
	}
	return us
}

// ends makes the time of an entry be over.
func (x permits) ends(o string) {
	x.t.Helper()
	x.s.Cmd(x.t, "ZADD", x.k.Lock, "XX", 1, o)
}

// empty checks that nothing is left of the group but tombstones and the counter.
func (x permits) empty() {
	x.t.Helper()
	for _, key := range x.s.Keys(x.t, "*") {
		if key != x.k.Fence() && key != x.k.Wait() {
			x.t.Errorf("%s is left", key)
		}
	}
}

// taken checks which numbers are taken: "101" is 0 and 2.
func (x permits) taken(want string) {
	x.t.Helper()
	state, _ := x.s.Cmd(x.t, "HGET", x.k.Entries(), "").(string)
	if _, got, _ := strings.Cut(strings.ReplaceAll(state, "-", "+"), "+"); strings.TrimRight(got, "0") != want {
		x.t.Errorf("taken is %q, want %q", got, want)
	}
}

// Permits are numbered, the lowest free ones first. Each owner has one counter, one end, and one entry, also if its
// request is delivered twice.
func TestGroupNumbersItsPermits(t *testing.T) {
	x := newPermits(t)
	a := x.has("a", x.asks("a", 5, 1), 0)
	b := x.has("b", x.asks("b", 5, 2), 1, 2)
	c := x.has("c", x.tries("c", 5, 1), 3)
	if a >= b || b >= c {
		t.Errorf("counters %d, %d, %d", a, b, c)
	}
	if again := x.asks("b", 5, 2); again.Whole || again.Counter != b || !slices.Equal(again.Permits, []int{1, 2}) {
		t.Errorf("the second delivery is granted %+v", again)
	}
	x.is("b returns", x.returns("b", b), int64(1))
	x.taken("1001")
	x.has("d", x.asks("d", 5, 3), 1, 2, 4)
	x.taken("11111")
	x.is("a returns", x.returns("a", a), int64(1))
	x.is("a returns again", x.returns("a", a), int64(0))
	x.is("c returns", x.returns("c", c), int64(1))
	x.is("d returns", x.returns("d", 0), int64(1))
	x.empty()
}

// Callers may disagree about how many permits there are. None has a number that is not below its own.
func TestGroupOfDifferentLimits(t *testing.T) {
	x := newPermits(t)
	x.has("a", x.asks("a", 10, 10), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	x.waits("b", x.tries("b", 3, 1), -1)
	x.returns("a", 0)
	x.has("c", x.asks("c", 10, 2), 0, 1)
	x.waits("d", x.tries("d", 3, 2), -1)
	x.has("e", x.asks("e", 3, 1), 2)
	x.waits("f", x.tries("f", 3, 1), -1)
	x.has("g", x.asks("g", 10, 7), 3, 4, 5, 6, 7, 8, 9)
	x.s.Cmd(t, "ZADD", x.k.Lock, "XX", x.score("c")-5e6, "g") // the first to end, and not in the way of f
	if f := x.asks("f", 3, 1); f.Label != "of c" || f.Left < permitsTTL/2+time.Second {
		t.Errorf("f waits for %+v", f)
	}
	for o, want := range map[string]int{"c": 1, "e": 1, "g": 0} {
		s, err := script.ReadState(sendCommand(t, x.n, x.k.InspectGroup(o, 1)))
		if err != nil || s.Waiting != want {
			t.Errorf("%d wait for %s, and %v, want %d", s.Waiting, o, err, want)
		}
	}
}

// What is returned goes to the first that waits once it can have all that it wants, and to those behind it, up to the
// first that cannot. Newcomers overtake nobody.
func TestGroupHandsOnInOrder(t *testing.T) {
	x := newPermits(t)
	e := listen(t, x.s, "B's")
	a := x.has("a", x.asks("a", 4, 3), 0, 1, 2)
	x.waits("b", x.position(x.as("b", 4, 2).Enqueue(permitsTTL, script.MaxPositionTTL, 0, "B's")), 0)
	x.waits("c", x.asks("c", 4, 1), 1) // one is free, but b comes before
	if try := x.tries("d", 4, 1); try.Status != script.Waiting || !try.Behind || try.Label != "of b" {
		t.Errorf("TryLock behind b got %+v", try)
	}
	x.waits("e", x.asks("e", 4, 4), 2)
	x.waits("f", x.asks("f", 4, 1), 3)
	e.hears("B's ") // c has looked whether b is alive
	x.is("a returns", x.returns("a", a), int64(1|waited))
	e.hears("B's b")
	x.waiting("e", "f") // one is free, but e comes before f
	b := x.given("b", 0, 1)
	c := x.given("c", 2)
	if a >= b || b >= c {
		t.Errorf("counters %d, %d, %d", a, b, c)
	}
	if p := x.claims("b"); p.Status != script.Granted || p.Counter != b || !slices.Equal(p.Permits, []int{0, 1}) {
		t.Errorf("the claim of b got %+v", p)
	}
	x.entry("b", permitsTTL)
	x.is("b returns", x.returns("b", b), int64(1))
	x.waiting("e", "f")
	x.is("c returns", x.returns("c", c), int64(1|waited))
	x.waiting("f")
	x.given("e", 0, 1, 2, 3)
	x.is("e returns", x.returns("e", 0), int64(1|waited))
	x.given("f", 0)
	x.is("f returns", x.returns("f", 0), int64(1))
	x.empty()
}

// A permit is free from the moment at which the time of its holder is over, for whoever looks next. The holder can
// neither extend it nor return it then, and a late claim gets nothing.
func TestPermitsEndByTheServersClock(t *testing.T) {
	x := newPermits(t)
	a := x.has("a", x.asks("a", 3, 2), 0, 1)
	b := x.has("b", x.asks("b", 3, 1), 2)
	x.ends("a")
	x.is("a extends", sendCommand(t, x.n, x.as("a", 3, 2).Extend(permitsTTL, a)), int64(0))
	x.is("a is verified", sendCommand(t, x.n, x.as("a", 3, 2).Verify(a)), int64(0))
	x.waits("a claims", x.claims("a"), 0)
	x.has("c", x.tries("c", 3, 1), 0)
	x.waits("d", x.asks("d", 3, 2), 0) // 1 is free
	x.is("a returns", x.returns("a", a), int64(0))
	x.ends("b")
	if d := x.asks("d", 3, 2); !slices.Equal(d.Permits, []int{1, 2}) {
		t.Errorf("d got %+v", d)
	}
	x.is("b returns", x.returns("b", b), int64(0))
	x.waits("e", x.asks("e", 3, 1), 0)
	x.ends("c")
	x.waits("f", x.tries("f", 3, 1), -1) // 0 is free, but e comes before
	x.given("e", 0)
	x.ends("d")
	x.ends("e")
	x.has("g", x.asks("g", 3, 3), 0, 1, 2)
	x.returns("g", 0)
	x.empty()
}

// A waiter that claims too late has nothing, whether others have its permits or not. It returns to its place.
func TestLateClaimOfPermits(t *testing.T) {
	x := newPermits(t)
	x.asks("a", 1, 1)
	ticket := x.asks("b", 1, 1).Ticket
	x.asks("c", 1, 1)
	x.returns("a", 0)
	x.given("b", 0)
	x.ends("b")
	x.waits("b", x.claims("b"), 0)
	x.has("c", x.asks("c", 1, 1), 0)
	x.waits("b", x.claims("b"), 0)
	again := x.position(x.as("b", 1, 1).Enqueue(permitsTTL, script.MaxPositionTTL, ticket, ""))
	if again.Status != script.Waiting || again.Ticket != ticket {
		t.Errorf("b returns to its place: %+v", again)
	}
}

// An extension never shortens, and it is for one lease only. It says whether somebody may wait.
func TestPermitsAreExtended(t *testing.T) {
	x := newPermits(t)
	a := x.has("a", x.asks("a", 2, 2), 0, 1)
	extends := func(ttl time.Duration, c uint64) drivers.Reply {
		*x.asked = time.Now()
		return sendCommand(t, x.n, x.as("a", 2, 2).Extend(ttl, c))
	}
	x.is("extend", extends(time.Hour, a), int64(1))
	x.entry("a", time.Hour)
	x.is("extend by less", extends(time.Minute, a), int64(1))
	x.entry("a", time.Hour)
	x.is("extend with another counter", extends(time.Minute, a-1), int64(3))
	x.is("verify", sendCommand(t, x.n, x.as("a", 2, 2).Verify(a)), int64(1))
	x.is("verify another counter", sendCommand(t, x.n, x.as("a", 2, 2).Verify(a-1)), int64(3))
	x.entry("a", time.Hour)
	x.is("another extends", sendCommand(t, x.n, x.as("b", 2, 2).Extend(time.Hour, a)), int64(0))
	x.asks("b", 2, 1)
	x.is("extend while b waits", extends(time.Minute, a), int64(17))
	x.leaves("b")
	x.is("return", x.returns("a", a-1), int64(3))
	x.empty()
	x.is("extend what was returned", extends(time.Minute, a), int64(0))
	x.empty()
}

// Permits that were held too briefly stay taken for a while, by nobody.
func TestPermitsThatAreKept(t *testing.T) {
	x := newPermits(t)
	a := x.has("a", x.asks("a", 2, 1), 0)
	x.has("b", x.asks("b", 2, 1), 1)
	x.waits("c", x.asks("c", 2, 1), 0)
	r := script.Release{Attempt: x.as("a", 2, 1), Certify: a, Keep: time.Minute, Tombstone: time.Minute}
	x.is("a returns", x.releases(r), int64(1))
	x.entry("hold:a", time.Minute)
	x.is("a returns again", x.releases(r), int64(2))
	x.is("a extends", sendCommand(t, x.n, x.as("a", 2, 1).Extend(time.Hour, a)), int64(0))
	x.waiting("c")
	x.s.Cmd(t, "HDEL", x.k.Wait(), "!a")
	x.leaves("c")
	x.returns("b", 0)
	x.has("a", x.asks("a", 2, 1), 1) // its request comes once more
	x.is("a returns that", x.releases(script.Release{Attempt: x.as("a", 2, 1), Keep: time.Minute}), int64(1))
	x.taken("1")
	x.has("b", x.asks("b", 2, 1), 1)
	x.s.Cmd(t, "HDEL", x.k.Wait(), "!c")
	x.waits("c", x.asks("c", 2, 1), 0)
	x.ends("hold:a")
	x.asks("c", 2, 1)
	if p := x.claims("c"); !slices.Equal(p.Permits, []int{0}) {
		t.Errorf("c has %+v", p)
	}
}

// What was released before it was executed takes nothing later, and a release that is repeated says what the first one
// has said.
func TestTombstonesOfPermits(t *testing.T) {
	x := newPermits(t)
	x.is("a leaves", x.leaves("a"), int64(0))
	if p := x.asks("a", 1, 1); p.Status != script.GivenUp {
		t.Errorf("a got %+v", p)
	}
	x.asks("b", 1, 1)
	if p := x.asks("a", 1, 1); p.Status != script.GivenUp {
		t.Errorf("a got %+v", p)
	}
	x.waits("c", x.asks("c", 1, 1), 0)
	x.is("b leaves", x.leaves("b"), int64(1|waited))
	x.is("b leaves again", x.leaves("b"), int64(2))
	x.is("c leaves", x.leaves("c"), int64(1))
	x.is("c leaves again", x.leaves("c"), int64(2))
	x.empty()
}

// Who leaves the queue makes room for those behind it.
func TestWaiterForPermitsThatLeavesHandsOn(t *testing.T) {
	x := newPermits(t)
	x.asks("a", 2, 1)
	x.waits("b", x.asks("b", 2, 2), 0)
	x.waits("c", x.asks("c", 2, 1), 1)
	x.is("b leaves", x.leaves("b"), int64(0|waited))
	x.given("c", 1)
}

// Waiters that have died are passed over: those whose time is over, and those that nobody hears. The first of them that
// wants more than is free is passed by the waiter behind it, once nobody listens on its channel.
func TestDeadWaitersForPermits(t *testing.T) {
	x := newPermits(t)
	e := listen(t, x.s, "D's")
	queues := func(o string, weight int, lease time.Duration, channel string) script.Position {
		return x.position(x.as(o, 3, weight).Enqueue(permitsTTL, lease, 0, channel))
	}
	x.has("a", x.asks("a", 3, 3), 0, 1, 2)
	queues("late", 3, time.Millisecond, "")
	queues("deaf", 1, script.MaxPositionTTL, "nobody listens")
	queues("d", 1, script.MaxPositionTTL, "D's")
	x.passes(10 * time.Millisecond)
	x.is("a returns", x.returns("a", 0), int64(1|waited))
	e.hears("D's d")
	x.waiting()
	x.given("d", 0)

	x.waits("deaf", queues("deaf", 3, script.MaxPositionTTL, "nobody listens"), 0)
	x.has("third", queues("third", 1, script.MaxPositionTTL, ""), 1)
	x.waiting()
	x.taken("11")

	x.waits("listens", queues("listens", 3, script.MaxPositionTTL, "D's"), 0)
	x.waits("g", queues("g", 1, script.MaxPositionTTL, ""), 1)
	x.waits("g", queues("g", 1, script.MaxPositionTTL, ""), 1)
	x.waiting("listens", "g")
}

// One call hands on to 64 waiters at most, and says that there may be more.
func TestManyWaitersForPermitsTakeSeveralCalls(t *testing.T) {
	inTime(t, script.ClaimWindow, manyWaiters)
}

func manyWaiters(t testing.TB) {
	x := newPermits(t)
	const n = 100
	x.asks("a", n, n)
	for i := range n {
		x.asks(fmt.Sprint("w", i), n, 1)
	}
	x.is("a returns", x.returns("a", 0), int64(1|again))
	x.taken(strings.Repeat("1", 64))
	x.is("once more", x.returns("a", 0), int64(0|waited))
	x.taken(strings.Repeat("1", n))
	x.waiting()
	for i := range n {
		x.given(fmt.Sprint("w", i), i)
	}
}

// Permits that end at the same time are free at once. One call makes 64 of them free, and says that there are more if
// that is too few, also if it returns some. Whoever calls has nothing any more after its time.
func TestManyPermitsEndAtOnce(t *testing.T) { inTime(t, script.ClaimWindow, manyEnds) }

func manyEnds(t testing.TB) {
	x := newPermits(t)
	const n = 300
	for i := range n {
		x.asks(fmt.Sprint(i), n, 1)
	}
	x.waits("w", x.asks("w", n, n), 0)
	for i := range n {
		x.ends(fmt.Sprint(i))
	}
	x.is("0 returns too late", x.returns("0", 0), int64(0|again))
	x.is("and again", x.returns("0", 0), int64(0|again))
	if p := x.asks("299", n, 1); p.Status != script.Waiting || !p.More {
		t.Errorf("299, whose time is over, got %+v", p)
	}
	if left := x.s.Cmd(t, "HLEN", x.k.Entries()); left != int64(n-3*64-1+1) { // and the state
		t.Errorf("%v entries are left of %d, after three calls and that of the owner of one", left, n)
	}
	x.is("and again", x.returns("0", 0), int64(0|again))
	x.is("and once more", x.returns("0", 0), int64(0|waited))
	x.given("w", numbersBelow(n)...)
	x.waiting("299")
	x.ends("w")
	x.leaves("299")
	x.leaves("w")
	for i := range n {
		x.s.Cmd(t, "HDEL", x.k.Wait(), fmt.Sprint("!", i))
		x.asks(fmt.Sprint(i), n, 1)
	}
	for i := range n {
		x.ends(fmt.Sprint(i))
	}
	x.has("one", x.tries("one", n, 1), 0)
	for range 3 {
		if p := x.tries("the others", n, n-1); p.Status != script.Waiting || !p.More {
			t.Errorf("the others got %+v", p)
		}
	}
	x.has("the others", x.tries("the others", n, n-1), numbersBelow(n)[1:]...)
}

func numbersBelow(n int) (numbers []int) {
	for i := range n {
		numbers = append(numbers, i)
	}
	return numbers
}

// A key that is not that of a group stays as it is.
func TestGroupLeavesWhatIsNotOneAlone(t *testing.T) {
	x := newPermits(t)
	for name, set := range map[string][]any{
		"hash": {"HSET", x.k.Lock, "f", "v"}, "string": {"SET", x.k.Lock, "v"}, "sorted set": {"ZADD", x.k.Lock, 1, "v"},
	} {
		x.s.Cmd(t, "FLUSHALL")
		x.s.Cmd(t, set...)
		before := fmt.Sprintf("%q", x.s.Cmd(t, "DUMP", x.k.Lock))
		for _, p := range []script.Position{x.asks("a", 2, 1), x.tries("a", 2, 1)} {
			if p.Status != script.NotALock {
				t.Errorf("%s: %+v", name, p)
			}
		}
		x.is(name+": extend", sendCommand(t, x.n, x.as("a", 2, 1).Extend(permitsTTL, 1)), int64(0))
		x.is(name+": leave", x.leaves("a"), int64(0))
		x.is(name+": inspect", sendCommand(t, x.n, x.k.InspectGroup("", 2)).([]drivers.Reply)[0], int64(2))
		if after := fmt.Sprintf("%q", x.s.Cmd(t, "DUMP", x.k.Lock)); after != before {
			t.Errorf("%s was changed", name)
		}
	}
}

// Half of a group is none: the server may evict either key.
func TestHalfOfAGroupIsLost(t *testing.T) {
	x := newPermits(t)
	for _, lost := range []string{x.k.Lock, x.k.Entries()} {
		a := x.has("a", x.asks("a", 2, 2), 0, 1)
		x.s.Cmd(t, "DEL", lost)
		x.is("a extends", sendCommand(t, x.n, x.as("a", 2, 2).Extend(permitsTTL, a)), int64(0))
		x.has("b", x.asks("b", 2, 2), 0, 1)
		x.is("a returns", x.returns("a", a), int64(0))
		x.is("b returns", x.returns("b", 0), int64(1))
		x.empty()
	}
}

// A program that makes a lock of each permit must not be beside one that does not.
func TestGroupSeesLocksOfPermits(t *testing.T) {
	x := newPermits(t)
	for _, name := range []string{"lock:{k}#gate", "lock:{k}#0"} {
		x.s.Cmd(t, "SET", name, "0000000000000001|a|1|label", "PX", 10000)
		if p := x.asks("a", 2, 1); p.Status != script.Apart {
			t.Errorf("%s: %+v", name, p)
		}
		x.s.Cmd(t, "DEL", name)
	}
	x.has("a", x.asks("a", 2, 1), 0)
}

// A server that is out of memory refuses new entries as a whole. It extends, and hands on.
func TestGroupWithoutMemory(t *testing.T) {
	x := newPermits(t)
	a := x.has("a", x.asks("a", 3, 2), 0, 1)
	x.waits("b", x.asks("b", 3, 2), 0)
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	for _, wait := range []time.Duration{0, script.MaxPositionTTL} {
		reply := sendCommand(t, x.n, x.as("c", 3, 1).Enqueue(permitsTTL, wait, 0, ""))
		if wait > 0 && !isRefusal(reply, "OOM") {
			t.Errorf("c got %v", reply)
		}
	}
	x.is("extend", sendCommand(t, x.n, x.as("a", 3, 2).Extend(time.Hour, a)), int64(17))
	x.is("return", x.returns("a", a), int64(1|waited))
	x.given("b", 0, 1)
	x.claims("b")
	x.entry("b", permitsTTL)
	if reply := sendCommand(t, x.n, x.as("c", 3, 1).Enqueue(permitsTTL, 0, 0, "")); !isRefusal(reply, "OOM") {
		t.Errorf("c got %v", reply)
	}
	x.taken("11")
}

// An operator sees the entry that ends first, or that of an owner, and can take it.
func TestGroupIsInspectedAndForced(t *testing.T) {
	x := newPermits(t)
	inspect := func(owner string) script.State {
		t.Helper()
		s, err := script.ReadState(sendCommand(t, x.n, x.k.InspectGroup(owner, 100)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := inspect(""); s.Status != script.Gone {
		t.Errorf("a free group is %+v", s)
	}
	a := x.has("a", x.asks("a", 3, 1), 0)
	x.has("b", x.asks("b", 3, 2), 1, 2)
	x.waits("c", x.asks("c", 3, 2), 0)
	value := script.CounterText(a) + "|a|1|of a"
	if s := inspect(""); len(s.Entries) != 2 || !slices.Equal(s.Entries[1].Permits, []int{1, 2}) ||
		!slices.Equal(s.Permits, []int{0}) {
		t.Errorf("the entries are %+v", s)
	}
	if s := inspect(""); s.Value != value || s.Counter != a || s.Waiting != 1 || s.Left > permitsTTL || s.Left <= 0 {
		t.Errorf("the group is %+v", s)
	}
	b := inspect("b")
	if v, _ := script.ReadValue(b.Value); v.Token != "b" || v.Label != "of b" {
		t.Errorf("the entry of b is %+v", b)
	}
	force := func(value string) drivers.Reply {
		return sendCommand(t, x.n, x.k.ForceEntry(value, time.Minute, nil))
	}
	x.is("force another", force("0000000000000001|z|1|"), int64(0))
	x.is("force", force(b.Value), int64(1))
	x.is("force again", force(b.Value), int64(2))
	x.given("c", 1, 2)
	x.is("b returns", x.returns("b", 0), int64(4))
	if p := x.asks("b", 3, 1); p.Status != script.GivenUp {
		t.Errorf("b got %+v", p)
	}
	x.releases(script.Release{Attempt: x.as("a", 1, 1), Keep: time.Hour})
	if s := inspect("a"); s.Value != "hold:a" {
		t.Errorf("what is kept is %+v", s)
	}
	x.is("force what is kept", force("hold:a"), int64(1))
}

// A server that rests grants nothing and hands nothing on, and lets nobody claim what it has granted before.
func TestGroupRests(t *testing.T) {
	x := newPermits(t)
	guard := script.NewGuard("lock:", permitsTTL, func() bool { return false })
	as := func(o string, weight int) script.Attempt {
		a := x.as(o, 2, weight)
		a.Guard = guard
		return a
	}
	queues := func(o string, weight int) script.Position {
		return x.position(as(o, weight).Enqueue(permitsTTL, script.MaxPositionTTL, 0, ""))
	}
	rests := func(what string, p script.Position) {
		t.Helper()
		if p.Status != script.Resting || p.Left <= permitsTTL {
			t.Errorf("%s: %+v", what, p)
		}
	}
	trust := func() { x.is("trust", sendCommand(t, x.n, guard.Trust(0)), int64(0)) }
	again := func() { x.s.Cmd(t, "DEL", guard.Touch().Words[3]) }
	rests("a new server", queues("a", 1))
	trust()
	x.has("a", queues("a", 2), 0, 1)
	x.waits("b", queues("b", 1), 0)
	again()
	release := script.Release{Attempt: as("a", 2)}
	x.is("a returns", x.releases(release), int64(1))
	x.waiting("b")
	rests("b, for which there is room", queues("b", 1))
	rests("TryLock", x.position(as("c", 1).Enqueue(permitsTTL, 0, 0, "")))
	trust()
	x.has("b", queues("b", 1), 0)
	x.waits("d", queues("d", 2), 0)
	release.Attempt = as("b", 1)
	x.is("b returns", x.releases(release), int64(1|waited))
	again()
	rests("d claims", x.position(as("d", 1).Claim(permitsTTL)))
	rests("d asks", queues("d", 1))
	trust()
	if p := x.position(as("d", 1).Claim(permitsTTL)); !slices.Equal(p.Permits, []int{0, 1}) {
		t.Errorf("d got %+v", p)
	}
}

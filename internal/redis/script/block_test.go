package script_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
)

const ahead = 8_000_000_000_000_000 // past the clock, so that counters grow by what is drawn, and by nothing else

// blockArgs are usualArgs with n tokens.
func blockArgs(n int) string { return fmt.Sprintf("10000:6000:0:%d:", n) }

// claims sends a claim of n tokens.
func (x queue) claims(o string, n int) drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	a := script.Attempt{Keys: x.k, Token: o, Node: 1, Fences: n}
	return send(x.t, x.n, claimScript, a.Claim(10*time.Second).Words)
}

// claimed is the reply to a claim of n tokens that were all granted, from c on.
func claimed(c int64, n ...int64) []drivers.Reply {
	r := []drivers.Reply{int64(1), c, int64(10000)}
	for _, n := range n {
		r = append(r, n)
	}
	return r
}

func (x queue) setCounter(c int64) {
	x.t.Helper()
	x.s.Cmd(x.t, "SET", x.k.Fence(), script.CounterText(uint64(c)))
}

func (x queue) counterIs(want int64) {
	x.t.Helper()
	x.is("the counter", x.s.Cmd(x.t, "GET", x.k.Fence()), script.CounterText(uint64(want)))
}

// A grant to the caller has the tokens from its counter to that of the slot. Without a block, the counter grows by one.
func TestBlockOfADirectGrant(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	last := int64(ahead)
	for i, n := range []int{1, 128, 1, 2, 1, 1, 128} {
		o := fmt.Sprint("o", i)
		token := x.granted(o, x.enqueue(o, blockArgs(n)), 10*time.Second, 10*time.Second)
		if token != last+1 {
			t.Errorf("token %d after %d", token, last)
		}
		last = token + int64(n) - 1
		x.counterIs(last)
		if again := x.granted(o, x.enqueue(o, blockArgs(n)), 0, 10*time.Second); again != token {
			t.Errorf("delivered again: token %d, then %d", token, again)
		}
		x.counterIs(last)
		x.is("release", x.release(o, "0:0:"+fmt.Sprint(token)), int64(1))
	}
	x.s.Cmd(t, "DEL", x.k.Fence())
	if token := x.granted("p", x.enqueue("p", blockArgs(128)), 0, 10*time.Second); token > time.Now().UnixMicro() {
		t.Errorf("the first token of a block is %d, ahead of the clock", token)
	}
}

// A waiter that finds the lock free is granted its block by its own request. Others are granted one token.
func TestBlockOfAHandOver(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	x.waits("b", x.enqueue("b", blockArgs(128)), 0)
	x.waits("c", x.enqueue("c", blockArgs(128)), 1)
	x.waits("d", x.enqueue("d", blockArgs(128)), 1)
	x.s.Cmd(t, "DEL", "k") // expired
	if b := x.granted("b", x.enqueue("b", blockArgs(128)), 10*time.Second, 10*time.Second); b != ahead+2 {
		t.Errorf("b has the token %d", b)
	}
	x.counterIs(ahead + 129)
	x.is("release", x.release("b", "0:0:"+fmt.Sprint(ahead+2)), int64(1|waited))
	x.held("c")
	x.counterIs(ahead + 130)
	x.s.Cmd(t, "DEL", "k")
	x.waits("try", x.enqueue("try", "10000:0:0:128:"), -1)
	x.held("d") // by a request that wants a block for its sender
	x.counterIs(ahead + 131)
}

// acquires and raises send the commands of an attempt that asks several nodes for n tokens.
func (x queue) acquires(o string, n int) drivers.Reply {
	x.t.Helper()
	a := script.Attempt{Keys: x.k, Token: o, Node: 1, Fences: n, Contended: true}
	return send(x.t, x.n, acquireScript, a.Acquire(10*time.Second, 65536, 0).Words)
}

func (x queue) raises(o string, token int64, n int) drivers.Reply {
	x.t.Helper()
	a := script.Attempt{Keys: x.k, Token: o, Node: 1, Fences: n}
	return send(x.t, x.n, raiseScript, a.Raise(uint64(token)).Words)
}

// A node of several grants a block as one that decides alone does.
func TestBlockOfAnAcquisition(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	last := int64(ahead)
	for i, n := range []int{1, 128, 1, 2, 1, 1, 128} {
		o := fmt.Sprint("o", i)
		for range 2 {
			x.is("acquire", x.acquires(o, n), last+1)
			x.counterIs(last + int64(n))
			if got, _ := counterOf(t, x.s, "k"); int64(got) != last+1 {
				t.Errorf("the lock has %d, want %d", got, last+1)
			}
		}
		x.is("release", x.release(o, "0:0:"+fmt.Sprint(last+1)), int64(1))
		last += int64(n)
	}
	x.s.Cmd(t, "DEL", x.k.Fence())
	if token := x.acquires("p", 128).(int64); token%65536 != 0 || token > time.Now().UnixMicro() {
		t.Errorf("the first token of a block is %d, ahead of the clock", token)
	}
}

// A slot's counter keeps up with the clock at 7,812 blocks a second, and is ahead by 128 µs for each block beyond that.
func TestBlocksThatOutrunTheClock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		node, blocks := simnode.New(), 0
		grants := func(n int, every time.Duration) (ahead int64) {
			for range n {
				blocks++
				k := script.KeysOf("", fmt.Sprintf("{k}%d", blocks))
				cmd := alone(script.Attempt{Keys: k, Token: "o", Node: 1, Fences: 128}.Acquire(time.Hour, 1, 0))
				token, ok := node.Execute(append(drivers.Command{"EVAL", cmd.Source}, cmd.Words[2:]...)).(int64)
				if !ok {
					t.Fatal("no token")
				}
				ahead = token + 127 - time.Now().UnixMicro()
				time.Sleep(every)
			}
			return ahead
		}
		if ahead := grants(1000, 128*time.Microsecond); ahead != 127 {
			t.Errorf("7,812 blocks a second: %d µs ahead", ahead)
		}
		if ahead := grants(1000, 64*time.Microsecond); ahead < 63_000 || ahead > 64_200 {
			t.Errorf("1,000 blocks at twice that rate: %d µs ahead, want some 64,000", ahead)
		}
		if ahead := grants(1000, 256*time.Microsecond); ahead != 127 {
			t.Errorf("1,000 blocks at half that rate: %d µs ahead", ahead)
		}
	})
}

// A raise moves the counter of the slot to the last token, if no other lock has passed it, and that of the lock to the
// first.
func TestBlockOfARaise(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	x.is("acquire", x.acquires("a", 128), int64(ahead+1))
	for i, tt := range []struct {
		owner                        string
		to, others, want, slot, lock int64
	}{
		{"b", 9, 0, 0, 128, 1},
		{"a", 0, 0, 0, 128, 1},
		{"a", 1, 0, 1, 128, 1},
		{"a", 2, 0, 1, 129, 2},
		{"a", 2, 0, 1, 129, 2},
		{"a", 3, 500, 1, 500, 3},
		{"a", 400, 0, 1, 527, 400},
		{"a", 399, 0, 0, 527, 400},
	} {
		if tt.others > 0 {
			x.setCounter(ahead + tt.others)
		}
		x.is(fmt.Sprint("raise ", i), x.raises(tt.owner, ahead+tt.to, 128), tt.want)
		x.counterIs(ahead + tt.slot)
		if got, _ := counterOf(t, x.s, "k"); int64(got) != ahead+tt.lock {
			t.Errorf("raise %d: the lock has %d, want %d", i, got-ahead, tt.lock)
		}
	}
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	if r := x.raises("a", ahead+401, 128); !isRefusal(r, "OOM") {
		t.Errorf("out of memory: %v", r)
	}
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	x.counterIs(ahead + 527)
	if got, _ := counterOf(t, x.s, "k"); got != ahead+400 {
		t.Errorf("out of memory: the lock has %d", got-ahead)
	}
}

func isRefusal(r drivers.Reply, code string) bool {
	e, ok := r.(drivers.ServerError)
	return ok && e.Code() == code
}

// A claim raises the counter of the slot to the last token, if no other lock has passed it.
func TestBlockOfAClaim(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	hand := func(o string) int64 {
		t.Helper()
		x.enqueue("a", usualArgs)
		x.waits(o, x.enqueue(o, blockArgs(128)), 0)
		x.is("release", x.release("a", "0:0:0"), int64(1|waited))
		c, _ := counterOf(t, x.s, "k")
		return int64(c)
	}
	b := hand("b")
	x.counterIs(b)
	for range 2 {
		x.is("claim", x.claims("b", 128), claimed(b, 128))
		x.lives("k", 10*time.Second)
		x.counterIs(b + 127)
	}
	x.is("claim of one", x.claims("b", 1), claimed(b))
	x.is("claim of fewer", x.claims("b", 2), claimed(b, 2))
	x.counterIs(b + 127)
	x.is("extend", x.extend("b", b), int64(1))
	x.is("release", x.release("b", "0:0:"+fmt.Sprint(b)), int64(1))
	if c := hand("c"); c != b+129 { // after that of a
		t.Errorf("token %d after the block from %d", c, b)
	}
	c, _ := counterOf(t, x.s, "k")
	for i, tt := range []struct{ others, want int64 }{{1, 127}, {127, 127}, {128, 128}, {500, 500}} {
		x.setCounter(int64(c) + tt.others)
		x.is(fmt.Sprint("claim ", i), x.claims("c", 128), claimed(int64(c), 128))
		x.counterIs(int64(c) + tt.want)
	}
	x.release("c", "0:0:0")
	if d := hand("d"); d != int64(c)+502 {
		t.Errorf("token %d after %d", d, int64(c)+500)
	}
}

func TestClaimOfALockThatIsGoneRaisesNothing(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	none := []drivers.Reply{int64(0)}
	x.is("free", x.claims("b", 128), none)
	x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	x.is("another's", x.claims("b", 128), none)
	x.s.Cmd(t, "SET", "k", "another library's")
	x.is("another library's", x.claims("b", 128), none)
	x.counterIs(ahead + 1)
}

// If the server does not let the counter be raised, the waiter has the lock with one token.
func TestClaimWhoseCounterIsRefused(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	x.enqueue("a", usualArgs)
	x.waits("b", x.enqueue("b", blockArgs(128)), 0)
	x.release("a", "0:0:0")
	const b = ahead + 2
	one := func(what string) {
		t.Helper()
		x.s.Cmd(t, "PEXPIRE", "k", 1500)
		x.is(what, x.claims("b", 128), claimed(b, 1))
		x.lives("k", 10*time.Second)
	}
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	one("out of memory")
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	x.counterIs(b)
	x.s.Cmd(t, "ACL", "SETUSER", "default", "-set")
	one("no right to SET")
	x.s.Cmd(t, "ACL", "SETUSER", "default", "+set", "-get")
	one("no right to GET")
	x.s.Cmd(t, "ACL", "SETUSER", "default", "+get")
	x.counterIs(b)
	x.s.Cmd(t, "DEL", x.k.Fence())
	x.s.Cmd(t, "HSET", x.k.Fence(), "f", "v")
	one("another library's hash")
	x.s.Cmd(t, "DEL", x.k.Fence())
	for _, text := range []string{"", "no number", "nan", "9007199254740992", "1e30"} {
		x.s.Cmd(t, "SET", x.k.Fence(), text)
		x.is(text, x.claims("b", 128), claimed(b, 128))
		x.counterIs(b + 127)
	}
	// Tokens are below 2⁵³.
	put(t, x.s, "b", 1<<53-128)
	x.is("the last block", x.claims("b", 128), claimed(1<<53-128, 128))
	put(t, x.s, "b", 1<<53-127)
	x.is("past it", x.claims("b", 128), claimed(1<<53-127, 1))
	x.counterIs(1<<53 - 1)
}

// A server that is out of memory refuses a block as a whole.
func TestBlockIsRefusedWithTheGrant(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	for what, r := range map[string]drivers.Reply{
		"enqueue": send(t, x.n, enqueueScript, enqueueScript.Command(queueKeys(x.k), text("a"), blockArgs(128))),
		"acquire": x.acquires("a", 128),
	} {
		if !isRefusal(r, "OOM") {
			t.Errorf("%s answers %v", what, r)
		}
	}
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	x.held("")
	x.counterIs(ahead)
}

// The counter of the slot is at the last token of the block before the lock is granted, and before it is prolonged.
func TestBlocksAreWrittenFirst(t *testing.T) {
	x := newQueue(t)
	x.setCounter(ahead)
	lines := x.executes(func() {
		x.enqueue("a", blockArgs(10)) // to ahead+10
		x.waits("b", x.enqueue("b", blockArgs(10)), 0)
		x.s.Cmd(t, "DEL", "k")
		x.enqueue("b", blockArgs(10)) // to ahead+20
		x.waits("c", x.enqueue("c", blockArgs(10)), 0)
		x.release("b", "0:0:0") // ahead+21
		x.claims("c", 10)       // to ahead+30
		x.s.Cmd(t, "DEL", "k")
		x.acquires("d", 10) // to ahead+40
		x.raises("d", ahead+35, 10)
	})
	var got []string
	for _, words := range lines {
		switch {
		case len(words) < 3:
		case words[0] == "SET" && words[1] == x.k.Fence():
			got = append(got, "F "+strings.TrimPrefix(words[2], "80000000000000"))
		case words[0] == "SET" && words[1] == "k", words[0] == "PEXPIRE" && words[1] == "k",
			words[0] == "SETRANGE":
			got = append(got, words[0])
		}
	}
	want := []string{"F 10", "SET", "F 20", "SET", "F 21", "SET", "F 30", "PEXPIRE", "F 40", "SET", "F 44", "SETRANGE"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A block is asked for by a command that is sent alone. One token is asked for as ever.
func TestBlocksAreNotJoined(t *testing.T) {
	for _, guard := range []*script.Guard{nil, guardOf(guarded)} {
		a := script.Attempt{Keys: script.KeysOf("", "k"), Token: "a", Node: 1, Guard: guard}
		keys := 1
		if guard != nil {
			keys = 2
		}
		for n, usual := range map[int]bool{0: true, 1: true, 2: false, 128: false} {
			a.Fences = n
			enqueue, claim := a.Enqueue(time.Second, time.Second, 0, "c"), a.Claim(time.Second)
			acquire := a.Acquire(time.Second, 1, 0)
			if enqueue.Usual != nil != usual || acquire.Usual != nil != usual {
				t.Errorf("%d tokens: usual: %v, %v", n, enqueue.Usual != nil, acquire.Usual != nil)
			}
			if raise := a.Raise(7).Words; len(raise) == 7 != usual {
				t.Errorf("%d tokens: raised by %q", n, raise)
			}
			if got := slices.Contains(claim.Words, a.Fence()); got == usual {
				t.Errorf("%d tokens: claimed by %q", n, claim.Words)
			}
			if usual && claim.Words[2] != fmt.Sprint(keys) {
				t.Errorf("%d tokens: claimed by %q", n, claim.Words)
			}
		}
	}
}

// With a restart guard, blocks are granted and claimed in the same way, and a server that rests raises nothing.
func TestBlocksWithAGuard(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	g.age()
	position := func(cmd script.Command) script.Position {
		t.Helper()
		p, err := script.ReadPosition(sendCommand(t, g.n, cmd))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := g.attempt("k", "a"), g.attempt("k", "b")
	a.Fences, b.Fences = 128, 128
	g.s.Cmd(t, "SET", a.Fence(), script.CounterText(ahead))
	if p := position(a.Enqueue(time.Second, 0, 0, "")); p.Status != script.Granted || p.Counter != ahead+1 || !p.Whole {
		t.Errorf("%+v", p)
	}
	position(b.Enqueue(time.Second, script.MaxPositionTTL, 0, ""))
	sendCommand(t, g.n, script.Release{Attempt: a, Certify: ahead + 1, Notify: script.NotifyQueue}.Command())
	claim := b.Claim(time.Second)
	if p := position(claim); p.Status != script.Granted || p.Counter != ahead+129 || p.Fences != 128 {
		t.Errorf("%+v", p)
	}
	counter := func(want uint64) {
		t.Helper()
		if got := g.s.Cmd(t, "GET", a.Fence()); got != script.CounterText(want) {
			t.Errorf("the counter is %v, want %d", got, want)
		}
	}
	counter(ahead + 256)
	g.s.Cmd(t, "SET", a.Fence(), script.CounterText(ahead+129))
	g.s.Cmd(t, "DEL", g.marker())
	if p := position(claim); p.Status != script.Resting {
		t.Errorf("%+v", p)
	}
	counter(ahead + 129)
	g.age()
	c := g.attempt("other", "c")
	c.Fences = 128
	g.s.Cmd(t, "SET", c.Fence(), script.CounterText(ahead))
	if v := acquired(t, sendCommand(t, g.n, c.Acquire(time.Second, 65536, 7))); v.Counter != ahead+1 {
		t.Errorf("%+v", v)
	}
	if got := g.s.Cmd(t, "GET", c.Fence()); got != script.CounterText(ahead+128) {
		t.Errorf("the counter is %v", got)
	}
}

package script_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

func TestTokensGrow(t *testing.T) {
	s, n := real(t)
	counter := script.KeysOf("", "k").Fence()
	var last uint64
	owners := 0
	next := func(what string) {
		t.Helper()
		owners++
		token := "t" + fmt.Sprint(owners)
		fence := acquire(t, n, token, 10*time.Second)
		if fence <= last {
			t.Errorf("%s: token %d after %d", what, fence, last)
		}
		if got := s.Cmd(t, "GET", counter); got != script.CounterText(fence) {
			t.Errorf("%s: counter %v, token %d", what, got, fence)
		}
		if got, _ := counterOf(t, s, "k"); got != fence {
			t.Errorf("%s: the lock has %v, token %d", what, got, fence)
		}
		last = fence
		if err := n.Release(t.Context(), backend.Request{Key: "k", Token: token}); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		next("one after another")
	}
	s.Cmd(t, "DEL", counter)
	next("after the counter was lost")
	s.Cmd(t, "FLUSHALL")
	next("after everything was lost")
	last += 3600e6
	s.Cmd(t, "SET", counter, last)
	next("after the clock was stepped back by an hour")
	if left := s.Cmd(t, "PTTL", counter); left != int64(-1) {
		t.Errorf("the counter expires in %v ms", left)
	}
	for _, text := range []string{
		"no number", "nan", "9007199254740991", "9007199254740992", "10000000000000000", "1e30",
	} {
		s.Cmd(t, "SET", counter, text)
		last = 0
		next("after the counter was overwritten by " + text)
		if last >= 9007199254740991 {
			t.Errorf("after %s, tokens are not exact: %d", text, last)
		}
		next("and once more")
	}
}

// Locks of one slot share a counter, and what one is granted is above what any was granted before. Locks of different
// slots do not, and those of different prefixes do not.
func TestLocksOfASlotShareACounter(t *testing.T) {
	x := newQueue(t)
	grant := func(k script.Keys, o string) int64 {
		t.Helper()
		a := script.Attempt{Keys: k, Token: o, Node: 1}
		return send(t, x.n, acquireScript, a.Acquire(10*time.Second, 1<<53, 0).Usual.Alone().Words).(int64)
	}
	slot := script.KeysOf
	for i, tt := range []struct {
		k    script.Keys
		want int64
	}{
		{slot("p:", "{x}1"), 1}, {slot("p:", "{x}2"), 2}, {slot("p:", "x}3"), 1}, {slot("p:", "{x}4"), 3},
		{slot("q:", "{x}1"), 1}, {slot("p:", "{y}1"), 1},
	} {
		if got := grant(tt.k, fmt.Sprint("o", i)); got != tt.want {
			t.Errorf("%s got the counter %d, want %d", tt.k.Lock, got, tt.want)
		}
	}
	if got := len(x.s.Keys(t, "*fence")); got != 4 {
		t.Errorf("%d counters", got)
	}
}

// Other locks of the slot raise the shared counter while a lock is held. The lock keeps its own, which is what its
// owner is told again, what an extension and a raise compare with, and what a release certifies.
func TestOtherLocksOfTheSlotDoNotChangeALocksCounter(t *testing.T) {
	x := newQueue(t)
	token := x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	elsewhere := func() string {
		x.s.Cmd(t, "SET", x.k.Fence(), script.CounterText(uint64(token)+1000))
		return script.CounterText(uint64(token) + 1000)
	}
	shared := elsewhere()
	if again := x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second); again != token {
		t.Errorf("the token is %d, and when it is asked for again %d", token, again)
	}
	if again := x.granted("a", x.claim("a", "10000"), 0, 10*time.Second); again != token {
		t.Errorf("the token is %d, and when it is claimed %d", token, again)
	}
	x.is("acquire, again", send(t, x.n, acquireScript, acquireCommand("a", 1, 0)), token)
	x.is("extend", x.extend("a", token), int64(1))
	raise := func(to int64) drivers.Reply {
		return send(t, x.n, raiseScript, raiseScript.Command(ownedKeys(x.k), text("a"), script.CounterText(uint64(to))))
	}
	x.is("raise", raise(token), int64(1))
	x.is("raise", raise(token+5), int64(1))
	x.is("extend to a greater token", x.extend("a", token+9), int64(1))
	if got, _ := counterOf(t, x.s, "k"); int64(got) != token+9 {
		t.Errorf("the lock has %d, want %d", got, token+9)
	}
	x.is("the shared counter", x.s.Cmd(t, "GET", x.k.Fence()), shared)
	x.is("release", x.release("a", "0:0:"+fmt.Sprint(token+9)), int64(1))
}

func TestCountersFollowQuantumAndHint(t *testing.T) {
	const quantum = 65536
	s, n := real(t)
	counter := func(token string, hint uint64) uint64 {
		t.Helper()
		s.Cmd(t, "DEL", "k")
		v := acquired(t, send(t, n, acquireScript, acquireCommand(token, quantum, hint)))
		if v.Status != script.Granted {
			t.Fatal(v)
		}
		return v.Counter
	}
	before := time.Now().Add(-10 * time.Millisecond).UnixMicro() // servers may look at a clock of milliseconds
	a := counter("a", 0)
	if after := time.Now().UnixMicro(); a%quantum != 0 || int64(a) <= before-quantum || int64(a) > after {
		t.Errorf("counter %d is not the clock, from %d to %d, rounded down to %d µs", a, before, after, quantum)
	}
	ahead := a + 10_000*quantum // eleven minutes, which no stall reaches
	if b := counter("b", ahead); b != ahead+1 {
		t.Errorf("with the hint %d: %d", ahead, b)
	}
	if c := counter("c", uint64(time.Now().Add(2*time.Hour).UnixMicro())); c != ahead+2 {
		t.Errorf("a hint two hours ahead was followed: %d", c)
	}
}

// There is a counter for each slot at most, however many keys are locked.
func TestThereAreNoMoreCountersThanSlots(t *testing.T) {
	names := map[string]bool{}
	for i := range 8 * script.Slots {
		names[script.KeysOf("p:", fmt.Sprint("key", i)).Fence()] = true
	}
	if len(names) > script.Slots || len(names) < script.Slots*99/100 {
		t.Errorf("%d counters", len(names))
	}
}

// Counters are raised and never lowered, also where there is none yet, and where one was overwritten from outside.
func TestCountersAreRaised(t *testing.T) {
	s, n := real(t)
	slot := script.Slot("k")
	counter := script.KeysOf("", "k").Fence()
	const ahead = 1 << 51
	raise := func(past uint64) {
		t.Helper()
		reply := send(t, n, script.RaiseCounterScript, script.RaiseCounter("", slot, past).Words)
		if err := script.ReadRaised(reply); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "0000000000000007", "no number", "nan", "9007199254740991", "1e30"} {
		s.Cmd(t, "FLUSHALL")
		if text != "" {
			s.Cmd(t, "SET", counter, text)
		}
		raise(ahead)
		raise(ahead - 1)
		if got := s.Cmd(t, "GET", counter); got != script.CounterText(ahead) {
			t.Errorf("after %q: the counter is %v", text, got)
		}
		if fence := acquire(t, n, "t", 10*time.Second); fence <= ahead {
			t.Errorf("after %q: token %d", text, fence)
		}
	}
	if left := s.Cmd(t, "PTTL", counter); left != int64(-1) {
		t.Errorf("the counter expires in %v ms", left)
	}
}

package script_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

// The twin of the scripts and the scripts answer alike, command by command. The clock's part in counters is taken out
// by a quantum beyond any time, and TTLs are either long or over, so that the two clocks do not have to agree.
func TestTwinIsLikeTheScripts(t *testing.T) {
	const never = "9007199254740991"
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s, n := real(t)
	twin := simnode.New()
	seen := map[string]int{}
	for round := range 200 {
		k := script.KeysOf(fmt.Sprintf("k%d", round))
		for step := range 25 {
			owner := string(rune('a' + rnd.IntN(3)))
			value := owner + pick(rnd, "", "|1", "|2", "|12")
			number := fmt.Sprint(rnd.IntN(8))
			var sc *script.Source
			var cmd drivers.Command
			switch rnd.IntN(7) {
			case 0, 1, 2:
				sc = acquireScript
				cmd = sc.Command([]string{k.Lock, k.Fence(), k.Tombstone(owner)}, value, "60000", never, number)
			case 3:
				sc = raiseScript
				cmd = sc.Command([]string{k.Lock, k.Fence()}, value, number)
			case 4:
				sc = extendScript
				cmd = sc.Command([]string{k.Lock, k.Fence()}, value, pick(rnd, "30000", "90000"), number)
			case 5:
				sc = releaseScript
				cmd = sc.Command([]string{k.Lock, k.Tombstone(owner), k.Fence()}, value,
					pick(rnd, "0", "60000")+":"+pick(rnd, "0", "0", "60000")+":"+pick(rnd, "0", number)+":")
			default: // somebody interferes
				switch rnd.IntN(3) {
				case 0:
					s.Cmd(t, "DEL", k.Lock)
					twin.Expire(func(key string) bool { return key == k.Lock })
				case 1:
					s.Cmd(t, "FLUSHALL")
					twin.Flush()
				}
				continue
			}
			want, got := send(t, n, sc, cmd), twin.Execute(cmd)
			if !alike(sc, want, got) {
				t.Fatalf("round %d, step %d: the server answers %v, the twin %v, to %q", round, step, want, got, cmd[2:])
			}
			seen[fmt.Sprint(names[sc], " ", code(want))]++
		}
	}
	t.Logf("replies: %v", seen)
	if len(seen) < 10 {
		t.Errorf("only %d kinds of answers were seen: %v", len(seen), seen)
	}
	for _, key := range s.Keys(t, "*:fence") {
		if left := pttl(t, s, key); left < script.CounterKeep-time.Minute {
			t.Errorf("%s expires in %v", key, left)
		}
	}
}

var names = map[*script.Source]string{
	acquireScript: "acquire", raiseScript: "raise", extendScript: "extend", releaseScript: "release",
	enqueueScript: "enqueue", claimScript: "claim", handoverScript: "handover",
	turnScript: "turn", turnReleaseScript: "turnrelease", inspectScript: "inspect", forceScript: "force",
}

// The same for those that wait, and for the messages to them. Counters are made so great that the clock has no part in
// them; tickets and what is left of a TTL are about the same.
func TestTwinHandsOverLikeTheScripts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s, n := real(t)
	channels := []string{"0", "1:1", "end"}
	ear := listen(t, s, "0", "1:1", "end")
	twin := simnode.New()
	driver := twin.Driver(nil)
	subscribed, messages := make(chan string, len(channels)), make(chan string, 1000)
	sub, err := driver.(drivers.Subscriber).Subscribe(t.Context(), drivers.Listener{
		Subscribed: func(channel string) { subscribed <- channel },
		Message:    func(channel, payload string) { messages <- channel + " " + payload },
		Lost:       func(error) { close(messages) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.Subscribe(channels...); err != nil {
		t.Fatal(err)
	}
	for range channels {
		<-subscribed
	}

	owners := "abcdef"
	seen := map[string]int{}
	var told int
	for round := range 120 {
		k := script.KeysOf(fmt.Sprintf("k%d", round))
		var history []string
		both := func(sc *script.Source, keys []string, args ...string) {
			t.Helper()
			cmd := sc.Command(keys, args...)
			want, got := send(t, n, sc, cmd), twin.Execute(cmd)
			history = append(history, fmt.Sprintf("%s %q: %v, %v", names[sc], cmd[3+len(keys):], want, got))
			if !alike(sc, want, got) {
				t.Fatalf("round %d: the server and the twin answer\n%s", round, strings.Join(history, "\n"))
			}
			seen[fmt.Sprint(names[sc], " ", code(want))]++
		}
		// Counters beyond the clock.
		both(acquireScript, []string{k.Lock, k.Fence(), k.Tombstone("z")}, "z", "60000", "9007199254740991", "0")
		both(raiseScript, []string{k.Lock, k.Fence()}, "z", "8000000000000000")
		both(releaseScript, []string{k.Lock, k.Tombstone("z"), k.Fence()}, "z", "0:0:0:")
		turns := round%2 == 1
		for range 40 {
			owner := string(owners[rnd.IntN(len(owners))])
			value := owner + pick(rnd, "", "|1", "|2")
			token := pick(rnd, "0", fmt.Sprint(8000000000000000+rnd.IntN(12)))
			channel := pick(rnd, "", "0", "0", "1:1", "nobody listens")
			ticket := pick(rnd, "0", "0", "1", "2", "9000000000000000")
			lease := pick(rnd, "0", "1", "6000", "6000", "6000", "6000", "60000", "60000")
			ttl := pick(rnd, "60000", "60000", "3000")
			undo := pick(rnd, "0", "60000") + ":" + pick(rnd, "0", "0", "0", "60000") + ":" + token
			dice := rnd.IntN(17)
			if turns && lease == "0" {
				lease = "1"
			}
			switch {
			case dice < 5 && turns:
				both(turnScript, []string{k.Lock, k.Turn(), k.Queue(), k.Waiters()}, owner, lease+":"+ticket+":"+channel)
			case dice < 5:
				both(enqueueScript, []string{k.Lock, k.Fence(), k.Tombstone(owner), k.Queue(), k.Waiters()},
					owner, ttl+":"+lease+":"+ticket+":"+channel)
			case dice < 7 && turns:
				both(turnReleaseScript, []string{k.Lock, k.Tombstone("-"), k.Fence(), k.Turn(), k.Queue(), k.Waiters()}, "-:"+pick(rnd, "0", "60000")+":0:0:"+owner+":")
			case dice < 7:
				both(claimScript, []string{k.Lock, k.Fence()}, ttl+":"+owner)
			case dice < 9 && turns:
				both(acquireScript, []string{k.Lock, k.Fence(), k.Tombstone(owner)}, value, "60000", "1", "0")
			case dice < 12 && turns:
				both(turnReleaseScript, []string{k.Lock, k.Tombstone(owner), k.Fence(), k.Turn(), k.Queue(), k.Waiters()},
					value+":"+undo+":"+pick(rnd, "", owner, string(owners[rnd.IntN(len(owners))]))+pick(rnd, "", ":"))
			case dice < 10:
				both(handoverScript, []string{k.Lock, k.Tombstone(owner), k.Fence(), k.Queue(), k.Waiters()}, owner, undo)
			case dice < 11:
				both(extendScript, []string{k.Lock, k.Fence()}, owner, "60000", fmt.Sprint(8000000000000000+rnd.IntN(12)))
			case dice < 12:
				both(releaseScript, []string{k.Lock, k.Tombstone(owner), k.Fence()}, owner, undo+":"+channel)
			case dice < 14:
				both(inspectScript, []string{k.Lock, k.Fence(), k.Queue(), k.Waiters()})
			case dice < 15:
				names, owner := []string{k.Lock, k.Tombstone(owner), k.Fence(), k.Queue(), k.Waiters()}, pick(rnd, owner, value, "hold:"+value)
				if turns {
					names = append(names, k.Turn())
				}
				for range 1 + rnd.IntN(2) { // and once again
					both(forceScript, names, fmt.Sprintf("60000:%d:%s%s", len(owner), owner, pick(rnd, "", "0")))
				}
			default: // something is lost
				lost := pick(rnd, k.Lock, k.Lock, k.Turn(), k.Queue(), k.Waiters(), k.Tombstone(owner))
				s.Cmd(t, "DEL", lost)
				twin.Delete(lost)
				history = append(history, lost+" is lost")
			}
			if lease == "1" && dice < 5 { // dead from now on
				time.Sleep(4 * time.Millisecond)
			}
		}
		s.Cmd(t, "PUBLISH", "end", "")
		twin.Execute(drivers.Command{"PUBLISH", "end", ""})
		want := ear.heard()
		var got []string
		for len(got) == 0 || got[len(got)-1] != "end " {
			got = append(got, <-messages)
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("round %d: the server sent %q, the twin %q\n%s", round, want, got, strings.Join(history, "\n"))
		}
		told += len(want) - 1
		for _, key := range []string{k.Lock, k.Turn(), k.Queue(), k.Waiters(), k.Fence(), k.Tombstone("a")} {
			if want, got := s.Cmd(t, "EXISTS", key) == int64(1), slices.Contains(twin.Keys(), key); want != got {
				t.Fatalf("round %d: %s exists on the server: %v, on the twin: %v\n%s", round, key, want, got, strings.Join(history, "\n"))
			}
		}
		s.Cmd(t, "FLUSHALL")
		twin.Flush()
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if _, more := <-messages; more {
		t.Error("a message after the end")
	}
	t.Logf("%d messages, replies: %v", told, seen)
	for _, want := range []string{
		"enqueue 1", "enqueue 0", "enqueue -1", "claim 1", "claim 0", "handover 0", "handover 1", "turn 0", "turn 1",
		"turnrelease 0", "turnrelease 1", "inspect 0", "inspect 1", "force 0", "force 1", "force 2",
	} {
		if seen[want] == 0 {
			t.Errorf("%q was never seen", want)
		}
	}
	if told < 50 {
		t.Errorf("only %d messages", told)
	}
}

// alike reports whether two replies of a script are the same, save that clocks have gone on between them. Only what is
// a time by its place in the reply may differ: codes, ranks and numbers of waiters are as small as times are, and must
// not.
func alike(sc *script.Source, a, b drivers.Reply) bool {
	as, isArray := a.([]drivers.Reply)
	bs, both := b.([]drivers.Reply)
	if !isArray || !both {
		counts := sc == acquireScript || sc == enqueueScript
		return reflect.DeepEqual(a, b) || counts && near(a, b, 1e15, 5e15, 5e6)
	}
	if len(as) != len(bs) || as[0] != bs[0] {
		return false
	}
	places := timed[fmt.Sprint(names[sc], " ", as[0])]
	for i := range as {
		switch {
		case reflect.DeepEqual(as[i], bs[i]):
		case slices.Contains(places.ms, i) && near(as[i], bs[i], 0, 1e6, 1900): // what is left of a TTL, or until the next question
		case slices.Contains(places.clock, i) && near(as[i], bs[i], 1e15, 5e15, 5e6): // in us; not a counter beyond the clock
		default:
			return false
		}
	}
	return true
}

// timed says which elements of a reply are times in ms, and which are a clock or follow it, by script and code.
var timed = map[string]struct{ ms, clock []int }{
	"acquire 0": {ms: []int{1}, clock: []int{2}},
	"enqueue 0": {ms: []int{1, 3}, clock: []int{4}},
	"enqueue 1": {ms: []int{2}, clock: []int{1}},
	"claim 1":   {ms: []int{2}, clock: []int{1}},
	"turn 0":    {ms: []int{1, 3}, clock: []int{4}},
	"turn 1":    {ms: []int{1}},
	"inspect 0": {clock: []int{2, 4}},
	"inspect 1": {ms: []int{1}, clock: []int{2, 4}},
	"inspect 2": {clock: []int{2, 4}},
}

// near reports whether both are numbers between from and to, and differ by less than by.
func near(a, b drivers.Reply, from, to, by int64) bool {
	x, isInt := a.(int64)
	y, both := b.(int64)
	return isInt && both && min(x, y) > from && max(x, y) < to && max(x-y, y-x) < by
}

func TestAlike(t *testing.T) {
	array := func(elements ...int64) (reply []drivers.Reply) {
		for _, e := range elements {
			reply = append(reply, e)
		}
		return reply
	}
	const us = 1_700_000_000_000_000
	for _, tt := range []struct {
		script *script.Source
		a, b   drivers.Reply
		want   bool
	}{
		{releaseScript, int64(3), int64(3), true},
		{releaseScript, int64(3), int64(1), false},
		{extendScript, int64(1), int64(2), false},
		{acquireScript, int64(us), int64(us + 1e6), true},
		{acquireScript, int64(us), int64(us + 1e7), false},
		{acquireScript, int64(8e15), int64(8e15 + 1), false}, // beyond the clock
		{acquireScript, int64(1), int64(2), false},
		{releaseScript, int64(us), int64(us + 1), false},
		{acquireScript, array(0, 60000, 3), array(0, 59990, 3), true},
		{acquireScript, array(0, 60000, 3), array(0, 60000, 4), false},
		{acquireScript, array(0, 60000, 3), array(0, 57000, 3), false},
		{acquireScript, array(0, 60000, 3), array(1, 60000, 3), false},
		{acquireScript, array(0, 60000, 3), int64(1), false},
		{enqueueScript, array(0, 60000, 1, 2000, us), array(0, 59990, 1, 1990, us+500), true},
		{enqueueScript, array(0, 60000, 1, 2000, us), array(0, 60000, 2, 2000, us), false}, // a rank
		{enqueueScript, array(0, 60000, 1, 2000, 1), array(0, 60000, 1, 2000, 2), false},   // a ticket of the caller's
		{enqueueScript, array(0, -1, 1, 2000, us), array(0, -2, 1, 2000, us), false},
		{inspectScript, array(1, 60000, us, 1, us), array(1, 59990, us, 2, us), false}, // how many wait
	} {
		if got := alike(tt.script, tt.a, tt.b); got != tt.want {
			t.Errorf("%s: are %v and %v alike: got %v, want %v", names[tt.script], tt.a, tt.b, got, tt.want)
		}
	}
}

func pick(rnd *rand.Rand, choices ...string) string { return choices[rnd.IntN(len(choices))] }

// code is what a reply says, without numbers that are its own: a counter grants.
func code(reply drivers.Reply) any {
	switch r := reply.(type) {
	case []drivers.Reply:
		return r[0]
	case int64:
		if r > 16 {
			return int64(1)
		}
	}
	return reply
}

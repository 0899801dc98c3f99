package script_test

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

// The simulated node executes the scripts about groups as a server does. Counters are made so great that the clock has
// no part in them. Whatever was executed, no number has two owners, a writer is alone, and the state has what the
// entries have.
func TestSimulatedNodeHasGroupsAsAServer(t *testing.T) {
	q, node, rnd := beside(t)
	x := kinds{permits{q}}
	seen := map[string]int{}
	for round := range 20 {
		of := []string{"permits", "rw"}[round%2]
		x.k = script.KeysOf("lock:", "{k}#"+of)
		x.s.Cmd(t, "SET", x.k.Fence(), "8000000000000000")
		node.Put(x.k.Fence(), "8000000000000000")
		var history []string
		both := func(what string, cmd script.Command) {
			t.Helper()
			want := sendCommand(t, x.n, cmd)
			got := node.Execute(append(drivers.Command{"EVAL", cmd.Source}, cmd.Words[2:]...))
			history = append(history, fmt.Sprintf("%s: %v, %v", what, want, got))
			if !sameOfGroup(want, got) {
				t.Fatalf("round %d: the server and the node answer\n%s", round, strings.Join(history, "\n"))
			}
			did := strings.Fields(what)[1]
			seen[fmt.Sprint(did, " ", code(want))]++
			if o, _ := script.ReadOwned(want); of == "rw" && (did == "returns" || did == "lowers") && !o.Unfinished {
				x.told(history)
			}
		}
		counters, attempts := map[string]uint64{}, map[string]*script.Wants{}
		for i := range 40 {
			o := pick(rnd, "a", "b", "c", "d", "e", "f") + fmt.Sprint(i/20)
			n, weight := 1+rnd.IntN(6), 1
			weight += rnd.IntN(min(n, 4))
			a, wants := x.permits.as(o, n, weight), fmt.Sprintf("%d of %d", weight, n)
			if of == "rw" {
				if a = x.as(o, pick(rnd, shared, shared, upgradeable, exclusive)); a.Wants.Kind == exclusive && rnd.IntN(2) == 0 {
					a.Wants.From = cmp.Or(x.upgrader(), pick(rnd, "a", "b")+fmt.Sprint(i/20))
				}
				if attempts[o] == nil { // an attempt is about one lock
					attempts[o] = a.Wants
				}
				a.Wants = attempts[o]
				wants = fmt.Sprintf("%s from %q", a.Wants.Kind, a.Wants.From)
			}
			ttl := []time.Duration{time.Minute, time.Hour, 3 * time.Second}[rnd.IntN(3)]
			waits := []time.Duration{0, script.MaxPositionTTL, script.MaxPositionTTL, time.Millisecond}[rnd.IntN(4)]
			r := script.Release{Attempt: a, Notify: script.NotifyQueue, Certify: counters[o]}
			if rnd.IntN(2) == 0 {
				r.Tombstone = time.Minute
			}
			if rnd.IntN(4) == 0 {
				r.Keep = time.Minute
			}
			switch dice := rnd.IntN(20); {
			case dice < 9:
				channel := pick(rnd, "", "nobody listens")
				both(fmt.Sprintf("%s asks for %s, for %v on %q", o, wants, waits, channel), a.Enqueue(ttl, waits, 0, channel))
			case dice < 11:
				both(o+" claims", a.Claim(ttl))
			case dice < 12:
				both(o+" extends", a.Extend(ttl, counters[o]))
			case dice < 13 && of == "rw":
				both(o+" lowers", a.Share(ttl, counters[o]))
			case dice < 17:
				both(o+" returns", r.Command())
			case dice < 18: // its time is over
				const ends = "return redis.call('ZADD', KEYS[1], 'XX', '1', ARGV[1])"
				both(o+" ends", script.Command{Source: ends, Words: drivers.Command{"EVALSHA", "", "1", x.k.Lock, o}})
			case dice < 19:
				both("who inspects", x.k.InspectGroup(pick(rnd, "", o), pick(rnd, 1, 10)))
			default: // an operator takes what it has
				s, err := script.ReadState(sendCommand(t, x.n, x.k.InspectGroup(o, 2)))
				if err == nil && s.Value != "" {
					both(o+" is forced", x.k.ForceEntry(s.Value, time.Minute, nil))
				}
			}
			if waits == time.Millisecond {
				x.passes(2 * time.Millisecond) // dead from now on
			}
			counters = x.consistent(node, attempts, history)
		}
		x.s.Cmd(t, "FLUSHALL")
		node.Flush()
	}
	t.Logf("replies: %v", seen)
	for _, want := range []string{
		"asks 3", "asks 0", "asks 4", "asks 1", "asks -1", "claims 1", "claims 0", "extends 0", "returns 0", "returns 1",
		"lowers 0",
	} {
		if seen[want] == 0 {
			t.Errorf("%q was never seen", want)
		}
	}
}

// upgrader returns who has an upgradeable lock, or nothing.
func (x kinds) upgrader() string {
	all := x.strings(x.s.Cmd(x.t, "HGETALL", x.k.Entries()))
	for i := 0; i < len(all); i += 2 {
		if strings.Contains(all[i+1], "|u|") {
			return all[i]
		}
	}
	return ""
}

// consistent checks what the server has, and that the node has the same owners. It returns the counters of the owners.
// attempts are what each owner has asked for.
func (x kinds) consistent(node *simnode.Node, attempts map[string]*script.Wants, history []string) map[string]uint64 {
	x.t.Helper()
	fail := func(format string, args ...any) {
		x.t.Helper()
		x.t.Fatalf(format+"\n%s", append(args, strings.Join(history, "\n"))...)
	}
	counters := map[string]uint64{}
	var fields []string
	taken, has, state := map[int]string{}, map[script.Kind]int{}, ""
	writer := ""
	all := x.strings(x.s.Cmd(x.t, "HGETALL", x.k.Entries()))
	for i := 0; i < len(all); i += 2 {
		o, value := all[i], all[i+1]
		fields = append(fields, o)
		if o == "" {
			_, state, _ = strings.Cut(strings.ReplaceAll(value, "-", "+"), "+")
			continue
		}
		p := strings.SplitN(value, "|", 3)
		v, ours := script.ReadValue(p[0] + "|" + o + "|1|")
		if !ours || len(p) != 3 {
			fail("%s has %q", o, value)
		}
		counters[o] = v.Counter
		if kind := script.Kind(p[1]); kind == shared || kind == upgradeable || kind == exclusive {
			has[kind]++
			if kind == exclusive {
				writer = o
			}
		}
		for _, number := range script.NumbersOf(p[1]) {
			if other, ok := taken[number]; ok {
				fail("%s and %s have the number %d", o, other, number)
			}
			taken[number] = o
		}
		x.score(o)
	}
	if writes := has[exclusive]; writes+has[upgradeable] > 0 {
		readers := has[shared]
		if writes > 0 && attempts[writer] != nil { // a caller may make its lock a shared one while its upgrade is in doubt
			if from := attempts[writer].From; from != "" && slices.Contains(fields, from) && has[upgradeable] == 0 {
				readers--
			}
		}
		if writes > 1 || has[upgradeable] > 1 || writes == 1 && readers > 0 {
			fail("there are %v", has)
		}
	}
	if len(has) > 0 {
		if want := fmt.Sprintf("%ds%du%dx", has[shared], has[upgradeable], has[exclusive]); state != want {
			fail("the state %s, and %s", state, want)
		}
		state = ""
	}
	for number, mark := range state {
		if _, ok := taken[number]; ok != (mark == '1') {
			fail("the state %s, and the numbers of %v", state, taken)
		}
	}
	for number, o := range taken {
		if number >= len(state) {
			fail("the state %s, and %s has %d", state, o, number)
		}
	}
	got := node.Fields(x.k.Entries())
	slices.Sort(got)
	slices.Sort(fields)
	if !slices.Equal(got, fields) {
		fail("the server has entries of %q, the node of %q", fields, got)
	}
	if len(fields) > 0 && x.s.PTTL(x.t, x.k.Lock) <= 0 {
		fail("the group has no end")
	}
	return counters
}

// told checks that nobody waits for a lock that it could have, but for those behind one that cannot have what it wants.
func (x kinds) told(history []string) {
	x.t.Helper()
	has, now := map[script.Kind]int{}, time.Now().UnixMilli()
	all := x.strings(x.s.Cmd(x.t, "HGETALL", x.k.Entries()))
	for i := 0; i < len(all); i += 2 {
		if p := strings.Split(all[i+1], "|"); len(p) == 3 {
			has[script.Kind(p[1])]++
		}
	}
	order := map[uint64]string{}
	queue := x.strings(x.s.Cmd(x.t, "ZRANGE", x.k.Queue(), 0, -1, "WITHSCORES"))
	for i := 0; i < len(queue); i += 2 {
		at, err := strconv.ParseFloat(queue[i+1], 64)
		if err != nil {
			x.t.Fatal(err)
		}
		order[uint64(min(at, 1<<53-at))] = queue[i]
	}
	passed := false
	for _, at := range slices.Sorted(maps.Keys(order)) {
		var deadline int64
		waiter, _ := x.s.Cmd(x.t, "HGET", x.k.Wait(), order[at]).(string)
		_, wants, _ := strings.Cut(waiter, "|")
		if _, err := fmt.Sscanf(waiter, "%d:", &deadline); err != nil || deadline < now {
			continue // it counts as dead
		}
		kind, from := script.Kind(wants[:1]), strings.Split(wants, ":")[1]
		others := has[upgradeable]
		if from != "" {
			others--
		}
		fits := has[exclusive] == 0 && (kind == shared || others <= 0) && (kind != exclusive || has[shared] == 0)
		if fits && (kind == shared || !passed) {
			x.t.Fatalf("%s could have a lock of the kind %s beside %v\n%s", order[at], kind, has, strings.Join(history, "\n"))
		}
		if passed = true; kind != upgradeable {
			return
		}
	}
}

// sameOfGroup compares replies. What is left of a time, and tickets, are about the same.
func sameOfGroup(want, got drivers.Reply) bool {
	w, isArray := want.([]drivers.Reply)
	g, isArrayToo := got.([]drivers.Reply)
	if !isArray || !isArrayToo || len(w) != len(g) {
		return reflect.DeepEqual(want, got)
	}
	for i := range w {
		if all, nested := w[i].([]drivers.Reply); nested { // {ms that are left, numbers, value, ...}
			other, _ := g[i].([]drivers.Reply)
			if len(all) != len(other) {
				return false
			}
			for n := range all {
				if n%3 > 0 && all[n] != other[n] {
					return false
				}
			}
			continue
		}
		a, isInt := w[i].(int64)
		b, isIntToo := g[i].(int64)
		switch {
		case isInt != isIntToo || !isInt && w[i] != g[i]:
			return false
		case i == 0 || a < 100 || b < 100: // codes, ranks, and what has just ended
			if a != b && (i == 0 || a < 0 != (b < 0) || max(a, b) > 1000) {
				return false
			}
		case a >= 8_000_000_000_000_000:
			if a != b {
				return false
			}
		case a > 1_000_000_000_000: // a ticket, or the clock
			if max(a-b, b-a) > 10_000_000 {
				return false
			}
		case max(a-b, b-a) > 1000:
			return false
		}
	}
	return true
}

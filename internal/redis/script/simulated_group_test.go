package script_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

// The simulated node executes the scripts about groups as a server does. Counters are made so great that the clock has
// no part in them. Whatever was executed, no number has two owners, and the state has what the entries have.
func TestSimulatedNodeHasGroupsAsAServer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	x := newPermits(t)
	node := simnode.New()
	seen := map[string]int{}
	for round := range 20 {
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
			seen[fmt.Sprint(strings.Fields(what)[1], " ", code(want))]++
		}
		counters := map[string]uint64{}
		for i := range 40 {
			o := pick(rnd, "a", "b", "c", "d", "e", "f") + fmt.Sprint(i/20)
			n, weight := 1+rnd.IntN(6), 1
			weight += rnd.IntN(min(n, 4))
			a := x.as(o, n, weight)
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
				both(fmt.Sprintf("%s asks for %d of %d", o, weight, n), a.Enqueue(ttl, waits, 0, pick(rnd, "", "nobody listens")))
			case dice < 11:
				both(o+" claims", a.Claim(ttl))
			case dice < 12:
				both(o+" extends", a.Extend(ttl, counters[o]))
			case dice < 17:
				both(o+" returns", r.Command())
			case dice < 18: // its time is over
				const ends = "return redis.call('ZADD', KEYS[1], 'XX', '1', ARGV[1])"
				both(o+" ends", script.Command{Source: ends, Words: drivers.Command{"EVALSHA", "", "1", x.k.Lock, o}})
			case dice < 19:
				both("who inspects", x.k.InspectPermits(pick(rnd, "", o), 10))
			default: // an operator takes what it has
				s, err := script.ReadState(sendCommand(t, x.n, x.k.InspectPermits(o, 2)))
				if err == nil && s.Value != "" {
					both(o+" is forced", x.k.ForcePermits(s.Value, time.Minute, nil))
				}
			}
			if waits == time.Millisecond {
				time.Sleep(3 * time.Millisecond) // dead from now on
			}
			counters = x.consistent(node, history)
		}
		x.s.Cmd(t, "FLUSHALL")
		node.Flush()
	}
	t.Logf("replies: %v", seen)
	for _, want := range []string{
		"asks 3", "asks 0", "asks 4", "asks 1", "asks -1", "claims 1", "claims 0", "extends 0", "returns 0", "returns 1",
	} {
		if seen[want] == 0 {
			t.Errorf("%q was never seen", want)
		}
	}
}

// consistent checks what the server has, and that the node has the same owners. It returns the counters of the owners.
func (x permits) consistent(node *simnode.Node, history []string) map[string]uint64 {
	x.t.Helper()
	fail := func(format string, args ...any) {
		x.t.Helper()
		x.t.Fatalf(format+"\n%s", append(args, strings.Join(history, "\n"))...)
	}
	counters := map[string]uint64{}
	var fields []string
	taken, state := map[int]string{}, ""
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
		for _, number := range script.NumbersOf(p[1]) {
			if other, ok := taken[number]; ok {
				fail("%s and %s have the number %d", o, other, number)
			}
			taken[number] = o
		}
		x.score(o)
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

// sameOfGroup compares replies. What is left of a time, and tickets, are about the same.
func sameOfGroup(want, got drivers.Reply) bool {
	w, isArray := want.([]drivers.Reply)
	g, isArrayToo := got.([]drivers.Reply)
	if !isArray || !isArrayToo || len(w) != len(g) {
		return want == got
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

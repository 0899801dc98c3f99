package script_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

// The twin rests as the scripts do. Markers on the two are set to the same age.
func TestTwinRestsLikeTheScripts(t *testing.T) {
	const never = 1 << 53 // µs: later than any clock
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	g := newGuard(t)
	g.s.User(t, "ignorant", "on", "nopass", "~*", "+@all", "-info")
	ignorant := reachServer(t, g.s, redis.DialUsername("ignorant"), redis.DialPassword("any"))
	twin := simnode.New()
	seen := map[string]int{}
	wanted := []string{
		"acquire 1", "acquire 0", "acquire -3", "acquire -4", "joined 1", "joined 0", "enqueue 1", "enqueue 0",
		"enqueue -3", "enqueue -4", "touch 0", "touch -3", "touch -4", "trust 0", "ignorant -5", "handover 1",
		"handover 0", "force 1", "claim 1", "claim 0", "claim -3", "claim -4",
	}
	unseen := func(reply string) bool { return seen[reply] == 0 }
	for round := 0; round < 120 || round < 2000 && slices.ContainsFunc(wanted, unseen); round++ {
		k := script.KeysOf("p:", fmt.Sprintf("k%d", round))
		for step := range 25 {
			mine := g
			if rnd.IntN(8) == 0 {
				mine.Guard = guardOf(2 * guarded)
			}
			a := mine.attempt(fmt.Sprintf("k%d", round), pick(rnd, "a", "b", "c"))
			ttl := time.Minute
			// Counters beyond the clock.
			g.s.Cmd(t, "SET", k.Fence(), script.CounterText(8e15))
			twin.Put(k.Fence(), script.CounterText(8e15))
			var what string
			var cmd script.Command
			switch rnd.IntN(11) {
			case 0, 1:
				what, cmd = "acquire", a.Acquire(ttl, 1, 0)
			case 2:
				what, cmd = "joined", script.Join([]*script.Usual{a.Acquire(ttl, 1, 0).Usual})
			case 3, 4:
				what, cmd = "enqueue", a.Enqueue(ttl, []time.Duration{0, script.MaxPositionTTL}[rnd.IntN(2)], 0, "")
			case 5:
				r := script.Release{Attempt: a, Notify: script.NotifyQueue}
				r.Tombstone = []time.Duration{0, ttl}[rnd.IntN(2)]
				what, cmd = "handover", r.Command()
			case 6:
				value, _ := g.s.Cmd(t, "GET", k.Lock).(string)
				what, cmd = "force", a.Force(value, ttl, false, mine.Guard)
			case 7:
				what, cmd = "touch", mine.Touch()
				if rnd.IntN(4) == 0 {
					what, cmd = "trust", mine.Trust(0)
				}
			case 8:
				what, cmd = "ignorant", a.Acquire(ttl, 1, 0)
			case 9:
				what, cmd = "claim", a.Claim(ttl)
			default: // something happens
				value, _ := g.s.Cmd(t, "GET", g.marker()).(string)
				p := strings.Split(value, ":")
				if len(p) == 3 && rnd.IntN(2) == 0 {
					since := fmt.Sprint(time.Now().UnixMicro() + []int64{-never, -5e6, 3600e6}[rnd.IntN(3)])
					if since[0] == '-' {
						since = "0"
					}
					g.s.Cmd(t, "SET", g.marker(), p[0]+":"+since+":"+p[2])
					twin.Put(g.marker(), "0:"+since+":"+p[2])
					continue
				}
				lost := pick(rnd, g.marker(), k.Lock)
				g.s.Cmd(t, "DEL", lost)
				twin.Delete(lost)
				continue
			}
			n := g.n
			if twin.NoInfo = what == "ignorant"; twin.NoInfo {
				n = ignorant
			}
			want, got := sendCommand(t, n, cmd), twin.Execute(alone(cmd).Words)
			if !guardedAlike(want, got) {
				t.Fatalf("round %d, step %d, %s: the server answers %v, the twin %v", round, step, what, want, got)
			}
			if why := differ(t, g.n, twin, k); why != "" {
				t.Fatalf("round %d, step %d: after %s %s", round, step, what, why)
			}
			has, _ := g.s.Cmd(t, "GET", g.marker()).(string)
			if had := slices.Contains(twin.Keys(), g.marker()); had != (has != "") {
				t.Fatalf("round %d, step %d: after %s, the marker is %q, the twin's: %v", round, step, what, has, had)
			}
			seen[fmt.Sprint(what, " ", code(want))]++
		}
	}
	t.Logf("replies: %v", seen)
	for _, want := range wanted {
		if unseen(want) {
			t.Errorf("%q was never seen", want)
		}
	}
}

// guardedAlike reports whether two replies are the same, save for times in ms and tickets.
func guardedAlike(a, b drivers.Reply) bool {
	as, _ := a.([]drivers.Reply)
	bs, _ := b.([]drivers.Reply)
	if as == nil || len(as) != len(bs) || as[0] != bs[0] {
		return a == nil || fmt.Sprint(a) == fmt.Sprint(b)
	}
	for i := range as {
		if as[i] != bs[i] && !near(as[i], bs[i], 0, 1e6, 1900) && !near(as[i], bs[i], 1e15, 5e15, 5e6) {
			return false
		}
	}
	return true
}

package script_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

// pair is a counter as the server has it and as the twin has it: they follow clocks that are not quite the same.
type pair struct{ real, twin int64 }

func (p pair) plus(n int) pair { return pair{p.real + int64(n), p.twin + int64(n)} }

// coarse is the larger of the quanta that the test asks for, in us.
const coarse = 65536

// The same with counters that follow the clock, locks that expire, and keys that are no locks: what is issued differs
// by no more than the clocks do, and tokens that were issued mean the same to both.
func TestTwinFollowsTheClockLikeTheScripts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s, n := real(t)
	twin := simnode.New()
	seen := map[string]int{}
	compared := 0
	const rounds = 100
	whole := 0
	for round := 0; whole < rounds; round++ {
		if round == 20*rounds {
			t.Fatalf("only %d of %d rounds without a tick between the server and the twin", whole, round)
		}
		torn := false
		k := script.KeysOf("", fmt.Sprintf("k%d", round))
		issued := []pair{{}}
		var history []string
		both := func(sc *script.Source, keys []string, args ...any) {
			t.Helper()
			tick := time.Now().UnixMicro() / coarse
			text := func(side func(pair) int64) []string {
				var words []string
				for _, a := range args {
					if p, ok := a.(pair); ok {
						a = script.CounterText(uint64(max(0, side(p))))
					}
					words = append(words, fmt.Sprint(a))
				}
				if len(words) > 2 && sc != acquireScript && sc != extendScript && sc != raiseScript { // one word
					words = []string{words[0], strings.Join(words[1:], "")}
				}
				return words
			}
			want := send(t, n, sc, sc.Command(keys, text(func(p pair) int64 { return p.real })...))
			got := twin.Execute(sc.Command(keys, text(func(p pair) int64 { return p.twin })...))
			if torn = torn || time.Now().UnixMicro()/coarse != tick; torn {
				return
			}
			history = append(history, fmt.Sprintf("%s %v: %v, %v", names[sc], args, want, got))
			if !alike(sc, want, got) {
				t.Fatalf("round %d: the server and the twin answer\n%s", round, strings.Join(history, "\n"))
			}
			w, _ := want.([]drivers.Reply)
			if g, _ := got.([]drivers.Reply); len(w) > 1 && w[0] == int64(1) {
				issued = append(issued, pair{w[1].(int64), g[1].(int64)})
			} else if c, ok := want.(int64); ok && (sc == acquireScript || sc == enqueueScript) && c > 0 {
				issued = append(issued, pair{c, got.(int64)})
			}
			seen[fmt.Sprint(names[sc], " ", code(want))]++
			compared++
		}
		for step := 0; step < 25 && !torn; step++ {
			owner := text(string("abc"[rnd.IntN(3)]))
			token := issued[max(0, len(issued)-1-rnd.IntN(3))].plus([]int{-1, 0, 0, 0, 1}[rnd.IntN(5)])
			switch rnd.IntN(12) {
			case 0, 1:
				both(acquireScript, acquireKeys(k), owner, "60000", pick(rnd, "1", strconv.Itoa(coarse)), token)
			case 2:
				both(acquireScript, acquireKeys(k), owner, "10", "1", "0")
				time.Sleep(15 * time.Millisecond)
			case 3, 4:
				both(enqueueScript, queueKeys(k), owner, "60000:"+pick(rnd, "0", "6000")+":0:")
			case 5:
				both(claimScript, []string{k.Lock}, owner, "60000")
			case 6:
				both(raiseScript, ownedKeys(k), owner, token)
			case 7:
				both(extendScript, ownedKeys(k), owner, "90000", token)
			case 8:
				both(releaseScript, releaseKeys(k), owner, pick(rnd, "0", "60000"), ":0:", token, ":")
			case 9, 10:
				both(handoverScript, queueKeys(k), owner, pick(rnd, "0", "60000"), ":0:", token)
			default:
				switch rnd.IntN(4) {
				case 0:
					s.Cmd(t, "SET", k.Lock, "something else")
					twin.Put(k.Lock, "something else")
					history = append(history, "a foreign key")
				case 1:
					s.Cmd(t, "DEL", k.Lock)
					twin.Delete(k.Lock)
					history = append(history, "the lock is lost")
				case 2:
					s.Cmd(t, "DEL", k.Fence())
					twin.Delete(k.Fence())
					history = append(history, "the counter is lost")
				}
			}
		}
		if !torn {
			whole++
		}
		s.Cmd(t, "FLUSHALL")
		twin.Flush()
	}
	t.Logf("%d replies compared: %v", compared, seen)
	for _, want := range []string{
		"acquire 1", "acquire 0", "acquire -1", "acquire -2", "enqueue 1", "enqueue 0", "enqueue -1", "enqueue -2",
		"claim 1", "raise 1", "raise 0", "extend 1", "extend 0", "release 3", "handover 1", "handover 3",
	} {
		if seen[want] == 0 {
			t.Errorf("%q was never seen", want)
		}
	}
}

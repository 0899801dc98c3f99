package node

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/simnode"
)

// The twin of the scripts and the scripts answer alike, command by command. The clock's part in counters is taken out by a
// quantum beyond any time, and TTLs are either long or over, so that the two clocks do not have to agree.
func TestTwinIsLikeTheScripts(t *testing.T) {
	const never = "9007199254740991"
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s, n := real(t)
	twin := simnode.New()
	seen := map[string]int{}
	for round := range 200 {
		k := keysOf(fmt.Sprintf("k%d", round))
		for step := range 25 {
			owner := string(rune('a' + rnd.IntN(3)))
			number := fmt.Sprint(rnd.IntN(8))
			var sc *script
			var cmd drivers.Command
			switch rnd.IntN(7) {
			case 0, 1, 2:
				sc = acquireScript
				cmd = sc.command([]string{k.lock, k.fence, k.gone + owner}, owner, "60000", never, number)
			case 3:
				sc = raiseScript
				cmd = sc.command([]string{k.lock, k.fence}, owner, number)
			case 4:
				sc = extendScript
				cmd = sc.command([]string{k.lock, k.fence}, owner, "90000", number)
			case 5:
				sc = releaseScript
				cmd = sc.command([]string{k.lock, k.gone + owner, k.fence}, owner, pick(rnd, "0", "60000"), pick(rnd, "0", number))
			default: // somebody interferes
				switch rnd.IntN(3) {
				case 0:
					s.Cmd(t, "DEL", k.lock)
					twin.Expire(func(key string) bool { return key == k.lock })
				case 1:
					s.Cmd(t, "FLUSHALL")
					twin.Flush()
				}
				continue
			}
			want, got := send(t, n, sc, cmd), twin.Execute(cmd)
			if a, ok := want.([]drivers.Reply); ok && len(a) == 4 { // the remaining TTL: about the same
				b := got.([]drivers.Reply)
				if diff := time.Duration(a[1].(int64)-b[1].(int64)) * time.Millisecond; diff.Abs() > 5*time.Second {
					t.Errorf("PTTL %v and %v", a[1], b[1])
				}
				b[1] = a[1]
			}
			if !reflect.DeepEqual(want, got) {
				t.Fatalf("round %d, step %d: the server answers %v, the twin %v, to %q", round, step, want, got, cmd[2:])
			}
			seen[fmt.Sprintf("%.5s %v", sc.source[3:], code(want))]++
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d kinds of answers were seen: %v", len(seen), seen)
	}
	for _, key := range s.Keys(t, "*:fence") {
		if left := pttl(t, s, key); left < counterKeep-time.Minute {
			t.Errorf("%s expires in %v", key, left)
		}
	}
}

func pick(rnd *rand.Rand, choices ...string) string { return choices[rnd.IntN(len(choices))] }

func code(reply drivers.Reply) any {
	if a, ok := reply.([]drivers.Reply); ok {
		return a[0]
	}
	return reply
}

package script_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

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
		k := script.KeysOf("", fmt.Sprintf("k%d", round))
		for step := range 25 {
			owner := text(string(rune('a'+rnd.IntN(3))) + pick(rnd, "", "|1", "|2|label", "|12"))
			number := rnd.Uint64N(8)
			counter := script.CounterText(number)
			var sc *script.Source
			var cmd drivers.Command
			switch rnd.IntN(8) {
			case 0, 1, 2:
				sc = acquireScript
				cmd = sc.Command(acquireKeys(k), owner, "60000", never, fmt.Sprint(number))
			case 3:
				sc = raiseScript
				cmd = sc.Command(ownedKeys(k), owner, counter)
			case 4:
				sc = extendScript
				cmd = sc.Command(ownedKeys(k), owner, pick(rnd, "30000", "90000"), counter)
			case 5:
				sc = releaseScript
				cmd = sc.Command(releaseKeys(k), owner, undoing(
					pick(rnd, "0", "60000")+":"+pick(rnd, "0", "0", "60000")+":"+pick(rnd, "0", fmt.Sprint(number))+":"))
			case 6:
				sc = verifyScript
				cmd = sc.Command(releaseKeys(k), counter+owner)
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
			if why := differ(t, n, twin, k); why != "" {
				t.Fatalf("round %d, step %d: after %q %s", round, step, cmd[2:], why)
			}
			seen[fmt.Sprint(names[sc], " ", code(want))]++
		}
	}
	t.Logf("replies: %v", seen)
	if len(seen) < 15 {
		t.Errorf("only %d kinds of answers were seen: %v", len(seen), seen)
	}
}

// differ says what is different in the states of the lock on the server and on its twin.
func differ(t *testing.T, n *server, twin *simnode.Node, k script.Keys) string {
	t.Helper()
	inspect := inspectScript.Command(queueKeys(k))
	if want, got := send(t, n, inspectScript, inspect), twin.Execute(inspect); !alike(inspectScript, want, got) {
		return fmt.Sprintf("the server has %q, the twin %q", want, got)
	}
	reply, err := n.driver.Do(t.Context(), drivers.Command{"HKEYS", k.Wait()})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, field := range reply[0].([]drivers.Reply) {
		want = append(want, field.(string))
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(twin.Fields(k.Wait()))); !slices.Equal(want, got) {
		return fmt.Sprintf("the server knows %q, the twin %q", want, got)
	}
	return ""
}

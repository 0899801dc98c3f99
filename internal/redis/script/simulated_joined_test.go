package script_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Joined commands do the same on the simulated node as on a server, also if some of them are not usual, and a lock is
// among them twice.
func TestSimulatedNodeJoinsLikeAServer(t *testing.T) {
	const never = 1 << 53 // µs: later than any clock
	x, node, rnd := beside(t)
	s, n := x.s, x.n
	granted, deleted, unusual := 0, 0, 0
	for round := range 150 {
		s.Cmd(t, "FLUSHALL")
		node.Flush()
		var locks []script.Keys
		for _, key := range []string{"{x}1", "{x}2", "{x}3", "y", "z"} {
			k := script.KeysOf("p:", key)
			locks = append(locks, k)
			s.Cmd(t, "SET", k.Fence(), script.CounterText(5))
			node.Put(k.Fence(), script.CounterText(5))
		}
		for step := range 12 {
			k := locks[rnd.IntN(len(locks))]
			owner := string(rune('a' + rnd.IntN(3)))
			switch rnd.IntN(6) { // what makes a lock unusual
			case 0:
				cmd := enqueueScript.Command(queueKeys(k), text(owner), usualArgs)
				if want, got := send(t, n, enqueueScript, cmd), node.Execute(cmd); code(want) != code(got) {
					t.Fatalf("the server answers %v, the simulated node %v", want, got)
				}
				s.Cmd(t, "SET", k.Fence(), script.CounterText(50))
				node.Put(k.Fence(), script.CounterText(50))
				s.Cmd(t, "DEL", k.Lock, k.Queue()) // it follows the clock
				node.Delete(k.Lock, k.Queue())
			case 1:
				value := pick(rnd, "theirs", script.CounterText(7)+text(owner)+"+")
				s.Cmd(t, "SET", k.Lock, value)
				node.Put(k.Lock, value)
			}
			var usual []*script.Usual
			for range rnd.IntN(4) {
				k := locks[rnd.IntN(len(locks))]
				usual = append(usual, &script.Usual{Lock: k.Lock, Wait: k.Wait(), Fence: k.Fence(), Quantum: never,
					TTL: time.Minute, Text: text(string(rune('a' + rnd.IntN(3))))})
			}
			taken := map[string]bool{}
			for _, u := range usual {
				taken[u.Lock] = true
			}
			for range rnd.IntN(4) {
				k := locks[rnd.IntN(len(locks))]
				value, _ := s.Cmd(t, "GET", k.Lock).(string)
				value = pick(rnd, strings.TrimSuffix(value, "+"), script.CounterText(6)+text(owner), script.AnyCounter+text(owner))
				// Nothing is acquired and released at once, or released twice. Nobody releases other libraries' locks.
				if _, ours := script.ReadValue(value); ours && !taken[k.Lock] {
					taken[k.Lock] = true
					usual = append(usual, &script.Usual{Lock: k.Lock, Text: value})
				}
			}
			if len(usual) == 0 {
				continue
			}
			cmd := script.Join(usual)
			want := sendCommand(t, n, cmd)
			if got := node.Execute(cmd.Words); !reflect.DeepEqual(want, got) {
				t.Fatalf("round %d, step %d: the server answers %v, the node %v, to %q", round, step, want, got, cmd.Words[2:])
			}
			for _, k := range locks {
				if why := differ(t, n, node, k); why != "" {
					t.Fatalf("round %d, step %d: after %q %s", round, step, cmd.Words[2:], why)
				}
			}
			numbers, err := script.ReadJoined(want, len(usual))
			if err != nil {
				t.Fatal(err)
			}
			for _, number := range numbers {
				switch {
				case number > 1:
					granted++
				case number == 1:
					deleted++
				default:
					unusual++
				}
			}
		}
	}
	t.Logf("%d granted, %d deleted, %d unusual", granted, deleted, unusual)
	if min(granted, deleted, unusual) < 50 {
		t.Error("too few of one kind")
	}
}

func sendCommand(t testing.TB, n *server, cmd script.Command) drivers.Reply {
	t.Helper()
	cmd = alone(cmd)
	replies, err := n.driver.Do(t.Context(), append(drivers.Command{"EVAL", cmd.Source}, cmd.Words[2:]...))
	if err != nil {
		t.Fatal(err)
	}
	return replies[0]
}

// alone returns cmd as it is sent by itself.
func alone(cmd script.Command) script.Command {
	if cmd.Usual != nil {
		return cmd.Usual.Alone()
	}
	return cmd
}

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
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

// The simulated node executes the scripts as a server does, and sends the same messages. Counters are made so great
// that the clock has no part in them. Tickets and what is left of a TTL are about the same.
func TestSimulatedNodeAnswersLikeAServer(t *testing.T) {
	x, node, rnd := beside(t)
	s, n := x.s, x.n
	channels := []string{"0", "1:1", "end"}
	ear := listen(t, s, "0", "1:1", "end")
	driver := node.Driver(nil)
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
		k := script.KeysOf("", fmt.Sprintf("k%d", round))
		var history []string
		both := func(sc *script.Source, keys []string, args ...string) {
			t.Helper()
			cmd := sc.Command(keys, args...)
			want, got := send(t, n, sc, cmd), node.Execute(cmd)
			history = append(history, fmt.Sprintf("%s %q: %v, %v", names[sc], cmd[3+len(keys):], want, got))
			if !sameReply(sc, want, got) {
				t.Fatalf("round %d: the server and the node answer\n%s", round, strings.Join(history, "\n"))
			}
			seen[fmt.Sprint(names[sc], " ", code(want))]++
		}
		// Counters beyond the clock.
		both(acquireScript, acquireKeys(k), text("z"), "60000", "9007199254740991", "0")
		both(raiseScript, ownedKeys(k), text("z"), "8000000000000000")
		both(releaseScript, releaseKeys(k), text("z"), undoing("0:0:0"))
		turns := round%2 == 1
		for range 40 {
			owner := string(owners[rnd.IntN(len(owners))])
			own, numbered := text(owner+pick(rnd, "", "|1|label")), text(owner+pick(rnd, "", "|1", "|2"))
			token := pick(rnd, "0", fmt.Sprint(8000000000000000+rnd.IntN(12)))
			channel := pick(rnd, "", "0", "0", "1:1", "nobody listens")
			ticket := pick(rnd, "0", "0", "1", "2", "9000000000000000")
			lease := pick(rnd, "0", "1", "6000", "6000", "6000", "6000", "60000", "60000")
			ttl := pick(rnd, "60000", "60000", "3000")
			block := pick(rnd, "1", "1", "2", "5")
			undo := pick(rnd, "0", "60000") + ":" + pick(rnd, "0", "0", "0", "60000") + ":" + token
			forget := pick(rnd, "0", "60000") + ":0:0"
			dice := rnd.IntN(20)
			if turns && lease == "0" {
				lease = "1"
			}
			switch {
			case dice < 5 && turns:
				both(turnScript, turnKeys(k), owner, lease+":"+ticket+":"+channel)
			case dice < 5:
				both(enqueueScript, queueKeys(k), own, ttl+":"+lease+":"+ticket+":"+block+":"+channel)
			case dice < 7 && turns:
				both(turnReleaseScript, turnKeys(k), text("-"), undoing(forget+":"+owner+":"))
			case dice < 7 && block == "1":
				both(claimScript, []string{k.Lock}, own, ttl)
			case dice < 7:
				both(claimScript, ownedKeys(k), own, ttl+":"+block)
			case dice < 9 && turns:
				both(acquireScript, acquireKeys(k), numbered, "60000", "1", pick(rnd, "0", "0:"+block))
			case dice < 10 && turns:
				both(raiseScript, ownedKeys(k), numbered, "80000000000000"+pick(rnd, "10", "20"), "8000000000000030")
			case dice < 12 && turns:
				both(turnReleaseScript, turnKeys(k), numbered, undoing(
					undo+":"+pick(rnd, "", owner, string(owners[rnd.IntN(len(owners))]))+pick(rnd, "", ":")))
			case dice < 10:
				both(handoverScript, queueKeys(k), pick(rnd, own, numbered), undoing(undo))
			case dice < 11:
				both(extendScript, ownedKeys(k), own, "60000", fmt.Sprint(8000000000000000+rnd.IntN(12)))
			case dice < 12:
				both(releaseScript, releaseKeys(k), own, undoing(undo))
			case dice < 14 && turns:
				both(inspectScript, append(queueKeys(k), k.Turn()), pick(rnd, "", owner))
			case dice < 14:
				both(inspectScript, queueKeys(k))
			case dice < 15:
				names := queueKeys(k)
				if turns {
					names = append(names, k.Turn())
				}
				value, _ := s.Cmd(t, "GET", k.Lock).(string)
				value = pick(rnd, value, strings.TrimSuffix(value, "+"), "0000000000000001"+own, "hold:"+owner, owner)
				for range 1 + rnd.IntN(2) { // and once again
					both(forceScript, names, "60000:"+value)
				}
			case dice == 17 && s.Cmd(t, "GET", k.Lock) == "theirs": // another library releases the lock, or acquires it
				s.Cmd(t, "DEL", k.Lock)
				node.Delete(k.Lock)
				history = append(history, "they release")
			case dice == 17:
				taken := s.Cmd(t, "SET", k.Lock, "theirs", "NX", "PX", 60000) == "OK"
				if node.Take(k.Lock, "theirs", time.Minute) != taken {
					t.Fatalf("round %d: taken on the server: %v, after\n%s", round, taken, strings.Join(history, "\n"))
				}
				history = append(history, fmt.Sprint("they acquire: ", taken))
			case dice == 18:
				both(exportScript, pick(rnd, []string{k.Lock}, releaseKeys(k)), own, text(string(owners[rnd.IntN(len(owners))])),
					pick(rnd, "7000000000000000", fmt.Sprint(8000000000000000+rnd.IntN(12))), "60000:60000")
			case dice == 19:
				both(resumeScript, ownedKeys(k), own, text(string(owners[rnd.IntN(len(owners))])), "60000")
			default: // something is lost
				lost := pick(rnd, k.Lock, k.Lock, k.Turn(), k.Queue(), k.Wait())
				s.Cmd(t, "DEL", lost)
				node.Delete(lost)
				history = append(history, lost+" is lost")
			}
			if lease == "1" && dice < 5 { // dead from now on
				x.passes(2 * time.Millisecond)
			}
			if why := differ(t, n, node, k); why != "" {
				t.Fatalf("round %d: %s, after\n%s", round, why, strings.Join(history, "\n"))
			}
		}
		s.Cmd(t, "PUBLISH", "end", "")
		node.Execute(drivers.Command{"PUBLISH", "end", ""})
		want := ear.heard()
		var got []string
		for len(got) == 0 || got[len(got)-1] != "end " {
			got = append(got, <-messages)
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("round %d: the server sent %q, the node %q\n%s", round, want, got, strings.Join(history, "\n"))
		}
		told += len(want) - 1
		for _, key := range []string{k.Lock, k.Turn(), k.Queue(), k.Wait(), k.Fence()} {
			if want, got := s.Cmd(t, "EXISTS", key) == int64(1), slices.Contains(node.Keys(), key); want != got {
				t.Fatalf("round %d: %s exists on the server: %v, on the node: %v\n%s", round, key, want, got,
					strings.Join(history, "\n"))
			}
		}
		s.Cmd(t, "FLUSHALL")
		node.Flush()
	}
	if err := driver.Close(); err != nil {
		t.Fatal(err)
	}
	if _, more := <-messages; more {
		t.Error("a message after the end")
	}
	t.Logf("%d messages, replies: %v", told, seen)
	for _, want := range []string{
		"enqueue 1", "enqueue 0", "enqueue -1", "enqueue 2", "claim 1", "claim 0", "handover 0", "handover 1",
		"turn 0", "turn 1", "turn 2", "turn 3",
		"raise 0", "raise 1", "turnrelease 0", "turnrelease 1", "inspect 0", "inspect 1", "force 0", "force 1", "force 2",
		"export 0", "export 1", "export 3", "export 4", "resume -1", "resume 0", "resume 1",
	} {
		if seen[want] == 0 {
			t.Errorf("%q was never seen", want)
		}
	}
	if told < 50 {
		t.Errorf("only %d messages", told)
	}
}

// beside returns a server, a simulated node, and what draws what both have to do.
func beside(t *testing.T) (queue, *simnode.Node, *rand.Rand) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return newQueue(t), simnode.New(), rand.New(rand.NewPCG(seed, 0))
}

// differ says what is different in the states of the lock on the server and on the simulated node.
func differ(t *testing.T, n *server, node *simnode.Node, k script.Keys) string {
	t.Helper()
	inspect := inspectScript.Command(queueKeys(k))
	if want, got := send(t, n, inspectScript, inspect), node.Execute(inspect); !sameReply(inspectScript, want, got) {
		return fmt.Sprintf("the server has %q, the node %q", want, got)
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
	if got := slices.Sorted(slices.Values(node.Fields(k.Wait()))); !slices.Equal(want, got) {
		return fmt.Sprintf("the server knows %q, the node %q", want, got)
	}
	return ""
}

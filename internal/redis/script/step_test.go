package script_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/simnode"
)

// step sends one step for several locks to a server and to a simulated node, and compares the replies.
type step struct {
	t    *testing.T
	s    *redistest.Server
	n    *server
	node *simnode.Node
}

func newStep(t *testing.T) step {
	s, n := real(t)
	return step{t, s, n, simnode.New()}
}

// attempts are those of one owner for some keys.
func attempts(owner string, keys ...string) (all []script.Attempt) {
	for _, key := range keys {
		all = append(all, script.Attempt{Keys: script.KeysOf("p:", key), Token: owner, Node: 1, Label: "of " + owner})
	}
	return all
}

// whole is the step for all of some locks.
func whole(all []script.Attempt) script.Step {
	return script.Step{Attempts: all, Want: len(all), TTL: time.Minute}
}

func (s step) takes(step script.Step) script.Taken {
	s.t.Helper()
	cmd := step.Command()
	want := sendCommand(s.t, s.n, cmd)
	got := s.node.Execute(cmd.Words)
	w, err := step.Read(want)
	if err != nil {
		s.t.Fatal(err)
	}
	g, err := step.Read(got)
	if err != nil {
		s.t.Fatal(err)
	}
	if d := (w.Left - g.Left).Abs(); d < 10*time.Second {
		g.Left = w.Left
	}
	if !reflect.DeepEqual(w, g) {
		s.t.Fatalf("the server answers %v, the simulated node %v, to %q", want, got, cmd.Words[2:])
	}
	return w
}

// do sends a command to both.
func (s step) do(cmd script.Command) {
	s.t.Helper()
	cmd = alone(cmd)
	want := sendCommand(s.t, s.n, cmd)
	if got := s.node.Execute(cmd.Words); !reflect.DeepEqual(code(want), code(got)) {
		s.t.Fatalf("the server answers %v, the simulated node %v, to %q", want, got, cmd.Words[2:])
	}
}

// The simulated node and a server answer alike to step.lua, whatever has happened to the locks. As many locks are
// acquired as are wanted, or none.
func TestAllWantedOrNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := newStep(t)
	seen := map[script.Status]int{}
	gated := 0
	names := []string{"{x}1", "{x}2", "y", "z"}
	gates := []string{"{x}gate", "gate"}
	for range 60 {
		s.s.Cmd(t, "FLUSHALL")
		s.node.Flush()
		for _, a := range attempts("", append(gates, names...)...) { // ahead of the clocks of both
			s.s.Cmd(t, "SET", a.Fence(), script.CounterText(5e15))
			s.node.Put(a.Fence(), script.CounterText(5e15))
		}
		for range 8 {
			owner := string(rune('a' + rnd.IntN(3)))
			one := attempts(owner, names[rnd.IntN(len(names))])[0]
			switch rnd.IntN(6) {
			case 0:
				s.do(script.Release{Attempt: one}.Command())
			case 1:
				s.do(script.Release{Attempt: one, Tombstone: time.Minute, Notify: script.NotifyQueue}.Command())
			case 2:
				value := pick(rnd, "theirs", script.CounterText(7)+text(owner)+"+")
				s.s.Cmd(t, "SET", one.Lock, value)
				s.node.Put(one.Lock, value)
			case 3:
				gate := attempts("g", gates[rnd.IntN(len(gates))])[0]
				s.do([]script.Command{
					gate.Enqueue(time.Minute, 0, 0, ""), script.Release{Attempt: gate}.Command(),
				}[rnd.IntN(2)])
			}
			var keys []string
			for _, i := range rnd.Perm(len(names))[:2+rnd.IntN(3)] {
				keys = append(keys, names[i])
			}
			step := whole(attempts(owner, keys...))
			if rnd.IntN(2) == 0 {
				step.Want = 1 + rnd.IntN(len(keys))
			}
			for _, gate := range gates[:rnd.IntN(3)] {
				step.Gates = append(step.Gates, script.KeysOf("p:", gate))
			}
			before := map[string]any{}
			for _, a := range step.Attempts {
				before[a.Lock] = s.s.Cmd(t, "GET", a.Lock)
			}
			result := s.takes(step)
			seen[result.Status]++
			if result.Status == script.Waiting && result.Index >= len(keys) {
				gated++
			}
			for i, a := range step.Attempts {
				now := s.s.Cmd(t, "GET", a.Lock)
				if result.Status != script.Granted || result.Counters[i] == 0 {
					if now != before[a.Lock] {
						t.Fatalf("status %d, and %q became %q", result.Status, before[a.Lock], now)
					}
				} else if counter, has := counterOf(t, s.s, a.Lock); has != owner || counter != result.Counters[i] {
					t.Fatalf("granted %d to %s, and the lock has %q", result.Counters[i], owner, now)
				}
				if why := differ(t, s.n, s.node, a.Keys); why != "" {
					t.Fatal(why)
				}
			}
		}
	}
	t.Logf("statuses: %v, gates: %d", seen, gated)
	for _, status := range []script.Status{script.Granted, script.Waiting, script.Gone, script.Unread} {
		if seen[status] < 5 {
			t.Errorf("status %d was seen %d times", status, seen[status])
		}
	}
	if gated < 5 {
		t.Errorf("a gate was named %d times", gated)
	}
}

// The first free ones of the locks are taken, and no more than are wanted, also if the step is executed twice and
// something has changed in between.
func TestFirstFreeLocks(t *testing.T) {
	s := newStep(t)
	gate := attempts("g", "{x}gate")[0]
	for _, a := range append(attempts("", "{x}0"), gate) { // ahead of the clocks of both
		s.s.Cmd(t, "SET", a.Fence(), script.CounterText(5e15))
		s.node.Put(a.Fence(), script.CounterText(5e15))
	}
	names := []string{"{x}0", "{x}1", "{x}2", "{x}3"}
	step := script.Step{
		Attempts: attempts("a", names...), Want: 2, TTL: time.Minute, Gates: []script.Keys{gate.Keys},
	}
	takes := func(when string, step script.Step, want ...int) {
		t.Helper()
		got := s.takes(step)
		var taken []int
		for i, c := range got.Counters {
			if c > 0 {
				taken = append(taken, i)
			}
		}
		if got.Status != script.Granted || !slices.Equal(taken, want) {
			t.Errorf("%s: %+v, want the locks %v", when, got, want)
		}
	}
	refuses := func(when string, step script.Step, want script.Status, index int) {
		t.Helper()
		if got := s.takes(step); got.Status != want || got.Index != index {
			t.Errorf("%s: %+v, want status %d, lock %d", when, got, want, index)
		}
	}
	other, third := step, step
	other.Attempts, third.Attempts = attempts("b", names...), attempts("c", names...)
	third.Want = 1
	s.do(attempts("holder", "{x}1")[0].Enqueue(time.Minute, 0, 0, ""))
	takes("one lock is held", step, 0, 2)
	takes("delivered twice", step, 0, 2)
	refuses("one lock is free", other, script.Waiting, 0)
	s.do(gate.Enqueue(time.Minute, 0, 0, ""))
	takes("delivered twice, and the gate is held since", step, 0, 2)
	refuses("the gate is held", third, script.Waiting, 4)
	s.do(script.Release{Attempt: attempts("holder", "{x}1")[0]}.Command())
	takes("delivered twice, and a lock is free since", step, 0, 2)
	s.do(script.Release{Attempt: step.Attempts[0]}.Command())
	refuses("executed again after a lock was lost", step, script.Gone, 0)

	// The gate's holder has died, and its waiter has not noticed yet.
	waiter := attempts("w", "{x}gate")[0]
	s.do(waiter.Enqueue(time.Minute, script.MaxPositionTTL, 0, ""))
	s.s.Cmd(t, "DEL", gate.Lock)
	s.node.Delete(gate.Lock)
	refuses("somebody waits for the gate", third, script.Waiting, 4)
	s.s.Cmd(t, "DEL", gate.Wait(), gate.Queue())
	s.node.Delete(gate.Wait())
	s.node.Delete(gate.Queue())

	// The same with a lock that is free: the others are taken, if they are enough.
	s.do(attempts("x", "{x}0")[0].Enqueue(time.Minute, 0, 0, ""))
	s.do(attempts("y", "{x}0")[0].Enqueue(time.Minute, script.MaxPositionTTL, 0, ""))
	s.s.Cmd(t, "DEL", step.Attempts[0].Lock)
	s.node.Delete(step.Attempts[0].Lock)
	takes("somebody waits for the first lock", other, 1, 3)
	refuses("somebody waits for the only lock that is free", third, script.Unread, 0)
}

// A step takes locks that are free although tombstones of other attempts are there. It overtakes no waiter, and is not
// executed after its own release.
func TestStepAmongTombstones(t *testing.T) {
	s := newStep(t)
	all, others := attempts("a", "y", "z"), attempts("b", "y", "z")
	bury := func(a script.Attempt) {
		s.do(script.Release{Attempt: a, Tombstone: time.Minute, Notify: script.NotifyQueue}.Command())
	}
	for _, a := range all { // ahead of the clocks of both
		s.s.Cmd(t, "SET", a.Fence(), script.CounterText(5e15))
		s.node.Put(a.Fence(), script.CounterText(5e15))
	}
	free := func() {
		for _, a := range all {
			s.s.Cmd(t, "DEL", a.Lock)
			s.node.Delete(a.Lock)
		}
	}
	wantStatus := func(when string, want script.Status) {
		t.Helper()
		if got := s.takes(whole(all)).Status; got != want {
			t.Errorf("%s: status %d, want %d", when, got, want)
		}
		free()
	}
	bury(others[1])
	wantStatus("after the tombstone of another", script.Granted)
	s.takes(whole(all))
	s.do(attempts("c", "z")[0].Enqueue(time.Minute, script.MaxPositionTTL, 0, ""))
	free()
	wantStatus("while somebody waits", script.Unread)
	for _, a := range all {
		s.s.Cmd(t, "DEL", a.Wait())
		s.node.Delete(a.Wait())
	}
	bury(all[0])
	wantStatus("after its own tombstone", script.Unread)
}

// Two locks of one slot get different tokens, and each grant is above the last.
func TestAllHaveTokensOfTheirOwn(t *testing.T) {
	s := newStep(t)
	last := uint64(0)
	for i := range 10 {
		all := attempts(fmt.Sprint("owner", i), "{x}1", "{x}2", "{x}3")
		step := whole(all)
		cmd := step.Command()
		result, err := step.Read(sendCommand(t, s.n, cmd))
		if err != nil || result.Status != script.Granted {
			t.Fatalf("%v, %v", result, err)
		}
		for _, c := range result.Counters {
			if c <= last {
				t.Errorf("token %d after %d", c, last)
			}
			last = c
		}
		again, err := step.Read(sendCommand(t, s.n, cmd))
		if err != nil || !reflect.DeepEqual(again, result) {
			t.Errorf("a second delivery answers %v, %v", again, err)
		}
		for _, a := range all {
			sendCommand(t, s.n, script.Release{Attempt: a, Certify: last}.Command())
		}
	}
}

// A counter that was overwritten from outside gives no tokens to a step of several locks. Each lock by itself begins
// with a new counter.
func TestAllWithACounterThatIsNoNumber(t *testing.T) {
	for _, text := range []string{"nan", "inf", "9007199254740991", "1e30"} {
		s := newStep(t)
		all := attempts("a", "y", "z")
		s.s.Cmd(t, "SET", all[1].Fence(), text)
		got, err := whole(all).Read(sendCommand(t, s.n, whole(all).Command()))
		if err != nil || got.Status != script.Unread {
			t.Errorf("%s: %v, %v", text, got, err)
		}
		for _, a := range all {
			if v := s.s.Cmd(t, "GET", a.Lock); v != nil {
				t.Errorf("%s: %s is %q", text, a.Lock, v)
			}
		}
	}
}

package script_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/golocker/locker/internal/script"
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

func (s step) acquires(all []script.Attempt) script.All {
	s.t.Helper()
	cmd := script.AcquireAll(all, time.Minute)
	want := sendCommand(s.t, s.n, cmd)
	got := s.node.Execute(cmd.Words)
	w, err := script.ReadAll(want, len(all))
	if err != nil {
		s.t.Fatal(err)
	}
	g, err := script.ReadAll(got, len(all))
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

// The simulated node and a server answer alike to all.lua, whatever has happened to the locks. Nothing is acquired if
// one lock is not free.
func TestAllOrNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := newStep(t)
	seen := map[script.Status]int{}
	names := []string{"{x}1", "{x}2", "y", "z"}
	for range 50 {
		s.s.Cmd(t, "FLUSHALL")
		s.node.Flush()
		for _, a := range attempts("", names...) { // ahead of the clocks of both
			s.s.Cmd(t, "SET", a.Fence(), script.CounterText(5e15))
			s.node.Put(a.Fence(), script.CounterText(5e15))
		}
		for range 8 {
			owner := string(rune('a' + rnd.IntN(3)))
			one := attempts(owner, names[rnd.IntN(len(names))])[0]
			switch rnd.IntN(5) {
			case 0:
				s.do(script.Release{Attempt: one}.Command())
			case 1:
				s.do(script.Release{Attempt: one, Tombstone: time.Minute, Notify: script.NotifyQueue}.Command())
			case 2:
				value := pick(rnd, "theirs", script.CounterText(7)+text(owner)+"+")
				s.s.Cmd(t, "SET", one.Lock, value)
				s.node.Put(one.Lock, value)
			}
			var keys []string
			for _, i := range rnd.Perm(len(names))[:2+rnd.IntN(3)] {
				keys = append(keys, names[i])
			}
			all := attempts(owner, keys...)
			before := map[string]any{}
			for _, a := range all {
				before[a.Lock] = s.s.Cmd(t, "GET", a.Lock)
			}
			result := s.acquires(all)
			seen[result.Status]++
			for i, a := range all {
				now := s.s.Cmd(t, "GET", a.Lock)
				if result.Status != script.Granted && now != before[a.Lock] {
					t.Fatalf("status %d, and %q became %q", result.Status, before[a.Lock], now)
				}
				if result.Status == script.Granted {
					if counter, has := counterOf(t, s.s, a.Lock); has != owner || counter != result.Counters[i] {
						t.Fatalf("granted %d to %s, and the lock has %q", result.Counters[i], owner, now)
					}
				}
				if why := differ(t, s.n, s.node, a.Keys); why != "" {
					t.Fatal(why)
				}
			}
		}
	}
	t.Logf("statuses: %v", seen)
	for _, status := range []script.Status{script.Granted, script.Waiting, script.Gone, script.Unread} {
		if seen[status] < 5 {
			t.Errorf("status %d was seen %d times", status, seen[status])
		}
	}
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
		if got := s.acquires(all).Status; got != want {
			t.Errorf("%s: status %d, want %d", when, got, want)
		}
		free()
	}
	bury(others[1])
	wantStatus("after the tombstone of another", script.Granted)
	s.acquires(all)
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
		cmd := script.AcquireAll(all, time.Minute)
		result, err := script.ReadAll(sendCommand(t, s.n, cmd), len(all))
		if err != nil || result.Status != script.Granted {
			t.Fatalf("%v, %v", result, err)
		}
		for _, c := range result.Counters {
			if c <= last {
				t.Errorf("token %d after %d", c, last)
			}
			last = c
		}
		again, err := script.ReadAll(sendCommand(t, s.n, cmd), len(all))
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
		got, err := script.ReadAll(sendCommand(t, s.n, script.AcquireAll(all, time.Minute)), len(all))
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

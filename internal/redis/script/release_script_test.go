package script_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

func TestReleaseScript(t *testing.T) {
	s, n := real(t)
	acquire(t, n, "a", 10*time.Second)
	value := s.Cmd(t, "GET", "k")
	if r := send(t, n, releaseScript, releaseCommand("b", true)); r != int64(4) || s.Cmd(t, "GET", "k") != value {
		t.Errorf("another owner's release answered %v and left %v", r, s.Cmd(t, "GET", "k"))
	}
	for i, want := range []int64{1, 2, 2} { // delivered three times
		if r := send(t, n, releaseScript, releaseCommand("a", false)); r != want {
			t.Errorf("delivery %d answered %v, want %d", i+1, r, want)
		}
	}
	acquire(t, n, "c", 10*time.Second)
	value = s.Cmd(t, "GET", "k")
	if r := send(t, n, releaseScript, releaseCommand("a", false)); r != int64(2) || s.Cmd(t, "GET", "k") != value {
		t.Errorf("a fourth, after the next owner came, answered %v and left %v", r, s.Cmd(t, "GET", "k"))
	}
}

func TestReleaseCertifiesThatNoNewerTokenWasIssued(t *testing.T) {
	s, n := real(t)
	for _, newer := range []bool{false, true} {
		req := request("a")
		req.Fence = acquire(t, n, "a", 10*time.Second)
		if newer {
			put(t, s, "a", req.Fence+1)
		}
		if err := n.Release(t.Context(), req); errors.Is(err, locker.ErrNotHeld) != newer {
			t.Errorf("a newer token was issued: %v; release says %v", newer, err)
		}
		if s.Cmd(t, "EXISTS", "k") != int64(0) {
			t.Error("the lock is still there")
		}
	}
}

// All scripts that undo count as releases, those added later, too.
func TestEveryReleaseIsSentAtRest(t *testing.T) {
	for _, s := range []*script.Source{
		acquireScript, raiseScript, extendScript, releaseScript, enqueueScript, claimScript, handoverScript, turnScript,
		turnReleaseScript,
	} {
		if got, want := s.IsRelease(), strings.Contains(s.Text(), script.Expand("undo.lua")); got != want {
			t.Errorf("counts as a release: %v, want %v: %.60s", got, want, s.Text())
		}
	}
}

// A Redlock's node that is reached under the number of another one says so to the owner of its lock. It does nothing
// but release. Owner a has the lock as its node 3.
func TestScriptsTellNodesApart(t *testing.T) {
	x := newTurns(t)
	k := x.k
	ask := func(sc *script.Source, keys []string, args ...string) drivers.Reply {
		return send(t, x.n, sc, sc.Command(keys, args...))
	}
	acquire := func(o string) drivers.Reply { return ask(acquireScript, acquireKeys(k), text(o), "60000", "1", "0") }
	release := func(o, tomb string) drivers.Reply {
		return ask(releaseScript, releaseKeys(k), text(o), undoing(tomb+":0:0"))
	}
	counter, _ := acquire("a|3").(int64)
	if counter <= 0 {
		t.Fatal("not granted")
	}
	token, more := script.CounterText(uint64(counter)), script.CounterText(uint64(counter)+7)
	x.s.Cmd(t, "PEXPIRE", k.Lock, 30_000)
	extend := func(o string) drivers.Reply {
		return ask(extendScript, ownedKeys(k), text(o), "60000", token)
	}
	for what, tt := range map[string]struct{ got, want drivers.Reply }{
		"acquire by another number":              {acquire("a|12"), int64(-5)},
		"acquire by the same":                    {acquire("a|3"), counter},
		"acquire by the same with another label": {acquire("a|3|other"), counter},
		"raise by another number":                {ask(raiseScript, ownedKeys(k), text("a|1"), more), int64(3 * 32)},
		"extend by another number":               {extend("a|2"), int64(3 * 32)},
		"extend by a number that begins alike":   {extend("a|33"), int64(3 * 32)},
		"extend by an owner that begins alike":   {extend("aa|3"), int64(4)},
		"extend by another owner":                {extend("b|3"), int64(4)},
		"claim by another number":                {x.claim("a|1", "60000"), []drivers.Reply{int64(0)}},
		"release by another owner":               {release("b|3", "0"), int64(4)},
		"clean-up by another number, once":       {release("a|1", "60000"), int64(0)},
		"clean-up by another number, once again": {release("a|1", "60000"), int64(0)},
		"handover as a clean-up":                 {x.queue.release("a|1", "60000:0:0"), int64(0)},
		"turnrelease as a clean-up":              {x.release("a|1:60000:0:0:"), int64(0)},
	} {
		x.is(what, tt.got, tt.want)
	}
	x.value(token + "|a|3|")
	if f, left := x.s.Cmd(t, "GET", k.Fence()), x.s.PTTL(t, k.Lock); f != token || left > 30*time.Second {
		t.Errorf("the slot has counter %v, want %s, and the lock lives for %v", f, token, left)
	}
	x.is("release by another number", release("a|1", "0"), int64(3*32+1))
	x.held("")
	// The tombstone of the clean-up is the whole attempt's.
	x.is("an attempt that was cleaned up under another number", acquire("a|3"), int64(-1))
	x.exhume("a")
	acquire("a|3")
	x.is("release of what is newer, by another number", ask(releaseScript, releaseKeys(k), text("a|1"), "0:0:"+token),
		int64(3*32+3))
	acquire("a|3")
	x.is("handover by another number", x.queue.release("a|1", "0:0:0"), int64(3*32+1))
	acquire("a|3")
	x.is("turnrelease by another number", x.release("a|1:0:0:0:"), int64(3*32+1))
	// A release that was executed under one number says so again to that one only.
	acquire("b|1")
	for i, tt := range []struct {
		owner string
		want  int64
	}{{"b|1", 1}, {"b|1", 2}, {"b|2", 0}} {
		x.is("release "+string(rune('1'+i))+", by "+tt.owner, release(tt.owner, "60000"), tt.want)
	}
}

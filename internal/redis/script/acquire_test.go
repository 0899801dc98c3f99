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

func TestAcquireScriptIsIdempotent(t *testing.T) {
	s, n := real(t)
	fence := acquire(t, n, "a", 10*time.Second)
	s.Cmd(t, "PEXPIRE", "k", 5000)
	if again := acquire(t, n, "a", 10*time.Second); again != fence {
		t.Errorf("the second delivery got token %d, the first %d", again, fence)
	}
	if left := s.PTTL(t, "k"); left > 5*time.Second {
		t.Errorf("the second delivery prolonged the lock to %v", left)
	}
	_, err := n.Acquire(t.Context(), request("b"))
	var held *locker.HeldError
	if !errors.As(err, &held) || held.Remaining <= 0 || held.Remaining > 5*time.Second {
		t.Errorf("another owner got %v", err)
	}
}

func TestAttemptThatLandsAfterItsReleaseSetsNothing(t *testing.T) {
	s, n := real(t)
	if r := send(t, n, releaseScript, releaseCommand("a", false)); r != int64(0) {
		t.Errorf("release of nothing answered %v", r)
	}
	if a := acquired(t, send(t, n, acquireScript, acquireCommand("a", 1, 0))); a.Status != script.GivenUp {
		t.Errorf("the late attempt got %v", a)
	}
	if got := s.Keys(t, "k"); len(got) != 0 {
		t.Errorf("it left %q", got)
	}
	if _, err := n.Acquire(t.Context(), request("b")); err != nil {
		t.Errorf("the tombstone of one attempt stops another: %v", err)
	}
	if left := s.PTTL(t, script.KeysOf("", "k").Wait()); left <= 0 || left > 10*time.Second+tombstoneLife {
		t.Errorf("the tombstone lives for %v", left)
	}
}

// The value of a lock has the counter, the owner, the number of the node and the label, and the reply to another owner
// shows what people need of it.
func TestValueOfALock(t *testing.T) {
	x := newQueue(t)
	a := script.Attempt{Keys: x.k, Token: "0123456789abcdef", Node: 12, Label: "a host/ä"}
	v := acquired(t, send(t, x.n, acquireScript, a.Acquire(10*time.Second, 1, 0).Usual.Alone().Words))
	want := script.CounterText(v.Counter) + "|0123456789abcdef|12|a host/ä"
	x.value(want)
	x.is("another owner", send(t, x.n, acquireScript, acquireCommand("b", 1, 0)).([]drivers.Reply)[3:],
		[]drivers.Reply{"01234567", "a host/ä"})
	if r := x.enqueue("b", "10000:0:0:1:"); len(r) != 6 || r[5] != "a host/ä" {
		t.Errorf("one that does not wait is told %v", r)
	}
	if r := x.enqueue("b", usualArgs); len(r) != 6 || r[5] != "a host/ä" {
		t.Errorf("one that waits is told %v", r)
	}
	x.value(want + "+")
	if r := (turns{x}).ask("w", forTurn); len(r) != 6 || r[5] != "a host/ä" {
		t.Errorf("one that waits for the turn is told %v", r)
	}
	if r := x.enqueue("b", usualArgs); r[5] != "a host/ä" {
		t.Errorf("of a lock with a mark, one that waits is told %v", r)
	}
	x.is("another owner", send(t, x.n, acquireScript, acquireCommand("c", 1, 0)).([]drivers.Reply)[3:],
		[]drivers.Reply{"01234567", "a host/ä"})
	if v, ours := script.ReadValue(want + "+"); !ours || v.Label != a.Label || v.Node != 12 || v.Token != a.Token {
		t.Errorf("the value was read as %+v", v)
	}
	// What is not ours has no label.
	for _, value := range []string{
		"theirs", "hold:a", strings.Repeat("9", 17) + "|a|1|", "0000000000000001|a|1", "0000000000000001|a|1|b|c",
	} {
		x.s.Cmd(t, "SET", "k", value, "PX", 10000)
		x.is(value, send(t, x.n, acquireScript, acquireCommand("c", 1, 0)).([]drivers.Reply)[3:],
			[]drivers.Reply{value[:min(8, len(value))], ""})
		if _, ours := script.ReadValue(value); ours {
			t.Errorf("%q counts as the value of a lock", value)
		}
	}
}

// Locks of other libraries on the same key exclude ours, and ours theirs.
func TestOtherLibrariesLocksCount(t *testing.T) {
	s, n := real(t)
	s.Cmd(t, "SET", "k", "theirs", "NX", "PX", 10000)
	if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrHeld) {
		t.Error(err)
	}
	s.Cmd(t, "DEL", "k")
	acquire(t, n, "a", 10*time.Second)
	if got := s.Cmd(t, "SET", "k", "theirs", "NX", "PX", 10000); got != nil {
		t.Errorf("SET NX answered %v on a held lock", got)
	}
}

// An attempt is compared with the value of a lock, and with nothing that only begins or ends like one.
func TestOtherValuesAreNotOurs(t *testing.T) {
	s, n := real(t)
	for _, value := range []string{
		"a", "a|1", "|a|1|", "1|a|1|", "0000000000000001|ab|1|", "0000000000000001|a", "hold:a",
	} {
		s.Cmd(t, "SET", "k", value, "PX", 60_000)
		if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: acquire says %v", value, err)
		}
		if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: extend says %v", value, err)
		}
		if err := n.Release(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: release says %v", value, err)
		}
		if v := s.Cmd(t, "GET", "k"); v != value {
			t.Errorf("%s: left is %v", value, v)
		}
	}
}

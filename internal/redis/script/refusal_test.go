package script_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
)

func TestWhatIsNotALockIsLeftAlone(t *testing.T) {
	s, n := real(t)
	for name, set := range map[string][]any{
		"hash": {"HSET", "k", "f", "v"}, "string without expiry": {"SET", "k", "v"}, "list": {"RPUSH", "k", "v"},
	} {
		s.Cmd(t, "DEL", "k")
		s.Cmd(t, set...)
		before := fmt.Sprintf("%q", s.Cmd(t, "DUMP", "k"))
		_, err := n.Acquire(t.Context(), request("a"))
		if !errors.Is(err, locker.ErrForeignKey) || errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: acquire says %v", name, err)
		}
		if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: extend says %v", name, err)
		}
		if err := n.Release(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: release says %v", name, err)
		}
		if after := fmt.Sprintf("%q", s.Cmd(t, "DUMP", "k")); after != before {
			t.Errorf("%s was changed", name)
		}
	}
}

// A value whose shape a later version may have is a lock of somebody else, and stays as it is.
func TestValuesOfOtherVersionsAreLeftAlone(t *testing.T) {
	s, n := real(t)
	for _, value := range []string{
		"v2|0000000000000001|a|1|label", "00000000000000001|a|1|label", "0000000000000001|a|label", "{\"owner\":\"a\"}",
	} {
		s.Cmd(t, "SET", "k", value, "PX", 600000)
		if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: acquire says %v", value, err)
		}
		if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: extend says %v", value, err)
		}
		if err := n.Verify(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: verify says %v", value, err)
		}
		if err := n.Release(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: release says %v", value, err)
		}
		if left := s.Cmd(t, "GET", "k"); left != value {
			t.Errorf("%s has become %v", value, left)
		}
	}
}

// A refusal from inside of a script leaves no doubt that nothing was set, however the server words it.
func TestRefusalInAScriptLeavesNoDoubt(t *testing.T) {
	s, n := real(t)
	for code, refuse := range map[string][]any{
		"OOM":      {"CONFIG", "SET", "maxmemory", 1},
		"READONLY": {"REPLICAOF", "127.0.0.1", 1},
	} {
		s.Cmd(t, refuse...)
		req := request("a")
		ready := make(chan *node.Call, 1)
		var c node.Call
		n.StartAcquire(&c, ready, 0, &req, node.CounterOptions{Quantum: 1})
		v := (<-ready).Vote()
		var e drivers.ServerError
		if !errors.As(v.Err, &e) || e.Code() != code || v.Doubtful {
			t.Errorf("%s: %+v", code, v)
		}
		s.Cmd(t, "CONFIG", "SET", "maxmemory", 0)
		s.Cmd(t, "REPLICAOF", "NO", "ONE")
	}
}

func TestOutOfMemory(t *testing.T) {
	s, n := real(t)
	fence := acquire(t, n, "a", 10*time.Second)
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	req := request("b")
	req.Key = "other"
	var e drivers.ServerError
	if _, err := n.Acquire(t.Context(), req); !errors.As(err, &e) || e.Code() != "OOM" {
		t.Errorf("acquire says %v", err)
	}
	if got := s.Keys(t, "*other*"); len(got) != 0 {
		t.Errorf("a refused acquisition left %q", got)
	}
	held := request("a")
	held.Fence = fence
	if err := n.Extend(t.Context(), held); err != nil {
		t.Errorf("extend: %v", err)
	}
	if err := n.Release(t.Context(), held); err != nil {
		t.Errorf("release: %v", err)
	}
}

func TestScriptFlushIsTransparent(t *testing.T) {
	s, n := real(t)
	for range 3 {
		fence := acquire(t, n, "a", 10*time.Second)
		s.Cmd(t, "SCRIPT", "FLUSH")
		req := request("a")
		req.Fence = fence
		if err := n.Extend(t.Context(), req); err != nil {
			t.Error(err)
		}
		s.Cmd(t, "SCRIPT", "FLUSH")
		if err := n.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		s.Cmd(t, "SCRIPT", "FLUSH")
	}
}

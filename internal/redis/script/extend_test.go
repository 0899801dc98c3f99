package script_test

import (
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

func TestExtendScript(t *testing.T) {
	s, n := real(t)
	req := backend.Request{Key: "k", Token: "a", TTL: 20 * time.Second}
	if err := n.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("without a lock: %v", err)
	}
	if got := s.Keys(t, "*"); len(got) != 0 {
		t.Errorf("it created %q", got)
	}
	req.Fence = acquire(t, n, "a", 10*time.Second)
	if err := n.Extend(t.Context(), req); err != nil {
		t.Error(err)
	}
	if left := s.PTTL(t, "k"); left <= 19*time.Second {
		t.Errorf("%v left after an extension to 20s", left)
	}
	req.TTL = time.Second
	if err := n.Extend(t.Context(), req); err != nil {
		t.Error(err)
	}
	if left := s.PTTL(t, "k"); left <= 15*time.Second {
		t.Errorf("an extension to 1s shortened 20s to %v", left)
	}
	other := req
	other.Token = "b"
	if err := n.Extend(t.Context(), other); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("another owner: %v", err)
	}

	counter := script.KeysOf("", "k").Fence()
	s.Cmd(t, "DEL", counter)
	if err := n.Extend(t.Context(), req); err != nil || s.Cmd(t, "EXISTS", counter) != int64(0) {
		t.Errorf("%v; the lock's own counter is enough, but the one of the slot is %v", err, s.Cmd(t, "GET", counter))
	}
	put(t, s, "a", req.Fence-1)
	if err := n.Extend(t.Context(), req); err != nil || s.Cmd(t, "GET", counter) != script.CounterText(req.Fence) {
		t.Errorf("%v; the lock was raised to %d, but the counter of the slot is %v", err, req.Fence, s.Cmd(t, "GET", counter))
	}
	if got, _ := counterOf(t, s, "k"); got != req.Fence {
		t.Errorf("an extension raised the lock to %d, want %d", got, req.Fence)
	}
	put(t, s, "a", req.Fence+1)
	if err := n.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("after a newer token was issued: %v", err)
	}
}

func TestRaiseScript(t *testing.T) {
	s, n := real(t)
	k := script.KeysOf("", "k")
	raise := func(token string, to uint64) drivers.Reply {
		t.Helper()
		return send(t, n, raiseScript, raiseScript.Command(ownedKeys(k), text(token), script.CounterText(to)))
	}
	if r := raise("a", 5); r != int64(0) || len(s.Keys(t, "*")) != 0 {
		t.Errorf("without a lock: %v, and it left %q", r, s.Keys(t, "*"))
	}
	fence := acquire(t, n, "a", 10*time.Second)
	s.Cmd(t, "PEXPIRE", "k", 5000)
	for _, step := range []struct {
		owner string
		to    uint64
		want  int64
		after uint64
	}{
		{"b", fence + 5, 0, fence}, // not the owner
		{"a", fence - 1, 0, fence},
		{"a", fence, 1, fence},
		{"a", fence + 5, 1, fence + 5},
		{"a", fence + 5, 1, fence + 5}, // delivered again
		{"a", fence + 4, 0, fence + 5},
	} {
		r, shared := raise(step.owner, step.to), s.Cmd(t, "GET", k.Fence())
		own, _ := counterOf(t, s, "k")
		if r != step.want || own != step.after || shared != script.CounterText(step.after) {
			t.Errorf("%s raises to %d over %d: answered %v, the lock has %d, the slot %v; want %d, %d",
				step.owner, step.to, fence, r, own, shared, step.want, step.after)
		}
	}
	if left := s.PTTL(t, "k"); left > 5*time.Second || left < 0 {
		t.Errorf("a raise has made the lock live for %v", left)
	}
}

// The counter of the slot is raised before the lock's. So a lock never has a counter that others may be granted, too.
func TestRaiseThatIsRefusedLeavesTheLockAsItWas(t *testing.T) {
	s, n := real(t)
	k := script.KeysOf("", "k")
	fence := acquire(t, n, "a", 10*time.Second)
	value := s.Cmd(t, "GET", "k")
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	r := send(t, n, raiseScript, raiseScript.Command(ownedKeys(k), text("a"), script.CounterText(fence+5)))
	if e, ok := r.(drivers.ServerError); !ok || e.Code() != "OOM" {
		t.Errorf("a raise answers %v", r)
	}
	if now := s.Cmd(t, "GET", "k"); now != value {
		t.Errorf("the lock is %v, was %v", now, value)
	}
	req := request("a")
	req.Fence, req.TTL = fence+5, 20*time.Second
	if err := n.Extend(t.Context(), req); err != nil {
		t.Errorf("an extension: %v", err)
	}
	if now := s.Cmd(t, "GET", "k"); now != value {
		t.Errorf("after an extension, the lock is %v, was %v", now, value)
	}
	if left := s.PTTL(t, "k"); left < 15*time.Second {
		t.Errorf("an extension left it a life of %v", left)
	}
	if got := s.Cmd(t, "GET", k.Fence()); got != script.CounterText(fence) {
		t.Errorf("the counter of the slot is %v, was %d", got, fence)
	}
	// Where the counter of the slot is high enough, the lock's own is still refused.
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	s.Cmd(t, "SET", k.Fence(), script.CounterText(fence+50))
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	if err := n.Extend(t.Context(), req); err != nil || s.Cmd(t, "GET", "k") != value {
		t.Errorf("an extension: %v; the lock is %v, was %v", err, s.Cmd(t, "GET", "k"), value)
	}
}

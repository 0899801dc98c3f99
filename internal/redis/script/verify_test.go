package script_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

func TestVerifyScript(t *testing.T) {
	s, n := real(t)
	const token = 7
	k := script.KeysOf("", "k")
	for _, tt := range []struct {
		what string
		set  []any // after DEL
		want int64
	}{
		{"free", nil, 0},
		{"mine", []any{"SET", "k", script.CounterText(token) + text("a"), "PX", 60000}, 1},
		{"mine, and somebody waits", []any{"SET", "k", script.CounterText(token) + text("a") + "+", "PX", 60000}, 1},
		{"mine, not raised", []any{"SET", "k", script.CounterText(token-1) + text("a"), "PX", 60000}, 1},
		{"mine, granted once more", []any{"SET", "k", script.CounterText(token+1) + text("a"), "PX", 60000}, 3},
		{"mine as another node", []any{"SET", "k", script.CounterText(token) + text("a|2"), "PX", 60000}, 64},
		{"mine, and kept", []any{"SET", "k", "hold:a", "PX", 60000}, 0},
		{"somebody else's", []any{"SET", "k", script.CounterText(token) + text("b"), "PX", 60000}, 4},
		{"another library's", []any{"SET", "k", "a", "PX", 60000}, 4},
		{"not a string", []any{"RPUSH", "k", "a"}, 4},
	} {
		s.Cmd(t, "DEL", "k")
		if tt.set != nil {
			s.Cmd(t, tt.set...)
		}
		s.Cmd(t, "SAVE")
		cmd := verifyScript.Command(releaseKeys(k), script.CounterText(token)+text("a"))
		if got := send(t, n, verifyScript, cmd); got != tt.want {
			t.Errorf("%s: got %v, want %d", tt.what, got, tt.want)
		}
		if info := fmt.Sprint(s.Cmd(t, "INFO", "persistence")); !strings.Contains(info, "rdb_changes_since_last_save:0\r") {
			t.Errorf("%s: it has written something", tt.what)
		}
	}
}

// A server that could not write gives no certificate: it may be a replica that has not been sent everything, or a
// master that was replaced. One that is out of memory does.
func TestVerifyAsksAMaster(t *testing.T) {
	s, n := real(t)
	req := backend.Request{Key: "k", Token: "a", TTL: time.Minute}
	req.Fence = acquire(t, n, "a", time.Minute)
	s.Cmd(t, "CONFIG", "SET", "maxmemory", 1)
	if err := n.Verify(t.Context(), req); err != nil {
		t.Errorf("out of memory: %v", err)
	}
	s.Cmd(t, "CONFIG", "SET", "maxmemory", 0)
	for code, refuse := range map[string][2][]any{
		"NOREPLICAS": {{"CONFIG", "SET", "min-replicas-to-write", 1}, {"CONFIG", "SET", "min-replicas-to-write", 0}},
		"READONLY":   {{"REPLICAOF", "127.0.0.1", 1}, {"REPLICAOF", "NO", "ONE"}},
	} {
		s.Cmd(t, refuse[0]...)
		_, writes := n.Acquire(t.Context(), backend.Request{Key: code, Token: "a", TTL: time.Minute})
		err := n.Verify(t.Context(), req)
		var e drivers.ServerError
		if writes == nil { // Redis 6.0 has scripts write without the replicas
			e = drivers.ServerError(code)
		} else if !errors.As(err, &e) || !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("%s: %v", code, err)
		}
		if e.Code() != code {
			t.Errorf("got %v, want %s", err, code)
		}
		s.Cmd(t, refuse[1]...)
		if err := n.Verify(t.Context(), req); err != nil {
			t.Errorf("after %s: %v", code, err)
		}
	}
}

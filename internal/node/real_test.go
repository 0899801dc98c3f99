package node

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigo"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// real returns a Node on a real server.
func real(t *testing.T, args ...string) (*redistest.Server, *Node) {
	t.Helper()
	s := redistest.Start(t, args...)
	pool := &redis.Pool{MaxIdle: 4, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr()) }}
	n := New(redigo.New(pool), Options{Name: s.Addr(), Timeout: timeout})
	t.Cleanup(func() {
		_ = n.Close()
		_ = pool.Close()
	})
	return s, n
}

func acquire(t *testing.T, n *Node, token string, ttl time.Duration) uint64 {
	t.Helper()
	g, err := n.Acquire(t.Context(), locker.Request{Key: "k", Token: token, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return g.Fence
}

func pttl(t *testing.T, s *redistest.Server, key string) time.Duration {
	t.Helper()
	return time.Duration(s.Cmd(t, "PTTL", key).(int64)) * time.Millisecond
}

// send runs one script as it stands, without the node's care for unknown outcomes.
func send(t *testing.T, n *Node, cmd script.Command) drivers.Reply {
	t.Helper()
	reply, err := n.do(t.Context(), cmd, timeout, nil)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// attempt is one on the lock that is kept under a name.
func attempt(lock, token string) script.Attempt {
	return script.Attempt{Keys: script.KeysOf(lock), Token: token}
}

// kinds are the scripts by their digest and by their text.
var kinds = kindsOf(map[string]script.Command{
	"acquire": attempt("", "").Acquire(0, 1, 0), "raise": attempt("", "").Raise(0), "extend": attempt("", "").Extend(0, 0),
	"release":     script.Release{}.Command(),
	"handover":    script.Release{Notify: script.NotifyQueue}.Command(),
	"turnrelease": script.Release{Notify: script.NotifyTurn}.Command(),
	"enqueue":     attempt("", "").Enqueue(0, 0, 0, ""), "claim": attempt("", "").Claim(0), "turn": script.Keys{}.Ask("", 0, 0, ""),
	"inspect": script.Keys{}.Inspect(), "force": script.Keys{}.Force("", 0, false),
})

func kindsOf(cmds map[string]script.Command) map[string]string {
	kinds := map[string]string{}
	for name, cmd := range cmds {
		kinds[cmd.Words[1]], kinds[cmd.Source] = name, name
	}
	return kinds
}

// kindOf names the script that cmd calls, or else the command.
func kindOf(cmd drivers.Command) string {
	if len(cmd) > 1 && kinds[cmd[1]] != "" {
		return kinds[cmd[1]]
	}
	return cmd[0]
}

package node

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/wire"
)

// real returns a Node on a real server.
func real(t *testing.T, args ...string) (*redistest.Server, *Node) {
	t.Helper()
	s := redistest.Start(t, args...)
	pool := &redis.Pool{MaxIdle: 4, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr()) }}
	n := New(redigodriver.New(pool), Options{Name: s.Addr(), Timeout: timeout})
	t.Cleanup(func() {
		_ = n.Close()
		_ = pool.Close()
	})
	return s, n
}

func acquire(t *testing.T, n *Node, token string, ttl time.Duration) uint64 {
	t.Helper()
	g, err := n.Acquire(t.Context(), backend.Request{Key: "k", Token: token, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return g.Fence
}

// send runs one script as it stands, without the node's care for unknown outcomes.
func send(t *testing.T, n *Node, cmd script.Command) drivers.Reply {
	t.Helper()
	reply, err := n.pipeline.Do(t.Context(), cmd, timeout, nil)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// attempt is one on the lock that is kept under a name.
func attempt(lock, token string) script.Attempt {
	return script.Attempt{Keys: script.KeysOf("", lock), Token: token, Node: 1}
}

// kindOf names the script that cmd calls, or else the command.
func kindOf(cmd drivers.Command) string {
	if steps := wire.Steps(cmd); len(steps) > 0 {
		return steps[0].Script
	}
	return cmd[0]
}

package faults

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// command is one command to a server.
type command = []any

// refusing makes servers refuse commands. It sends the commands of set, and after d those of unset.
func refusing(set, unset []command) func(b *testbed, nodes []int, d time.Duration) {
	return func(b *testbed, nodes []int, d time.Duration) {
		each(nodes, func(n int) {
			for _, cmd := range set {
				b.do(n, cmd...)
			}
			b.injected.Add(1)
		})
		time.Sleep(d)
		each(nodes, func(n int) {
			for _, cmd := range unset {
				b.do(n, cmd...)
			}
		})
	}
}

var (
	killNormal = command{"CLIENT", "KILL", "TYPE", "normal", "USER", "default", "SKIPME", "yes"} // spares witnesses
	killPubsub = command{"CLIENT", "KILL", "TYPE", "pubsub"}
)

var refusalKinds = []kind{
	{
		name: "OOM", refusal: "OOM", most: 2, what: "maxmemory 1 with noeviction",
		inject: refusing([]command{{"CONFIG", "SET", "maxmemory", 1}}, []command{{"CONFIG", "SET", "maxmemory", 0}}),
	},
	{
		name: "READONLY", refusal: "READONLY", most: 2,
		what:   "the server is made a replica of nobody, keeps its data, and is promoted again",
		inject: refusing([]command{{"REPLICAOF", "127.0.0.1", 1}}, []command{{"REPLICAOF", "NO", "ONE"}}),
	},
	{
		name: "NOREPLICAS", refusal: "NOREPLICAS", most: 2, what: "min-replicas-to-write 1, without a replica",
		inject: refusing([]command{{"CONFIG", "SET", "min-replicas-to-write", 1}},
			[]command{{"CONFIG", "SET", "min-replicas-to-write", 0}}),
	},
	{name: "MISCONF", refusal: "MISCONF", most: 2, what: "a snapshot fails, so that writes are refused",
		inject: misconf},
	{
		name: "NOPERM on EVALSHA", refusal: "NOPERM", most: 2, what: "the user may not run scripts",
		inject: refusing([]command{{"ACL", "SETUSER", "default", "-evalsha", "-eval"}},
			[]command{{"ACL", "SETUSER", "default", "+@all"}}),
	},
	{
		name: "NOPERM on PUBLISH", most: 2, what: "the user may not publish, nor may scripts",
		inject: refusing([]command{{"ACL", "SETUSER", "default", "-publish"}},
			[]command{{"ACL", "SETUSER", "default", "+@all"}}),
	},
	{
		name: "NOAUTH", refusal: "NOAUTH", most: 2, what: "a password is set, and connections are closed",
		inject: refusing([]command{{"CONFIG", "SET", "requirepass", "secret"}, killNormal, killPubsub},
			[]command{{"CONFIG", "SET", "requirepass", ""}}),
	},
	{
		name: "WRONGPASS", refusal: "WRONGPASS", most: 2, password: true,
		what: "the password is changed, and connections are closed",
		inject: refusing([]command{{"CONFIG", "SET", "requirepass", "another"}, killNormal, killPubsub},
			[]command{{"CONFIG", "SET", "requirepass", ""}}),
	},
	{
		name: "maxclients", most: 2, what: "connections are closed, and new ones are too many",
		inject: refusing([]command{{"CONFIG", "SET", "maxclients", 1}, killNormal, killPubsub},
			[]command{{"CONFIG", "SET", "maxclients", 1000}}),
	},
	{name: "CLIENT KILL", what: "connections are closed every few ms",
		inject: repeatedly(func(b *testbed, n int) { b.do(n, killNormal...) })},
	{name: "CLIENT KILL of subscriptions", what: "the same for those that listen",
		inject: repeatedly(func(b *testbed, n int) { b.do(n, killPubsub...) })},
	{
		name: "CLIENT PAUSE", most: 2, what: "the server answers nobody",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			refusing([]command{{"CLIENT", "PAUSE", d.Milliseconds()}}, nil)(b, nodes, d)
		},
	},
	{
		name: "timeout", clients: true,
		what:   "the server closes connections that were idle for a second, many of which are needed again then",
		inject: idle,
	},
	{name: "BUSY", refusal: "BUSY", what: "a script runs for too long, and is killed", inject: busy},
}

func misconf(b *testbed, nodes []int, d time.Duration) {
	in := func(n int) string { return filepath.Join(b.servers[n].Dir(), "dump.rdb") }
	each(nodes, func(n int) {
		// A directory in the place of the snapshot is the only obstacle that also stops root.
		if err := os.MkdirAll(filepath.Join(in(n), "taken"), 0o700); err != nil {
			b.Error(err)
		}
		b.do(n, "CONFIG", "SET", "save", "3600 1000000")
		b.do(n, "BGSAVE")
		b.eventually("the snapshot fails", func() bool {
			info, _ := redis.String(b.do(n, "INFO", "persistence"), nil)
			return field(info, "rdb_last_bgsave_status") == "err"
		})
		b.injected.Add(1)
	})
	time.Sleep(d)
	each(nodes, func(n int) {
		b.do(n, "CONFIG", "SET", "save", "")
		_ = os.RemoveAll(in(n))
	})
}

func busy(b *testbed, nodes []int, d time.Duration) {
	each(nodes, func(n int) {
		b.do(n, "CONFIG", "SET", "busy-reply-threshold", 5)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = b.servers[n].Do("EVAL", "while true do end", 0)
		}()
		time.Sleep(min(d, 400*time.Millisecond)) // each of them occupies a processor
		b.injected.Add(1)
		for { // the script may not have begun yet
			select {
			case <-ended:
				return
			default:
				_, _ = b.try(n, "SCRIPT", "KILL")
				pause(time.Millisecond, 5*time.Millisecond)
			}
		}
	})
}

// idle makes the nodes close idle connections. Clients that do nothing have some, and other clients have kept some from
// a moment when they needed more.
func idle(b *testbed, nodes []int, d time.Duration) {
	each(nodes, func(n int) { b.do(n, "CONFIG", "SET", "timeout", 1) })
	crowd := func() {
		apart(b, b.players(), nodes, 100*time.Millisecond, eitherHold)
	}
	crowd()
	thawed := make(chan struct{})
	go func() {
		defer close(thawed)
		b.freeze(b.children, 2200*time.Millisecond+d/2)
	}()
	each(nodes, func(n int) {
		idle, closed := map[string]bool{}, 0
		b.eventually("a connection that was idle is closed", func() bool {
			list, _ := redis.String(b.do(n, "CLIENT", "LIST"), nil)
			still := map[string]bool{}
			for line := range strings.Lines(list) {
				id, rest, _ := strings.Cut(line, " ")
				still[id] = true
				// The flag N excludes connections that subscribe.
				if strings.Contains(rest, " flags=N ") && !strings.Contains(rest, " idle=0 ") {
					idle[id] = true
				}
			}
			for id := range idle {
				if !still[id] {
					delete(idle, id)
					closed++
				}
			}
			select {
			case <-thawed:
				return closed > 0
			default:
				return false
			}
		})
		b.injected.Add(int64(closed))
	})
	<-thawed
	crowd()
	each(nodes, func(n int) { b.do(n, "CONFIG", "SET", "timeout", 0) })
}

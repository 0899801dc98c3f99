package faults

import (
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/internal/testing/redistest"
)

// repeatedly calls f for all nodes, again and again for the time d.
func repeatedly(f func(b *testbed, node int)) func(b *testbed, nodes []int, d time.Duration) {
	return func(b *testbed, nodes []int, d time.Duration) {
		for end := time.Now().Add(d); ; pause(10*time.Millisecond, 60*time.Millisecond) {
			each(nodes, func(n int) { f(b, n) })
			b.injected.Add(int64(len(nodes)))
			if time.Now().After(end) {
				return
			}
		}
	}
}

// deleting deletes the keys that match pattern. The server then answers nothing for the time silent. If that is long
// enough, tokens keep their order.
func deleting(pattern string, silent time.Duration) func(b *testbed, node int) {
	return func(b *testbed, node int) {
		keys, _ := redis.Strings(b.do(node, "KEYS", pattern), nil)
		cmds := [][]any{{"DEL", "nothing"}}
		for _, key := range keys {
			cmds[0] = append(cmds[0], key)
		}
		if silent > 0 {
			cmds = append(cmds, []any{"CLIENT", "PAUSE", silent.Milliseconds(), "ALL"})
		}
		b.atomically(node, cmds...)
	}
}

// deletingQueues deletes what waits, and leaves tombstones, which are in the same hashes.
func deletingQueues(b *testbed, node int) {
	keys, _ := redis.Strings(b.do(node, "KEYS", "*:lock[qwt]*"), nil)
	args := []any{"EVAL", `for _, key in ipairs(KEYS) do
		if string.find(key, ':lockwait', 1, true) then
			for _, field in ipairs(redis.call('HKEYS', key)) do
				if string.sub(field, 1, 1) ~= '!' then redis.call('HDEL', key, field) end
			end
		else
			redis.call('DEL', key)
		end
	end`, len(keys)}
	for _, key := range keys {
		args = append(args, key)
	}
	b.do(node, args...)
}

var dataKinds = []kind{
	{
		name: "SCRIPT FLUSH", what: "scripts are forgotten, every few ms",
		inject: repeatedly(func(b *testbed, n int) { b.do(n, "SCRIPT", "FLUSH") }),
	},
	{
		name: "FLUSHALL", forgets: true, what: "the data is deleted, and the server silent for 150 ms",
		inject: repeatedly(func(b *testbed, n int) {
			b.atomically(n, []any{"FLUSHALL"}, []any{"CLIENT", "PAUSE", away.Milliseconds(), "ALL"})
		}),
	},
	{
		name: "FLUSHALL, at once", forgets: true, instantly: true, what: "the data is deleted",
		inject: repeatedly(func(b *testbed, n int) { b.do(n, "FLUSHALL") }),
	},
	{
		name: "DEL of locks", forgets: true, what: "locks are deleted, and their counters left",
		inject: repeatedly(deleting("lock:*", 0)),
	},
	{
		name: "DEL of counters", what: "counters are deleted, locks left, and the server silent for 150 ms",
		inject: repeatedly(deleting("*}}"+prefix+"fence", away)),
	},
	{
		name:   "DEL of queues",
		what:   "the queues of those who wait are deleted, and whose turn it is, and tombstones left",
		inject: repeatedly(deletingQueues),
	},
	{
		name: "eviction", forgets: true, unseen: true, instantly: true,
		what: "maxmemory 1 with allkeys-random: what is written is evicted by the next",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			each(nodes, func(n int) { b.do(n, "CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", 1) })
			b.injected.Add(int64(len(nodes)))
			time.Sleep(d)
			each(nodes, func(n int) { b.do(n, "CONFIG", "SET", "maxmemory", 0) })
		},
	},
	{
		name: "failover to an empty replica", forgets: true, unseen: true,
		what: "the server takes over the data of an empty one, as a replica, and is promoted 150 ms later",
		inject: func(b *testbed, nodes []int, _ time.Duration) {
			empty := redistest.Start(b.T, "--repl-diskless-sync-delay", "0")
			each(nodes, func(n int) {
				b.servers[n].Follow(b, empty)
				time.Sleep(away) // the node does not vote, because it is read-only
				b.do(n, "REPLICAOF", "NO", "ONE")
				b.injected.Add(1)
			})
			empty.Kill()
		},
	},
	{
		name: "FAILOVER", unseen: true, brief: true, args: promptly,
		what:   "a replica becomes the master with all the data, and subscriptions stay with the old one",
		inject: func(b *testbed, nodes []int, _ time.Duration) { failOver(b, nodes, true) },
	},
	{
		name: "FAILOVER, nothing is closed", unseen: true, brief: true, args: promptly,
		what:   "a replica becomes the master with all the data, and all connections stay with the old one",
		inject: func(b *testbed, nodes []int, _ time.Duration) { failOver(b, nodes, false) },
	},
	{
		name: "split old master", forgets: true, unseen: true, instantly: true, rivals: true, brief: true, most: 3,
		args:   promptly,
		what:   "a replica is promoted, and its master goes on granting to some clients, until it is demoted",
		inject: split,
	},
}

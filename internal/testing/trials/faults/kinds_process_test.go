package faults

import (
	"syscall"
	"time"

	"github.com/gomodule/redigo/redis"
)

var (
	aofAlways   = []string{"--appendonly", "yes", "--appendfsync", "always"}
	aofEverysec = []string{"--appendonly", "yes", "--appendfsync", "everysec"}
	slowLoading = append([]string{"--loading-process-events-interval-bytes", "1024", "--key-load-delay", "1000"},
		aofAlways...)
)

// away is longer than the difference of the clocks of nodes plus the quantum of tokens: see docs/safety.md, G2.
const away = skew + 100*time.Millisecond

// killed kills nodes while requests are under way, and restarts them after d.
func killed(b *testbed, nodes []int, d time.Duration) {
	b.caught(nodes, func() {
		each(nodes, func(n int) { b.servers[n].Kill() })
		b.injected.Add(int64(len(nodes)))
	})
	time.Sleep(d)
	each(nodes, func(n int) { b.servers[n].Restart() })
}

var processKinds = []kind{
	{
		name: "kill -9, back empty", forgets: true,
		what:   "the server is killed with requests under way and starts without data",
		inject: func(b *testbed, nodes []int, d time.Duration) { killed(b, nodes, max(away, d/2)) },
	},
	{
		name: "kill -9, back empty after the longest TTL", brief: true,
		what:   "the same, but it stays away until every lock that it knew has ended",
		inject: func(b *testbed, nodes []int, _ time.Duration) { killed(b, nodes, b.short+100*time.Millisecond) },
	},
	{
		name: "kill -9, AOF always", args: aofAlways,
		what:   "killed, and back with all that it had acknowledged",
		inject: func(b *testbed, nodes []int, d time.Duration) { killed(b, nodes, d/2) },
	},
	{
		name: "kill -9, AOF everysec", args: aofEverysec, forgets: true,
		what:   "killed, and back with what had reached its file",
		inject: func(b *testbed, nodes []int, d time.Duration) { killed(b, nodes, max(away, d/2)) },
	},
	{
		name: "kill -9, LOADING", refusal: "LOADING", args: slowLoading,
		what: "killed, and back with all data, refusing while it loads them slowly",
		inject: func(b *testbed, nodes []int, _ time.Duration) {
			each(nodes, func(n int) {
				b.do(n, "EVAL", "for i = 1, 300 do redis.call('SET', 'ballast' .. i, string.rep('x', 1000)) end", 0)
				b.do(n, "BGREWRITEAOF")
				b.eventually("the AOF is rewritten", func() bool {
					info, _ := redis.String(b.do(n, "INFO", "persistence"), nil)
					return field(info, "aof_rewrite_in_progress") == "0" && field(info, "aof_rewrite_scheduled") == "0"
				})
			})
			killed(b, nodes, 0)
		},
	},
	{
		name: "SIGSTOP", most: 3,
		what: "the server is frozen; what it is sent is executed when it goes on",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			each(nodes, func(n int) { b.servers[n].Pause() })
			b.injected.Add(int64(len(nodes)))
			time.Sleep(d)
			each(nodes, func(n int) { b.servers[n].Resume() })
		},
	},
	{
		name: "SIGSTOP, again and again",
		what: "frozen for 5 to 100 ms at a time",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); pause(5*time.Millisecond, 50*time.Millisecond) {
				each(nodes, func(n int) {
					b.servers[n].Pause()
					pause(5*time.Millisecond, 100*time.Millisecond)
					b.servers[n].Resume()
				})
				b.injected.Add(int64(len(nodes)))
			}
		},
	},
}

// freeze stops the processes of clients for d.
func (b *testbed) freeze(children []*process, d time.Duration) {
	for _, c := range children {
		c.signal(syscall.SIGSTOP)
		b.injected.Add(1)
	}
	time.Sleep(d)
	for _, c := range children {
		c.signal(syscall.SIGCONT)
	}
}

var clientKinds = []kind{
	{
		name: "client SIGSTOP", clients: true, most: 3,
		what:   "the process of a client is frozen, for up to three TTLs",
		inject: func(b *testbed, _ []int, d time.Duration) { b.freeze(b.children, max(d, b.short*5/4)) },
	},
	{
		name: "client SIGSTOP, again and again", clients: true, most: 3,
		what: "frozen for 0.1 to 1.3 TTLs at a time",
		inject: func(b *testbed, _ []int, d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); pause(b.short/20, b.short/4) {
				b.freeze(b.children, b.short/10+time.Duration(b.random.Int64N(int64(b.short*12/10))))
			}
		},
	},
}

package faults

import (
	"fmt"
	"net"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

// promptly has the settings with which a replica gets its data at once.
var promptly = []string{"--repl-diskless-sync-delay", "0"}

// watch starts a master, its replica, and a sentinel.
func (b *testbed) watch() {
	b.Helper()
	master := redistest.Start(b.T, promptly...)
	b.servers = []*redistest.Server{master, redistest.StartReplica(b.T, master)}
	b.admins = make([]redis.Conn, len(b.servers))
	b.sentinel = redistest.StartSentinel(b.T, master, b.servers[1])
}

// named reports whether the sentinel sends clients to s.
func (b *testbed) named(s *redistest.Server) bool {
	addr, err := redis.Strings(b.sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.SentinelMaster))
	return err == nil && s.IsMaster() && net.JoinHostPort(addr[0], addr[1]) == s.Addr()
}

// deposed breaks the master and waits until the sentinel has made its replica the master, as over reports.
func (b *testbed) deposed(fail func(*redistest.Server),
	over func(*redistest.Server) bool) (old, next *redistest.Server) {
	b.Helper()
	old, next = b.servers[0], b.servers[1]
	if next.IsMaster() { // the sentinel has done it already, on a machine that stalls
		old, next = next, old
		next.Follow(b, old)
	}
	fail(old)
	b.injected.Add(1)
	// This is longer than the pause of a sentinel after a stall of the machine.
	if !eventually(2*hangLimit, func() bool { return over(next) }) {
		b.Error("the sentinel does not make the replica the master")
	}
	return old, next
}

// sentinelKinds break the only server that has locks. They ignore the nodes that they are given.
var sentinelKinds = []kind{
	{
		name: "sentinel: kill -9 of the master", watched: true, forgets: true, unseen: true, brief: true,
		what: "the master is killed, a sentinel has its replica take over, and it comes back as a replica",
		inject: func(b *testbed, _ []int, d time.Duration) {
			old, next := b.deposed((*redistest.Server).Kill, b.named)
			time.Sleep(d)
			old.Restart()
			old.Follow(b, next) // the sentinel would do it ten seconds later
		},
	},
	{
		name: "sentinel: SIGSTOP of the master", watched: true, forgets: true, unseen: true, brief: true, rivals: true,
		what: "the master is frozen until its replica has taken over, and goes on as a master for clients that still ask it",
		inject: func(b *testbed, _ []int, d time.Duration) {
			old, next := b.deposed((*redistest.Server).Pause, (*redistest.Server).IsMaster)
			old.Resume()
			time.Sleep(d)
			old.Follow(b, next)
		},
	},
}

// failOver gives each node a replica and makes the replica the master, like an operator who takes a machine out of
// service. New connections go to the new master, and with closing, connections for commands are closed. The others stay
// at the old one, which is now a replica, until clients notice.
func failOver(b *testbed, nodes []int, closing bool) {
	each(nodes, func(n int) {
		old, next := b.servers[n], redistest.Start(b.T, promptly...)
		next.Follow(b, old)
		b.eventually("a replica that becomes the master", func() bool {
			_, _ = old.Do("FAILOVER", "TIMEOUT", 1000) // refused until the replica is online, and during a failover
			return next.IsMaster() && !old.IsMaster()
		})
		b.injected.Add(1)
		b.links(b.players(), []int{n}, func(p *fault.Proxy) { p.Redirect(next.Addr()) })
		if closing {
			_, _ = old.Do("CLIENT", "KILL", "TYPE", "normal")
		}
		b.servers[n], b.admins[n] = next, nil
		b.eventually("no subscription is left at the old master", func() bool {
			list, err := redis.String(old.Do("CLIENT", "LIST", "TYPE", "pubsub"))
			return err == nil && list == ""
		})
	})
}

// split promotes a replica of each node while the node, which is cut off from the replica, goes on. For d some clients
// use the one and other clients the other. Then the old node is demoted, and its clients notice it after a while.
func split(b *testbed, nodes []int, d time.Duration) {
	old, next := map[int]*redistest.Server{}, map[int]*redistest.Server{}
	for _, n := range nodes {
		old[n], next[n] = b.servers[n], redistest.Start(b.T, promptly...)
		next[n].Follow(b, old[n])
	}
	movers, before := b.some(), map[int]int{}
	move := func(players []int) {
		for _, n := range nodes {
			b.links(players, []int{n}, func(p *fault.Proxy) {
				p.Redirect(next[n].Addr())
				p.Cut()
			})
		}
	}
	for _, n := range nodes {
		next[n].Cmd(b, "REPLICAOF", "NO", "ONE")
		b.servers[n], b.admins[n] = next[n], nil
		before[n] = b.served(old[n])
	}
	move(movers)
	time.Sleep(d)
	for _, n := range nodes {
		b.eventually("both masters are asked", func() bool {
			return b.served(old[n]) > before[n] && b.served(next[n]) > 0
		})
		b.injected.Add(int64(min(b.served(old[n])-before[n], b.served(next[n]))))
	}
	for _, n := range nodes {
		old[n].Follow(b, next[n])
	}
	pause(0, b.short/2)
	move(b.players())
}

// served returns how many scripts a server has run.
func (b *testbed) served(s *redistest.Server) (calls int) {
	info, err := redis.String(s.Do("INFO", "commandstats"))
	if err != nil {
		b.Error(err)
	}
	_, _ = fmt.Sscanf(field(info, "cmdstat_evalsha"), "calls=%d,", &calls)
	return calls
}

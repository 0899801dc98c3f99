package faults

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// hasty servers of a cluster notice failures even sooner, and sometimes report one that did not happen.
var hasty = []string{"--cluster-node-timeout", "1000"}

// others returns all servers of the cluster but one.
func (b *testbed) others(s *redistest.Server) []*redistest.Server {
	return slices.DeleteFunc(b.cluster.Servers(), func(o *redistest.Server) bool { return o == s })
}

// isolate cuts a server off from the others. Packets are lost, or connections are refused.
func (b *testbed) isolate(s *redistest.Server) {
	refuse := b.random.IntN(2) == 0
	for _, o := range b.others(s) {
		if refuse {
			b.bus.Refuse(s, o)
		} else {
			b.bus.Hold(s, o)
			b.bus.Hold(o, s)
		}
	}
}

// reconnect repairs the bus, and counts the packets and connections that it has held and refused.
func (b *testbed) reconnect() {
	b.bus.Heal()
	b.injected.Add(int64(b.bus.Stopped()))
}

// is waits until a server reports the given state of the cluster.
func (b *testbed) is(s *redistest.Server, state string) {
	b.Helper()
	b.eventually("the cluster's state becomes "+state, func() bool {
		info, _ := s.Do("CLUSTER", "INFO")
		return field(fmt.Sprint(info), "cluster_state") == state
	})
}

// partitionKinds cut the bus between servers of a cluster, mostly between the master of one lock and all others.
// Clients reach all servers.
var partitionKinds = []kind{
	{
		name: "cluster: partition", clustered: true, parted: true, most: 2, refusal: "CLUSTERDOWN", args: hasty,
		what: "a master without a replica and the others do not hear each other, silently or by a refusal, until all " +
			"of them refuse",
		inject: func(b *testbed, _ []int, d time.Duration) {
			owner := b.cluster.Owner(b, b.slot())
			b.isolate(owner)
			for _, s := range b.cluster.Servers() {
				b.is(s, "fail")
			}
			time.Sleep(d)
			b.reconnect()
			b.cluster.Await(b)
		},
	},
	{
		name: "cluster: partition, one-way", clustered: true, parted: true, most: 2, refusal: "CLUSTERDOWN",
		args: hasty,
		what: "a master hears the others, who do not hear it and refuse, or they hear it, and it refuses",
		inject: func(b *testbed, _ []int, d time.Duration) {
			owner := b.cluster.Owner(b, b.slot())
			deaf := b.random.IntN(2) == 0
			for _, o := range b.others(owner) {
				if deaf {
					b.bus.Hold(o, owner)
				} else {
					b.bus.Hold(owner, o)
				}
			}
			for _, s := range b.cluster.Servers() {
				if deaf == (s == owner) { // the other servers sometimes notice as well, because they get no answers
					b.is(s, "fail")
				}
			}
			time.Sleep(d)
			b.reconnect()
			b.cluster.Await(b)
		},
	},
	{
		name: "cluster: partition, flapping", clustered: true, replicated: true, parted: true, most: 3, args: quick,
		what: "servers do not hear each other for 10 to 500 ms at a time, in pairs, one-way or not, by a refusal or " +
			"not",
		inject: func(b *testbed, _ []int, d time.Duration) {
			servers := b.cluster.Servers()
			masters := slices.DeleteFunc(b.cluster.Servers(), func(s *redistest.Server) bool { return !s.IsMaster() })
			for i := range servers {
				// This is set only now, because servers with a long time-out take long to form a cluster.
				b.do(i, "CONFIG", "SET", "cluster-node-timeout", 10000)
				b.do(i, "CONFIG", "RESETSTAT")
			}
			for end := time.Now().Add(d); time.Now().Before(end); pause(10*time.Millisecond, 100*time.Millisecond) {
				for i := range 1 + b.random.IntN(8) {
					p := b.random.Perm(len(servers))
					if i%2 == 0 { // always in the first round, because there may be nothing to hold
						b.bus.Refuse(servers[p[0]], servers[p[1]])
					} else {
						b.bus.Hold(servers[p[0]], servers[p[1]])
					}
				}
				pause(10*time.Millisecond, 500*time.Millisecond)
				b.bus.Heal()
			}
			b.reconnect()
			b.unnoticed(masters)
		},
	},
	{
		// If the replica does not learn of a release, the lock stays until its TTL ends. So TTLs are short.
		name: "cluster: partition, its replica takes over", clustered: true, replicated: true, parted: true,
		forgets: true, unseen: true, brief: true, most: 2, args: hasty,
		what: "a master is cut off from the others and its replica, which takes over, and refuses about the same time",
		inject: func(b *testbed, _ []int, d time.Duration) {
			b.dethroned(time.Second, func(old *redistest.Server) {
				b.is(old, "fail")
				time.Sleep(d)
			})
		},
	},
	{
		name: "cluster: partition, two masters", clustered: true, replicated: true, parted: true,
		forgets: true, unseen: true, rivals: true, brief: true, most: 2, args: hasty,
		what: "the same, but it is slow to notice, grants beside its successor, and closes connections now and then",
		inject: func(b *testbed, _ []int, d time.Duration) {
			b.dethroned(time.Minute, func(old *redistest.Server) {
				node := slices.Index(b.servers, old)
				within(b, d, func() { // otherwise no client would ask for the new master
					b.do(node, "CLIENT", "KILL", "TYPE", "normal")
					pause(20*time.Millisecond, 100*time.Millisecond)
				})
				b.is(old, "ok")
			})
		},
	},
}

// dethroned makes a replica that has lost its master take the master's place. It checks that the old master steps down
// in the end, whether it has noticed the partition or not.
func (b *testbed) dethroned(notices time.Duration, meanwhile func(old *redistest.Server)) {
	b.takesOver(func(old, next *redistest.Server) {
		old.Cmd(b, "CONFIG", "SET", "cluster-node-timeout", notices.Milliseconds())
		// Replication does not use the bus. A wrong password for the master interrupts it.
		next.Cmd(b, "CONFIG", "SET", "masterauth", "wrong")
		next.Cmd(b, "CLIENT", "KILL", "TYPE", "master")
		b.isolate(old)
	}, func(old, next *redistest.Server) {
		meanwhile(old)
		next.Cmd(b, "CONFIG", "SET", "masterauth", "")
		b.reconnect()
		b.eventually("the old master steps down", func() bool { return !old.IsMaster() })
	})
}

// unnoticed checks that no server has refused anything, and that all masters are still masters.
func (b *testbed) unnoticed(masters []*redistest.Server) {
	b.Helper()
	for i := range b.servers {
		if info := fmt.Sprintf("%s", b.do(i, "INFO", "errorstats")); strings.Contains(info, "CLUSTERDOWN") {
			b.Errorf("node %d has refused", i)
		}
	}
	for _, s := range masters {
		if !s.IsMaster() {
			b.Errorf("%s is no master any more", s.Addr())
		}
	}
}

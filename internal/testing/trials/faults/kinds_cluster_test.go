package faults

import (
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// quick lets the servers of a cluster notice within seconds that one of them is gone.
var quick = []string{"--cluster-node-timeout", "2000"}

// slot returns the slot of one of the locks.
func (b *testbed) slot() int {
	b.Helper()
	return b.cluster.Slot(b, prefix+b.keys[b.random.IntN(len(b.keys))])
}

// migrate begins to move a slot to another master.
func (b *testbed) migrate(slot int) *redistest.Move {
	b.Helper()
	owner, servers := b.cluster.Owner(b, slot), b.cluster.Servers()
	for {
		if s := servers[b.random.IntN(len(servers))]; s != owner && s.IsMaster() {
			return b.cluster.Move(b, slot, s)
		}
	}
}

// within calls f again and again for about d, and three times at least, because on a busy machine d may be too short to
// hit anything.
func within(b *testbed, d time.Duration, f func()) {
	for end, n := time.Now().Add(d), 1; ; n++ {
		f()
		b.injected.Add(1)
		if n >= 3 && time.Now().After(end) {
			return
		}
	}
}

// clusterKinds break one lock's master or slot. What they are told to hit does not matter.
var clusterKinds = []kind{
	{
		name: "cluster: slots migrate", clustered: true, most: 3, refusal: "TRYAGAIN",
		what: "slots of locks are moved to other masters of a Redis Cluster, key by key, each over 0.1 to 0.5 s",
		inject: func(b *testbed, _ []int, d time.Duration) {
			within(b, d, func() {
				m := b.migrate(b.slot())
				for end := time.Now().Add(pick(b, 100*time.Millisecond,
					500*time.Millisecond)); time.Now().Before(end); {
					m.Key()
					pause(5*time.Millisecond, 50*time.Millisecond)
				}
				m.Finish()
			})
		},
	},
	{
		name: "cluster: slots move", clustered: true, most: 3, refusal: "MOVED",
		what: "the same at once, every few ms",
		inject: func(b *testbed, _ []int, d time.Duration) {
			within(b, d, func() {
				b.migrate(b.slot()).Finish()
				pause(5*time.Millisecond, 50*time.Millisecond)
			})
		},
	},
	{
		name: "cluster: CLUSTERDOWN", clustered: true, most: 3, refusal: "CLUSTERDOWN",
		what: "a master loses a slot that no other master has, and refuses everything",
		inject: func(b *testbed, _ []int, d time.Duration) {
			slot := b.slot()
			owner := b.cluster.Owner(b, slot)
			owner.Cmd(b, "CLUSTER", "DELSLOTS", slot)
			b.injected.Add(1)
			time.Sleep(d)
			owner.Cmd(b, "CLUSTER", "ADDSLOTS", slot)
			b.cluster.Await(b)
		},
	},
	{
		name: "cluster: SIGSTOP of a master", clustered: true, most: 3,
		what:   "a master is frozen, for less time than the others need to notice",
		inject: missing((*redistest.Server).Pause, (*redistest.Server).Resume),
	},
	{
		name: "cluster: kill -9 of a master, AOF always", clustered: true, args: append(quick, aofAlways...),
		what:   "a master without a replica is killed, and back with all that it had acknowledged",
		inject: missing((*redistest.Server).Kill, (*redistest.Server).Restart),
	},
	{
		name: "cluster: CLUSTER FAILOVER", clustered: true, replicated: true, args: quick,
		what: "a master hands over to its replica, which has all its data",
		inject: func(b *testbed, _ []int, _ time.Duration) {
			b.takesOver(func(_, next *redistest.Server) { b.cluster.Failover(b, next) }, nil)
		},
	},
	{
		name: "cluster: kill -9 of a master, its replica takes over", clustered: true, replicated: true, forgets: true,
		unseen: true, args: quick,
		what: "the master is killed, and comes back as a replica when its replica has become the master",
		inject: func(b *testbed, _ []int, _ time.Duration) {
			b.takesOver(func(old, _ *redistest.Server) { old.Kill() }, func(old, _ *redistest.Server) {
				b.cluster.Await(b)
				old.Restart()
			})
		},
	},
}

// missing takes away one lock's master for a while.
func missing(fail, mend func(*redistest.Server)) func(b *testbed, _ []int, d time.Duration) {
	return func(b *testbed, _ []int, d time.Duration) {
		owner := b.cluster.Owner(b, b.slot())
		fail(owner)
		b.injected.Add(1)
		time.Sleep(d)
		mend(owner)
		b.cluster.Await(b)
	}
}

// replicaOf returns the replica of a master that has its data, whichever of the two was the master first: they may have
// changed places already.
func (b *testbed) replicaOf(master *redistest.Server) (replica *redistest.Server) {
	b.Helper()
	_, port, _ := strings.Cut(master.Addr(), ":")
	b.eventually("a replica of "+master.Addr(), func() bool {
		for _, s := range b.cluster.Servers() {
			role, err := s.Do("ROLE")
			if err == nil && strings.HasPrefix(fmt.Sprint(role), "[slave 127.0.0.1 "+port+" connected") {
				replica = s
			}
		}
		return replica != nil
	})
	return replica
}

// takesOver has a master fail, waits until its replica has taken its place, and mends the old master.
func (b *testbed) takesOver(fail, mend func(old, next *redistest.Server)) {
	b.Helper()
	old := b.cluster.Owner(b, b.slot())
	next := b.replicaOf(old)
	fail(old, next)
	b.injected.Add(1)
	b.eventually("a replica that takes over", next.IsMaster)
	if mend != nil {
		mend(old, next)
	}
	b.cluster.Await(b)
}

// pick draws a duration.
func pick(b *testbed, from, to time.Duration) time.Duration {
	return from + time.Duration(b.random.Int64N(int64(to-from)))
}

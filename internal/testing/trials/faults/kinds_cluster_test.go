package faults

import (
	"fmt"
	"slices"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// quick lets the servers of a cluster notice within seconds that one of them is gone.
var quick = []string{"--cluster-node-timeout", "2000"}

// slot returns the slot of one of the locks that players have.
func (b *testbed) slot() int {
	b.Helper()
	keys := []string{"load/0", "load/1"}
	for i := range players {
		keys = append(keys, fmt.Sprint("held/", i), fmt.Sprint("extend/", i))
	}
	return b.cluster.Slot(b, "lock:"+keys[b.random.IntN(len(keys))])
}

// elsewhere returns a master that does not have the slot.
func (b *testbed) elsewhere(slot int) *redistest.Server {
	b.Helper()
	owner := b.cluster.Owner(b, slot)
	for {
		if s := b.cluster.Masters[b.random.IntN(len(b.cluster.Masters))]; s != owner {
			return s
		}
	}
}

// within calls f again and again for about d.
func within(b *testbed, d time.Duration, f func()) {
	for end := time.Now().Add(d); ; {
		f()
		b.injected.Add(1)
		if time.Now().After(end) {
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
				slot := b.slot()
				m := b.cluster.Move(b, slot, b.elsewhere(slot))
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
				slot := b.slot()
				b.cluster.Move(b, slot, b.elsewhere(slot)).Finish()
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

// partner returns the replica of a master, whichever of the two was the master first: on a busy machine they may have
// changed places already.
func (b *testbed) partner(s *redistest.Server) *redistest.Server {
	if i := slices.Index(b.cluster.Replicas, s); i >= 0 {
		return b.cluster.Masters[i]
	}
	return b.cluster.Replicas[slices.Index(b.cluster.Masters, s)]
}

// takesOver has a master fail, waits until its replica has taken its place, and mends the old master.
func (b *testbed) takesOver(fail, mend func(old, next *redistest.Server)) {
	b.Helper()
	old := b.cluster.Owner(b, b.slot())
	next := b.partner(old)
	fail(old, next)
	b.injected.Add(1)
	if !eventually(hangLimit, next.IsMaster) {
		b.Error("the replica does not take over")
	}
	if mend != nil {
		mend(old, next)
	}
	b.cluster.Await(b)
}

// pick draws a duration.
func pick(b *testbed, from, to time.Duration) time.Duration {
	return from + time.Duration(b.random.Int64N(int64(to-from)))
}

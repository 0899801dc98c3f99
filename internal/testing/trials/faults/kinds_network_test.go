package faults

import (
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/internal/testing/fault"
)

// requests applies actions to a share of the requests of all clients to the nodes.
func requests(choose func(b *testbed) fault.Action) func(b *testbed, nodes []int, d time.Duration) {
	return func(b *testbed, nodes []int, d time.Duration) {
		share := []float64{0.2, 0.5, 1}[b.random.IntN(3)]
		b.handle(b.players(), nodes, share, func() fault.Action { return choose(b) })
		time.Sleep(d)
		b.heal(b.players(), nodes)
		// A connection on which the proxy has lost something stays silent, unlike one whose packets are sent again.
		b.links(b.players(), nodes, (*fault.Proxy).Cut)
	}
}

func always(a fault.Action) func(*testbed) fault.Action {
	return func(*testbed) fault.Action { return a }
}

// apart applies actions to all requests between some clients and nodes for d.
func apart(b *testbed, players, nodes []int, d time.Duration, choose func() fault.Action) {
	b.handle(players, nodes, 1, choose)
	time.Sleep(d)
	b.heal(players, nodes)
}

func eitherHold() fault.Action {
	if rand.IntN(2) == 0 {
		return fault.Hold
	}
	return fault.HoldReply
}

var networkKinds = []kind{
	{name: "cut before execution", what: "the connection breaks, and the request is never executed",
		inject: requests(always(fault.CutBefore))},
	{name: "request lost", what: "it is swallowed, and the connection stays open",
		inject: requests(always(fault.Drop))},
	{name: "cut after execution", what: "the connection breaks instead of the reply",
		inject: requests(always(fault.CutAfter))},
	{name: "cut in the reply", what: "the connection breaks when half of the reply has been delivered",
		inject: requests(always(fault.CutMid))},
	{name: "reply lost", what: "it is swallowed, and the connection stays open",
		inject: requests(always(fault.DropReply))},
	{
		// An attempt that was refused, and is executed again when the lock is free, takes the lock for no caller: see
		// docs/safety.md. So TTLs are short, and the test does not look for locks that are left behind.
		name: "executed twice", brief: true,
		what:   "the request is executed again, on another connection, before the reply",
		inject: requests(always(fault.Duplicate)),
	},
	{
		name: "delay", what: "requests wait for up to one TTL", most: 2,
		inject: requests(func(b *testbed) fault.Action { return fault.Delay(rand.N(b.short)) }),
	},
	{
		name: "one-way delay", what: "replies wait for up to one TTL", most: 2,
		inject: requests(func(b *testbed) fault.Action { return fault.DelayReply(rand.N(b.short)) }),
	},
	{
		name: "little bandwidth", most: 3, what: "requests and replies take 2 to 80 ms per 100 bytes",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			slow := fault.Trickle(20, pick(b, 200*time.Microsecond, 8*time.Millisecond))
			apart(b, b.players(), nodes, d, func() fault.Action { return slow })
		},
	},
	{
		name: "tiny packets", most: 3, what: "requests and replies come in pieces of 1 to 7 bytes",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			apart(b, b.players(), nodes, d, func() fault.Action { return fault.Trickle(7, 50*time.Microsecond) })
		},
	},
	{
		name: "late execution", what: "requests are executed when their clients have given them up", most: 3,
		inject: requests(always(fault.Hold)),
	},
	{
		name: "partition", most: 3,
		what:   "some clients are cut off; what they sent, and what they were sent, arrives in the end",
		inject: func(b *testbed, nodes []int, d time.Duration) { apart(b, b.some(), nodes, d, eitherHold) },
	},
	{
		name: "partition, refused", most: 3, what: "connections of some clients break, and new ones are refused",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			players := b.some()
			b.links(players, nodes, func(p *fault.Proxy) {
				p.Refuse(true)
				p.Cut()
				b.injected.Add(1)
			})
			time.Sleep(d)
			b.heal(players, nodes)
		},
	},
	{
		name: "partition, one-way", most: 3, what: "servers hear some clients, who do not hear them",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			apart(b, b.some(), nodes, d, func() fault.Action { return fault.HoldReply })
		},
	},
	{
		name: "partition, criss-cross", most: 3, what: "each client is cut off from servers of its own",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			for _, p := range b.players() {
				for _, n := range nodes {
					if b.random.IntN(2) == 0 {
						b.handle([]int{p}, []int{n}, 1, eitherHold)
					}
				}
			}
			b.handle(b.some(), nodes[:1], 1, eitherHold)
			time.Sleep(d)
			b.heal(b.players(), nodes)
		},
	},
	{
		name: "partition, flapping", most: 2,
		what: "all clients are cut off for 10 to 150 ms at a time, silently or by a reset",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); pause(10*time.Millisecond, 100*time.Millisecond) {
				b.handle(b.players(), nodes, 1, eitherHold)
				if b.random.IntN(2) == 0 {
					b.links(b.players(), nodes, (*fault.Proxy).Cut)
				}
				pause(10*time.Millisecond, 150*time.Millisecond)
				b.heal(b.players(), nodes)
			}
		},
	},
}

package single_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/single"
)

// backend makes what New makes a Client of.
func backendOf(d drivers.Driver) backend.Backend {
	if d, ok := d.(drivers.Cluster); ok {
		return node.NewCluster(d, node.Options{Name: "redis", Prefix: single.DefaultPrefix})
	}
	return node.New(d, node.Options{Name: "redis", Prefix: single.DefaultPrefix})
}

// personalities are the optional interfaces that a driver may implement. Each opens a driver for simulated servers.
var personalities = map[string]struct {
	servers int
	open    func(nodes simnode.Nodes, w *simnode.Wire) drivers.Driver
}{
	"one server": {1, func(nodes simnode.Nodes, w *simnode.Wire) drivers.Driver {
		return nodes[0].Driver(w.Deliver)
	}},
	"one server, direct": {1, func(nodes simnode.Nodes, w *simnode.Wire) drivers.Driver {
		return nodes[0].Driver(w.DeliverInTime, simnode.Direct(always))
	}},
	"cluster": {3, func(nodes simnode.Nodes, w *simnode.Wire) drivers.Driver {
		return simnode.Cluster(nodes, func(int) simnode.Network { return w.Deliver })
	}},
	"cluster, direct": {3, func(nodes simnode.Nodes, w *simnode.Wire) drivers.Driver {
		return simnode.Cluster(nodes, func(int) simnode.Network { return w.DeliverInTime }, simnode.Direct(always))
	}},
}

func always() bool { return true }

// The backend on simulated servers.
func TestBackendConformanceInVirtualTime(t *testing.T) {
	for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(personalities))) {
		p := personalities[name]
		t.Run(name, func(t *testing.T) {
			h := conformance.Harness{
				Bubble: virtual.Test,
				Store: func(testing.TB) conformance.Store {
					var wire simnode.Wire
					nodes := simnode.NewNodes(p.servers)
					for _, n := range nodes {
						n.Deliver = wire.Messages
					}
					foreign := func(key string) func() bool {
						name := single.DefaultPrefix + key
						return nodes[simnode.ServerOf(name, p.servers)].Foreign(name)
					}
					return conformance.Store{
						Open:         func() backend.Backend { return backendOf(p.open(nodes, &wire)) },
						Delete:       func(key string) { nodes.Delete(single.DefaultPrefix + key) },
						Foreign:      foreign,
						Hang:         wire.Hang,
						Down:         wire.Fail,
						LoseReply:    wire.LoseReply,
						Restart:      nodes.Flush, // the clock makes tokens grow
						Left:         nodes.Left,
						LoseMessages: wire.Deafen,
					}
				},
			}
			conformance.RunBackend(t, h)
			conformance.RunSemaphore(t, h)
			conformance.RunRWLock(t, h)
		})
	}
}

// The same on a real server.
func conformBackend(t *testing.T) {
	t.Parallel()
	build := opened("redigo")
	conformance.RunBackend(t, conformance.Harness{
		Store: func(t testing.TB) conformance.Store {
			s := redistest.Start(t)
			p := fault.New(t, s.Addr())
			return conformance.Store{
				Open:    func() backend.Backend { return backendOf(build(t, p.Addr())) },
				Delete:  func(key string) { s.Cmd(t, "DEL", single.DefaultPrefix+key) },
				Foreign: foreign(t, s),
				Hang: func() func() {
					s.Pause()
					return s.Resume
				},
				Down: func() func() {
					p.Refuse(true)
					p.Cut()
					return func() { p.Refuse(false) }
				},
				LoseReply: func() { p.Handle(fault.Nth(1, fault.CutAfter, "EVALSHA", "EVAL")) },
				Restart:   s.Restart, // without its data: the clock makes tokens grow
				Left:      left(t, s),
			}
		},
	})
}

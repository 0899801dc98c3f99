package single_test

import (
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/node"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/single"
)

// backend makes what New makes a Client of.
func backend(d drivers.Driver, fifo bool) locker.Backend {
	if d, ok := d.(drivers.Cluster); ok {
		s := node.NewCluster(d, node.Options{Name: "redis", Prefix: single.DefaultPrefix})
		if fifo {
			return node.QueuedCluster{Cluster: s}
		}
		return s
	}
	n := node.New(d, node.Options{Name: "redis", Prefix: single.DefaultPrefix})
	if fifo {
		return node.QueuedNode{Node: n}
	}
	return n
}

// conformVirtually checks the backend with a queue and without one, on a simulated node that it reaches by what wrap
// makes of its driver.
func conformVirtually(t *testing.T, wrap func(drivers.Driver) drivers.Driver) {
	for name, fifo := range map[string]bool{"queue": true, "no queue": false} {
		t.Run(name, func(t *testing.T) {
			conformance.RunBackend(t, conformance.Harness{
				Bubble: virtual.Test, FIFO: fifo,
				Store: func(testing.TB) conformance.Store {
					var wire simnode.Wire
					n := simnode.New()
					n.Deliver = wire.Messages
					return conformance.Store{
						Open:         func() locker.Backend { return backend(wrap(n.Driver(wire.Deliver)), fifo) },
						Delete:       func(key string) { n.Delete(single.DefaultPrefix + key) },
						Foreign:      func(key string) func() bool { return n.Foreign(single.DefaultPrefix + key) },
						Hang:         wire.Hang,
						Down:         wire.Fail,
						LoseReply:    wire.LoseReply,
						Restart:      n.Flush, // the clock makes tokens grow
						Left:         n.Left,
						LoseMessages: wire.Deafen,
					}
				},
			})
		})
	}
}

func TestBackendConformanceInVirtualTime(t *testing.T) {
	conformVirtually(t, func(d drivers.Driver) drivers.Driver { return d })
}

// cluster makes any driver one of several servers.
type cluster struct{ drivers.Driver }

func (cluster) Cluster() {}

// The same with keys that are kept apart, as for a cluster. Nobody is told anything there.
func TestBackendConformanceOnACluster(t *testing.T) {
	conformVirtually(t, func(d drivers.Driver) drivers.Driver { return cluster{d} })
}

// The same on real servers, with one driver: RunLocker has them all.
func TestBackendConformance(t *testing.T) {
	t.Parallel()
	build := opened("redigo")
	conformance.RunBackend(t, conformance.Harness{FIFO: true, Labels: true, Store: func(t testing.TB) conformance.Store {
		s := redistest.Start(t)
		p := fault.New(t, s.Addr())
		return conformance.Store{
			Open:    func() locker.Backend { return backend(build(t, p.Addr()), true) },
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
	}})
}

package redlock_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

// The backend, under a Client and without one, in virtual time, also over nodes of which a minority is dead.
func TestBackendConformance(t *testing.T) {
	for _, tt := range []struct{ nodes, dead int }{{1, 0}, {3, 0}, {5, 2}} {
		t.Run(fmt.Sprintf("%d nodes, %d dead", tt.nodes, tt.dead), func(t *testing.T) {
			conformance.RunBackend(t, conformance.Harness{
				Bubble: virtual.Test,
				Store:  func(t testing.TB) conformance.Store { return simulated(t, tt.nodes, tt.dead) },
			})
		})
	}
}

// pastTheQuantum is how long a node that has lost its counters stays away: then the clock makes tokens grow.
const pastTheQuantum = 100 * time.Millisecond

func leftOn(nodes []*simnode.Node) func() []string {
	return func() (left []string) {
		for _, n := range nodes {
			left = append(left, n.Left()...)
		}
		return left
	}
}

// simulated is a store of nodes of which the first are dead, with a wire to each.
func simulated(t testing.TB, n, dead int) conformance.Store {
	nodes, wires := make([]*simnode.Node, n), make([]simnode.Wire, n)
	for i := range nodes {
		nodes[i] = simnode.New()
		nodes[i].Deliver = wires[i].Messages
	}
	all := func(fault func(w *simnode.Wire) (end func())) (end func()) {
		var ends []func()
		for i := range wires {
			ends = append(ends, fault(&wires[i]))
		}
		return func() {
			for _, end := range ends {
				end()
			}
		}
	}
	store := conformance.Store{
		Open: func() locker.Backend {
			ds := make([]drivers.Driver, n)
			for i := range ds {
				network := simnode.Network(wires[i].Deliver)
				if i < dead {
					network = simnode.Dead
				}
				ds[i] = nodes[i].Driver(network)
			}
			b, err := redlock.NewBackend(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Delete: func(key string) {
			for _, n := range nodes {
				n.Delete(redlock.DefaultPrefix + key)
			}
		},
		Hang:         func() func() { return all((*simnode.Wire).Hang) },
		Down:         func() func() { return all((*simnode.Wire).Fail) },
		LoseReply:    func() { all(func(w *simnode.Wire) func() { w.LoseReply(); return nil }) },
		LoseMessages: func() func() { return all((*simnode.Wire).Deafen) },
		Restart: func() {
			for _, n := range nodes {
				n.Flush()
			}
			time.Sleep(pastTheQuantum)
		},
		Left: leftOn(nodes),
	}
	if dead == 0 { // else a minority finds that it is no lock, and nobody has a quorum
		store.Foreign = func(key string) func() bool {
			intact := make([]func() bool, n)
			for i, n := range nodes {
				intact[i] = n.Foreign(redlock.DefaultPrefix + key)
			}
			return func() bool {
				for _, intact := range intact {
					if !intact() {
						return false
					}
				}
				return true
			}
		}
	}
	return store
}

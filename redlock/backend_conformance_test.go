package redlock_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

// The backend, under a Client and without one, in virtual time, also over nodes of which a minority is dead.
func TestBackendConformance(t *testing.T) {
	for _, tt := range short.Part(t, 1, []struct{ nodes, dead int }{{1, 0}, {3, 0}, {5, 2}}) {
		t.Run(fmt.Sprintf("%d nodes, %d dead", tt.nodes, tt.dead), func(t *testing.T) {
			conformance.RunBackend(t, conformance.Harness{
				Bubble: virtual.Test, Verifies: true,
				Store: func(t testing.TB) conformance.Store { return simulated(t, tt.nodes, tt.dead) },
			})
		})
	}
}

// pastTheQuantum is how long a node that has lost its counters stays away: then the clock makes tokens grow.
const pastTheQuantum = 100 * time.Millisecond

// simulated is a store of nodes of which the first are dead, with a wire to each. Every second driver keeps to
// deadlines.
func simulated(t testing.TB, n, dead int) conformance.Store {
	nodes, wires := simnode.NewNodes(n), make([]simnode.Wire, n)
	for i := range nodes {
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
				switch {
				case i < dead:
					ds[i] = nodes[i].Driver(simnode.Dead)
				case i%2 == 1:
					ds[i] = nodes[i].Driver(wires[i].DeliverInTime, simnode.Direct(func() bool { return true }))
				default:
					ds[i] = nodes[i].Driver(wires[i].Deliver)
				}
			}
			b, err := redlock.NewBackend(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Delete:       func(key string) { nodes.Delete(redlock.DefaultPrefix + key) },
		Hang:         func() func() { return all((*simnode.Wire).Hang) },
		Down:         func() func() { return all((*simnode.Wire).Fail) },
		LoseReply:    func() { all(func(w *simnode.Wire) func() { w.LoseReply(); return nil }) },
		LoseMessages: func() func() { return all((*simnode.Wire).Deafen) },
		Restart: func() {
			nodes.Flush()
			time.Sleep(pastTheQuantum)
		},
		Left: nodes.Left,
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

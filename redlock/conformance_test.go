package redlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/quorumtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

func TestConformance(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		for _, driver := range append(drivers.Names(), "mixed") {
			if driver == "mixed" && n != 3 || testing.Short() && driver != "mixed" {
				continue
			}
			t.Run(fmt.Sprintf("%d nodes, %s", n, driver), func(t *testing.T) {
				h := conformance.Harness{
					Store: func(t testing.TB) conformance.Store {
						c := startCluster(t, n)
						return conformance.Store{
							Client: func() locker.Locker { return c.client(t, driver) },
							Delete: func(key string) {
								for _, s := range c {
									s.Cmd(t, "DEL", redlock.DefaultPrefix+key)
								}
							},
							Foreign: func(key string) func() bool {
								for _, s := range c {
									s.Cmd(t, "SET", redlock.DefaultPrefix+key, "for ever")
								}
								return nil
							},
							Hang: func() func() {
								for _, s := range c {
									s.Pause()
								}
								return func() {
									for _, s := range c {
										s.Resume()
									}
								}
							},
							Restart: func() {
								for _, s := range c {
									s.Restart()
								}
								time.Sleep(pastTheQuantum)
							},
							Left: func() (left []string) {
								for _, s := range c {
									left = append(left, s.Left(t)...)
								}
								return left
							},
						}
					},
				}
				conformance.RunLocker(t, h)
				if driver == "mixed" && !testing.Short() {
					conformance.RunSemaphore(t, h)
					conformance.RunRWLock(t, h)
				}
			})
		}
	}
}

// The backend, under a Client and without one, in virtual time, also over nodes of which a minority is out of order.
func TestBackendConformance(t *testing.T) {
	for _, tt := range short.Part(t, 2, []struct{ nodes, dead, hung int }{
		{1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {4, 0, 0}, {5, 2, 0}, {3, 0, 1}, {5, 1, 1}, {5, 0, 2},
	}) {
		t.Run(fmt.Sprintf("%d nodes, %d dead, %d hung", tt.nodes, tt.dead, tt.hung), func(t *testing.T) {
			h := conformance.Harness{
				Bubble: virtual.Test,
				Store:  func(t testing.TB) conformance.Store { return simulated(t, tt.nodes, tt.dead, tt.hung) },
			}
			conformance.RunBackend(t, h)
			conformance.RunSemaphore(t, h)
			conformance.RunRWLock(t, h)
		})
	}
}

// pastTheQuantum is how long a node that has lost its counters stays away: then the clock makes tokens grow.
const pastTheQuantum = 100 * time.Millisecond

// simulated is a store of nodes of which the first are dead and the next hang, with a wire to each. Every second driver
// keeps to deadlines.
func simulated(t testing.TB, n, dead, hung int) conformance.Store {
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
		Open: func() backend.Backend {
			ds := make([]drivers.Driver, n)
			for i := range ds {
				switch {
				case i < dead:
					ds[i] = nodes[i].Driver(simnode.Dead)
				case i < dead+hung:
					ds[i] = nodes[i].Driver(swallowed)
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
	if dead+hung == 0 { // else a minority finds that it is no lock, and nobody has a quorum
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

func TestQuorumConformanceInVirtualTime(t *testing.T) {
	for _, n := range []int{3, 4, 5} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			quorumtest.Run(t, quorumtest.Harness{
				Bubble: virtual.Test,
				Store:  func(t testing.TB) quorumtest.Store { return simulatedQuorum(t, n) },
			})
		})
	}
}

// simulatedQuorum is a store of simulated nodes, each with a wire of its own, which all clients share.
func simulatedQuorum(t testing.TB, n int) quorumtest.Store {
	open := make([]func() drivers.Driver, n)
	var s quorumtest.Store
	for i := range n {
		node, wire, commands := simnode.New(), &simnode.Wire{}, &atomic.Int64{}
		node.Deliver = wire.Messages
		open[i] = func() drivers.Driver {
			return node.Driver(func(ctx context.Context, cmds []drivers.Command,
				execute func() []drivers.Reply) ([]drivers.Reply, error) {
				return wire.Deliver(ctx, cmds, func() []drivers.Reply {
					commands.Add(int64(len(cmds)))
					return execute()
				})
			})
		}
		s.Nodes = append(s.Nodes, quorumtest.Node{
			Name:     fmt.Sprint("node ", i+1),
			Locked:   func(key string) bool { return slices.Contains(node.Keys(), redlock.DefaultPrefix+key) },
			Down:     wire.Fail,
			Hang:     wire.Hang,
			Delete:   func(key string) { node.Delete(redlock.DefaultPrefix + key) },
			Commands: func() int { return int(commands.Load()) },
		})
	}
	s.Client = func() locker.Locker {
		ds := make([]drivers.Driver, n)
		for i := range ds {
			ds[i] = open[i]()
		}
		return redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
	}
	return s
}

// The same on real servers.
func TestQuorumConformance(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		for _, n := range short.Part(t, 1, []int{3, 5}) {
			t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
				t.Parallel()
				quorumtest.Run(t, quorumtest.Harness{
					Store: func(t testing.TB) quorumtest.Store {
						return realQuorum(t, driver, startCluster(t, n))
					},
				})
			})
		}
	})
}

func realQuorum(t testing.TB, driver string, c cluster) quorumtest.Store {
	s := quorumtest.Store{
		Client: func() locker.Locker { return c.client(t, driver, redlock.Budget(redlock.DefaultBudget)) },
	}
	for _, server := range c {
		s.Nodes = append(s.Nodes, quorumtest.Node{
			Name:   server.Addr(),
			Locked: func(key string) bool { return server.Cmd(t, "EXISTS", redlock.DefaultPrefix+key) == int64(1) },
			Down: func() func() {
				server.Kill()
				return server.Restart
			},
			Hang: func() func() {
				server.Pause()
				return server.Resume
			},
			Delete:   func(key string) { server.Cmd(t, "DEL", redlock.DefaultPrefix+key) },
			Commands: func() int { return scripts(t, server) },
		})
	}
	return s
}

var calls = regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+)`)

// scripts returns how many scripts a server has executed.
func scripts(t testing.TB, s *redistest.Server) (n int) {
	t.Helper()
	stats, _ := s.Cmd(t, "INFO", "commandstats").(string)
	for _, m := range calls.FindAllStringSubmatch(strings.ToLower(stats), -1) {
		count, _ := strconv.Atoi(m[1])
		n += count
	}
	return n
}

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

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

func TestQuorumConformanceInVirtualTime(t *testing.T) {
	for _, n := range []int{3, 4, 5} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			conformance.RunQuorum(t, conformance.QuorumHarness{
				Bubble: virtual.Test,
				Store:  func(t testing.TB) conformance.QuorumStore { return simulatedQuorum(t, n) },
			})
		})
	}
}

// simulatedQuorum is a store of simulated nodes, each with a wire of its own, which all clients share.
func simulatedQuorum(t testing.TB, n int) conformance.QuorumStore {
	open := make([]func() drivers.Driver, n)
	var s conformance.QuorumStore
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
		s.Nodes = append(s.Nodes, conformance.QuorumNode{
			Name:     fmt.Sprint("node ", i+1),
			Locked:   func(key string) bool { return slices.Contains(node.Keys(), redlock.DefaultPrefix+key) },
			Down:     wire.Fail,
			Hang:     wire.Hang,
			Delete:   func(key string) { node.Delete(redlock.DefaultPrefix + key) },
			Commands: func() int { return int(commands.Load()) },
		})
	}
	s.Client = func() locker.Locker {
		l, err := build(open)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	s.Duplicate = func() (locker.Locker, error) { return build(append(open[:n-1:n-1], open[0])) }
	return s
}

func build(open []func() drivers.Driver) (*locker.Client, error) {
	ds := make([]drivers.Driver, len(open))
	for i := range ds {
		ds[i] = open[i]()
	}
	return redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
}

// The same on real servers.
func TestQuorumConformance(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		for _, n := range short.Part(t, 1, []int{3, 5}) {
			t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
				t.Parallel()
				servers := redistest.NewPool(t)
				conformance.RunQuorum(t, conformance.QuorumHarness{
					Store: func(t testing.TB) conformance.QuorumStore {
						return realQuorum(t, driver, borrowCluster(t, servers, n))
					},
				})
			})
		}
	})
}

func realQuorum(t testing.TB, driver string, c cluster) conformance.QuorumStore {
	n := len(c)
	s := conformance.QuorumStore{
		Client: func() locker.Locker { return c.client(t, driver, redlock.Budget(redlock.DefaultBudget)) },
		Duplicate: func() (locker.Locker, error) {
			ds := make([]drivers.Driver, n)
			for i := range ds {
				ds[i] = open(t, driver, c[i%(n-1)].Addr()) // the last is the first
			}
			return redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
		},
	}
	for _, server := range c {
		s.Nodes = append(s.Nodes, conformance.QuorumNode{
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

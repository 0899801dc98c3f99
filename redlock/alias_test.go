package redlock_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

// overNodes makes a client of simulated nodes, in virtual time. network may be nil.
func overNodes(t *testing.T, nodes []*simnode.Node, network func(i int) simnode.Network) *locker.Client {
	t.Helper()
	ds := make([]drivers.Driver, len(nodes))
	for i, n := range nodes {
		ds[i] = n.Driver(network(i))
	}
	l := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// An attempt that won by one of two addresses of a server is in doubt about the other one. Its clean-up leaves the lock
// of the first address alone: the lease is extended there, and its release counts.
func TestCleanUpOfADuplicateSparesTheVote(t *testing.T) {
	for try := range 4 {
		second := try % 2  // which of the two addresses is slower, and loses its reply
		extends := try < 2 // after which the doubt is over
		virtual.Test(t, func(t *testing.T) {
			server := simnode.New()
			nodes := []*simnode.Node{server, server, simnode.New(), simnode.New()}
			l := overNodes(t, nodes, func(i int) simnode.Network {
				return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
					doubtful, acquires := i == second, isAcquire(cmds[0])
					if doubtful == acquires { // its acquisition comes after the others, its release before
						time.Sleep(time.Millisecond)
					}
					replies := execute()
					if doubtful && acquires {
						return nil, io.EOF
					}
					return replies, nil
				}
			})
			lease, err := l.TryLock(t.Context(), "k", locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // for the clean-up
			if extends {
				if err := lease.Extend(t.Context()); err != nil {
					t.Errorf("the lock was deleted on a server that had granted it: %v", err)
				}
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			for i, n := range nodes {
				if left := n.Left(); len(left) != 0 {
					t.Errorf("left on node %d: %q", i+1, left)
				}
			}
		})
	}
}

// MinHold keeps a lock also on nodes that grant it when it has been released already.
func TestMinHoldOnNodesThatGrantLate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const minHold = 20 * time.Second
		nodes := []*simnode.Node{simnode.New(), simnode.New(), simnode.New()}
		var late atomic.Bool
		late.Store(true)
		l := overNodes(t, nodes, func(i int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == 2 && late.Swap(false) {
					time.Sleep(3 * time.Second)
				}
				return execute(), nil
			}
		})
		start := time.Now()
		lease, err := l.TryLock(t.Context(), "k", locker.MinHold(minHold), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		locked := func() (n int) {
			for _, n1 := range nodes {
				if slices.Contains(n1.Keys(), redlock.DefaultPrefix+"k") {
					n++
				}
			}
			return n
		}
		time.Sleep(5 * time.Second)
		if n := locked(); n != 3 {
			t.Errorf("%d nodes keep it, want 3", n)
		}
		time.Sleep(time.Until(start.Add(minHold + time.Second)))
		if n := locked(); n != 0 {
			t.Errorf("%d nodes keep it for longer", n)
		}
	})
}

// MinHold keeps a lock no longer where its release was lost, and is repeated seconds later.
func TestMinHoldWhereTheReleaseIsLate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const minHold = 10 * time.Second
		nodes := []*simnode.Node{simnode.New(), simnode.New(), simnode.New()}
		var hung atomic.Bool
		l := overNodes(t, nodes, func(i int) simnode.Network {
			return func(ctx context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == 2 && hung.Load() {
					<-ctx.Done()
					return nil, io.EOF
				}
				return execute(), nil
			}
		})
		start := time.Now()
		lease, err := l.TryLock(t.Context(), "k", locker.MinHold(minHold), locker.NoRenewal(), locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until all have granted
		hung.Store(true)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		hung.Store(false)
		time.Sleep(time.Until(start.Add(minHold + time.Second)))
		for i, n := range nodes {
			if slices.Contains(n.Keys(), redlock.DefaultPrefix+"k") {
				t.Errorf("node %d keeps the lock for longer", i+1)
			}
		}
	})
}

// Where a majority has granted, and not raised its counters in time, the error is about the second round.
func TestErrorOfTheSecondRound(t *testing.T) {
	for _, tt := range []struct {
		first int // the node whose vote comes first
		text  string
	}{
		{4, "node 1 failed (OOM command not allowed); node 2 no answer; node 3 no answer; node 4 no answer"},
		// Nodes 4 and 5 are ahead of the token, which the first three have chosen.
		{0, "node 1 failed (OOM command not allowed); node 2 not heard; node 4 not asked; node 5 not asked"},
	} {
		virtual.Test(t, func(t *testing.T) {
			nodes := make([]*simnode.Node, 5)
			for i := range nodes {
				nodes[i] = simnode.New()
				nodes[i].Skew = time.Duration(i) * time.Second // so that four have to raise if the last one votes first
			}
			l := overNodes(t, nodes, func(i int) simnode.Network {
				return func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
					switch {
					case isRaise(cmds[0]) && i == 0:
						time.Sleep(10 * time.Millisecond) // all have voted
						return []drivers.Reply{drivers.ServerError("OOM command not allowed")}, nil
					case isRaise(cmds[0]):
						<-ctx.Done()
						return nil, io.EOF
					}
					time.Sleep(time.Duration(max(i-tt.first, tt.first-i)) * time.Millisecond)
					return execute(), nil
				}
			})
			_, err := l.TryLock(t.Context(), "k")
			wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
			wantText(t, err, "no quorum: acquire, second round: 1 of 5 nodes agreed, 3 are needed: "+tt.text)
		})
	}
}

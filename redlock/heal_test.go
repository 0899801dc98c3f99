package redlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// faultyNodes is five nodes. Each of them can be given a fault.
type faultyNodes struct {
	*majority
	nodes []*simnode.Node
	mu    sync.Mutex
	fault map[int]simnode.Network
	asked [5]atomic.Int64 // acquisitions that reached each node
}

func newFaultyNodes(t *testing.T) *faultyNodes {
	w := &faultyNodes{fault: map[int]simnode.Network{}}
	w.majority, w.nodes = quorum(t, func(i int) simnode.Network {
		return func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			for _, cmd := range cmds {
				w.asked[i].Add(int64(len(wire.Attempts(cmd))))
			}
			w.mu.Lock()
			fault := w.fault[i]
			w.mu.Unlock()
			if fault != nil {
				return fault(ctx, cmds, execute)
			}
			return execute(), nil
		}
	}, 5)
	return w
}

// inject gives the first n nodes a fault; nil: they recover.
func (w *faultyNodes) inject(n int, fault simnode.Network) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		w.fault[i] = fault
	}
}

// has returns the nodes that have the lock.
func (w *faultyNodes) has() (has nodeSet) {
	for i, n := range w.nodes {
		if slices.Contains(n.Keys(), "k") {
			has |= only(i)
		}
	}
	return has
}

func (w *faultyNodes) ends(t *testing.T) {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func unreachable(context.Context, []drivers.Command, func() []drivers.Reply) ([]drivers.Reply, error) {
	return nil, drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
}

func refusing(_ context.Context, cmds []drivers.Command, _ func() []drivers.Reply) ([]drivers.Reply, error) {
	return slices.Repeat([]drivers.Reply{drivers.ServerError("OOM command not allowed")}, len(cmds)), nil
}

func replyLost(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
	execute()
	return nil, io.EOF
}

func neverArrives(context.Context, []drivers.Command, func() []drivers.Reply) ([]drivers.Reply, error) {
	return nil, io.EOF
}

// A minority that lacks the lock, for whatever reason, has it after an extension or two, and stands in when other nodes
// fail.
func TestLeaseHeals(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   simnode.Network
		forget  func(n *simnode.Node)
		extends int // how many extensions it takes
	}{
		"it could not be reached":  {fault: unreachable, extends: 1},
		"it was out of memory":     {fault: refusing, extends: 1},
		"the acquisition got lost": {fault: neverArrives, extends: 1},
		"its answer got lost":      {fault: replyLost, extends: 0},
		// The first one may be decided before their denials are heard.
		"the key was deleted": {
			forget: func(n *simnode.Node) { n.Expire(func(string) bool { return true }) }, extends: 2,
		},
		"it restarted without data": {forget: (*simnode.Node).Flush, extends: 2},
		"somebody else had it":      {fault: occupied, forget: (*simnode.Node).Flush, extends: 1},
		"it did not answer in time": {fault: swallowedUp, extends: 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				w := newFaultyNodes(t)
				w.inject(2, tt.fault)
				req := acquired(t, w.majority)
				time.Sleep(10 * time.Second) // nobody waits for them any more
				w.inject(2, nil)
				if tt.forget != nil {
					for _, n := range w.nodes[:2] {
						tt.forget(n)
					}
				}
				for range tt.extends {
					if err := w.Extend(t.Context(), req); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if got := w.has(); got != allOf(5) {
					t.Errorf("after %d extensions, nodes %b have the lock", tt.extends, got)
				}
				if tt.extends == 0 {
					_ = w.Extend(t.Context(), req) // it learns that they have it
					synctest.Wait()
				}
				w.mu.Lock()
				w.fault[3], w.fault[4] = unreachable, unreachable
				w.mu.Unlock()
				if err := w.Extend(t.Context(), req); err != nil {
					t.Errorf("Extend by those that failed: %v", err)
				}
				if err := w.Release(t.Context(), req); err != nil {
					t.Errorf("Release by those that failed: %v", err)
				}
				w.mu.Lock()
				w.fault = map[int]simnode.Network{}
				w.mu.Unlock()
				time.Sleep(3 * time.Second)
				if got := w.has(); got != 0 {
					t.Errorf("after Unlock, nodes %b have the lock", got)
				}
				w.ends(t)
			})
		})
	}
}

func swallowedUp(ctx context.Context, _ []drivers.Command, _ func() []drivers.Reply) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, io.EOF
}

// occupied answers acquisitions with somebody else's lock.
func occupied(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
	replies := execute()
	for i, cmd := range cmds {
		if isAcquiring(cmd) {
			replies[i] = []drivers.Reply{int64(0), int64(1000), int64(1), "somebody", ""}
		}
	}
	return replies, nil
}

// If a majority lacks the lock, it is lost. It does not heal, neither by the extension that finds that nor by a later
// one.
func TestLostLeaseDoesNotHeal(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		req := acquired(t, w.majority)
		for _, n := range w.nodes[:3] {
			n.Expire(func(string) bool { return true })
		}
		for range 3 {
			if err := w.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("Extend: %v", err)
			}
			time.Sleep(time.Second)
		}
		if got := w.has(); got != set(3, 4) {
			t.Errorf("nodes %b have the lock", got)
		}
		w.ends(t)
	})
}

// Two nodes lack the lock when a third one hangs: the extension that fails heals them, and so the next one succeeds.
func TestExtensionThatFailsHeals(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		w.inject(2, unreachable)
		req := acquired(t, w.majority)
		w.inject(2, nil)
		w.mu.Lock()
		w.fault[4] = swallowedUp
		w.mu.Unlock()
		if err := w.Extend(t.Context(), req); !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("Extend by two of five: %v", err)
		}
		synctest.Wait()
		if err := w.Extend(t.Context(), req); err != nil {
			t.Errorf("Extend by four of five: %v", err)
		}
		w.ends(t)
	})
}

// While a node does not answer, a lease has one acquisition under way to it, however often it is extended.
func TestOneHealingAtATime(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		w.inject(1, unreachable)
		req := acquired(t, w.majority)
		time.Sleep(time.Second)
		w.asked[0].Store(0)
		w.inject(1, swallowedUp)
		for range 40 { // four seconds: less than an exchange's timeout
			if err := w.Extend(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := w.asked[0].Load(); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
		for i := range w.asked[1:] {
			if n := w.asked[i+1].Load(); n != 1 {
				t.Errorf("node %d, which has the lock, was asked %d times", i+1, n)
			}
		}
		if err := w.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		w.ends(t)
	})
}

// A node that is busy when a majority has granted is asked nevertheless, unless the lock was released by then.
func TestEveryNodeIsAsked(t *testing.T) {
	for _, unlocks := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			w := newFaultyNodes(t)
			w.inject(1, func(ctx context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				time.Sleep(time.Second)
				return execute(), nil
			})
			for i := range 8 { // its senders have enough to do
				go func() {
					req := backend.Request{Key: fmt.Sprint("other", i), Token: fmt.Sprint("other owner ", i), TTL: time.Minute}
					_, _ = w.Acquire(t.Context(), req)
				}()
			}
			synctest.Wait()
			req := backend.Request{Key: "k", Token: "owner of the lease", TTL: time.Minute}
			g, err := w.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			req.Fence, req.Private = g.Fence, g.Private
			if unlocks {
				if err := w.Release(t.Context(), req); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(5 * time.Second)
			asked := map[bool]int64{false: 9, true: 8}[unlocks]
			if got := w.asked[0].Load(); got != asked || w.has().has(0) == unlocks {
				t.Errorf("unlocked %t: it was asked %d times, and nodes %b have the lock", unlocks, got, w.has())
			}
			w.ends(t)
		})
	}
}

// Healing costs an extension nothing. The extension does not wait for nodes that heal, and every node is sent one
// command, once: those that have the lock an extension, and those that lack it an acquisition.
func TestHealingCostsNoRoundTrip(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const roundTrip = 10 * time.Millisecond
		w := newFaultyNodes(t)
		w.inject(2, unreachable)
		req := acquired(t, w.majority)
		time.Sleep(10 * time.Second) // nobody waits for them any more
		var sent [5]atomic.Int64
		w.mu.Lock()
		for i := range w.nodes {
			w.fault[i] = func(_ context.Context, cmds []drivers.Command,
				execute func() []drivers.Reply) ([]drivers.Reply, error) {
				sent[i].Add(int64(len(cmds)))
				if i < 2 { // which heal
					time.Sleep(10 * roundTrip)
				}
				time.Sleep(roundTrip)
				return execute(), nil
			}
		}
		w.mu.Unlock()
		start := time.Now()
		if err := w.Extend(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != roundTrip {
			t.Errorf("the extension took %v, want %v", took, roundTrip)
		}
		time.Sleep(time.Second)
		if got := w.has(); got != allOf(5) {
			t.Errorf("nodes %b have the lock", got)
		}
		for i := range sent {
			if n := sent[i].Load(); n != 1 {
				t.Errorf("node %d was sent %d commands, want 1", i, n)
			}
		}
		if err := w.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		w.ends(t)
	})
}

package redlock

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/node"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// quorum is a backend over simulated nodes, whose commands pass through network.
func quorum(t *testing.T, network func(i int) simnode.Network, n int) (*backend, []*simnode.Node) {
	t.Helper()
	nodes, ds := make([]*simnode.Node, n), make([]drivers.Driver, n)
	b := &backend{budget: DefaultBudget, logger: slog.New(slog.DiscardHandler), closing: make(chan struct{})}
	for i := range nodes {
		b.names = append(b.names, string(rune('a'+i)))
	}
	for i := range nodes {
		nodes[i] = simnode.New()
		ds[i] = nodes[i].Driver(network(i))
		b.nodes = append(b.nodes, node.New(ds[i], node.Options{Name: b.names[i], Number: i + 1, Names: b.names}))
	}
	return b, nodes
}

func acquired(t *testing.T, b *backend) locker.Request {
	t.Helper()
	req := locker.Request{Key: "k", Token: "owner of the lease", TTL: time.Minute}
	g, err := b.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.Fence, req.Private = g.Fence, g.Private
	synctest.Wait() // until all have granted
	return req
}

// A process that was stalled finds the answers, the end of its budget and that of its context all at once. Whatever it
// looks at first, the answers count.
func TestAnswersThatHaveComeCount(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b, _ := quorum(t, func(int) simnode.Network { return nil }, 5)
		req := acquired(t, b)
		l := req.Private.(*lease)
		for range 32 { // select draws lots
			ctx, cancel := context.WithCancel(t.Context())
			b.calls.Enter()
			u := newLeaseUpdate(b, l, req, opExtend)
			u.begin(ctx)
			synctest.Wait() // all have answered
			cancel()
			err := u.wait(ctx)
			b.calls.Leave()
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A release that Close interrupts still gives back the turn, also where the lease does not have the node that keeps the
// queue.
func TestCloseGivesBackATurnElsewhere(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var b *backend
		var releasing, given atomic.Bool
		b, _ = quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if releasing.Load() {
					<-b.closing
					given.Store(given.Load() || i == 4 && strings.HasPrefix(cmds[0][0], "EVAL"))
					return nil, io.EOF
				}
				return execute(), nil
			}
		}, 5)
		req := acquired(t, b)
		l := req.Private.(*lease)
		l.turn, l.held = &turn{4, b.nodes[4].NewTurn("k")}, l.held&^only(4)
		l.turn.Used()
		releasing.Store(true)
		go func() { _ = b.Release(t.Context(), req) }()
		synctest.Wait()
		l.mu.Lock() // which it asks when the update is over
		var closed atomic.Bool
		go func() {
			_ = b.Close()
			closed.Store(true)
		}()
		for range 10_000 {
			if closed.Load() {
				break
			}
			runtime.Gosched()
		}
		l.mu.Unlock()
		synctest.Wait()
		if !given.Load() {
			t.Error("the turn is nobody else's until it is over")
		}
	})
}

// A node that has lost the key of a lease says no, with all that follows: as long as a majority has it, it is extended
// and released; without one it is lost, which is certain and not a want of answers. A node that lost the key gets it
// back by an extension that follows, and by nothing else.
func TestNodesThatLostTheKey(t *testing.T) {
	for lost := range 6 {
		for _, op := range []string{"extend", "release"} {
			virtual.Test(t, func(t *testing.T) {
				asked := make([]atomic.Int64, 5)
				b, nodes := quorum(t, func(i int) simnode.Network {
					return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
						for _, cmd := range cmds {
							asked[i].Add(int64(len(wire.Steps(cmd))))
						}
						time.Sleep(time.Duration(5-i) * time.Millisecond) // those that lost it answer last
						return execute(), nil
					}
				}, 5)
				req := acquired(t, b)
				time.Sleep(time.Second)
				for _, n := range nodes[:lost] {
					n.Expire(func(string) bool { return true })
				}
				for i := range asked {
					asked[i].Store(0)
				}
				var err error
				want := int64(1)
				if op == "extend" {
					if lost < 3 {
						want = 2
						if err := b.Extend(t.Context(), req); err != nil {
							t.Error(err)
						}
						time.Sleep(time.Second) // until it has heard of those that lost it
					}
					err = b.Extend(t.Context(), req)
				} else {
					err = b.Release(t.Context(), req)
				}
				if want := map[bool]error{true: locker.ErrNotHeld}[lost >= 3]; !errors.Is(err, want) ||
					errors.Is(err, locker.ErrNoQuorum) {
					t.Errorf("%s, lost by %d of 5: got %v, want %v", op, lost, err, want)
				}
				time.Sleep(10 * time.Second) // whatever goes on in the background
				for i, n := range nodes {
					heals := op == "extend" && lost < 3
					want := want
					if op == "release" && i < lost { // the usual case, and the script that finds out what has happened
						want = 2
					}
					if got := asked[i].Load(); got != want {
						t.Errorf("%s, lost by %d of 5: node %d was asked %d times, want %d", op, lost, i+1, got, want)
					}
					if has, want := len(n.Keys()) == 2, op == "extend" && i >= lost || heals; has != want { // with its counter
						t.Errorf("%s, lost by %d of 5: node %d has %q", op, lost, i+1, n.Keys())
					}
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

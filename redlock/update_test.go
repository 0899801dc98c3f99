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
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// quorum is a backend over simulated nodes, whose commands pass through network.
func quorum(t *testing.T, network func(i int) simnode.Network, n int) (*majority, []*simnode.Node) {
	t.Helper()
	nodes, ds := make([]*simnode.Node, n), make([]drivers.Driver, n)
	b := &majority{budget: DefaultBudget, logger: slog.New(slog.DiscardHandler), closing: make(chan struct{})}
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

func acquired(t *testing.T, b *majority) backend.Request {
	t.Helper()
	req := backend.Request{Key: "k", Token: "owner of the lease", TTL: time.Minute}
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
			b.inFlight.Enter()
			u := newLeaseUpdate(b, l, req, opExtend)
			u.begin(ctx)
			synctest.Wait() // all have answered
			cancel()
			err := u.wait(ctx)
			b.inFlight.Leave()
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
		var b *majority
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

// A release that has won waits for the node that keeps the queue to say whether others wait, unless that was silent
// lately.
func TestReleaseHearsTheNodeThatKeepsTheQueue(t *testing.T) {
	for _, silent := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			keeper := agreed("k", 5)
			b, _ := quorum(t, func(i int) simnode.Network {
				return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
					time.Sleep(time.Millisecond)
					if i == keeper {
						time.Sleep(2 * time.Millisecond)
					}
					return execute(), nil
				}
			}, 5)
			req := acquired(t, b)
			time.Sleep(time.Second) // until all have granted
			want := 3 * time.Millisecond
			if silent {
				b.health.silent(keeper)
				want = time.Millisecond
			}
			begun := time.Now()
			if err := b.Release(t.Context(), req); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took != want {
				t.Errorf("silent %t: it took %v, want %v", silent, took, want)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Unlock waits for a grant that is under way, but not beyond its bound.
func TestUnlockDoesNotWaitForGrantsBeyondItsBound(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var slow, silent atomic.Bool
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(ctx context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				switch {
				case i == 4 && silent.Load():
					<-ctx.Done()
					return nil, ctx.Err()
				case slow.Load():
					time.Sleep(990 * time.Millisecond)
				default:
					time.Sleep(20 * time.Millisecond) // four times of which Unlock would wait for the last node
				}
				return execute(), nil
			}
		}, 5)
		c := locker.NewClient(b)
		lease, err := c.Lock(t.Context(), "k") // all nodes have been seen to answer
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		silent.Store(true)
		if lease, err = c.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		if err := lease.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("Unlock took %v of a bound of 1s, and its majority 990ms", took)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A second Unlock counts what nodes answer to the first one, which has been given up on by then.
func TestUnlockCountsAnswersToAnEarlierOne(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		delay.Store(int64(time.Millisecond))
		b, _ := quorum(t, func(int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				time.Sleep(time.Duration(delay.Load()))
				return execute(), nil
			}
		}, 3)
		c := locker.NewClient(b)
		lease, err := c.Lock(t.Context(), "k", locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // until all have granted
		delay.Store(int64(1500 * time.Millisecond))
		if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("the first call, after a second: %v", err)
		}
		delay.Store(int64(600 * time.Millisecond)) // after the first release was executed, and answered
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("the second call: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A release asks a node whose acquisition has ended by the time that it is won, whatever is known of the node.
func TestReleaseAsksNodesThatHaveAnsweredMeanwhile(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var late atomic.Bool
		late.Store(true)
		gate := make(chan struct{})
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == 4 && late.Swap(false) {
					<-gate
					execute()
					return nil, io.EOF
				}
				return execute(), nil
			}
		}, 5)
		req := acquired(t, b)
		b.health.silent(4)
		b.inFlight.Enter()
		u := newLeaseUpdate(b, req.Private.(*lease), req, opRelease)
		u.begin(t.Context())
		synctest.Wait() // four have confirmed the release
		close(gate)
		synctest.Wait() // the fifth may have granted
		if err := u.wait(t.Context()); err != nil {
			t.Error(err)
		}
		if !u.tally.asked.has(4) {
			t.Error("the node is not asked")
		}
		b.inFlight.Leave()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

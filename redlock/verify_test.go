package redlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

func silent(ctx context.Context, _ []drivers.Command, _ func() []drivers.Reply) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// outcomes returns the votes of a QuorumError, or nil.
func outcomes(err error) (votes []Outcome) {
	var e *QuorumError
	if errors.As(err, &e) {
		for _, v := range e.Votes {
			votes = append(votes, v.Outcome)
		}
	}
	return votes
}

// A majority of answers is a proof, whatever the others say, and it takes no longer than that majority. Without one,
// refusals are a loss, and faults are not.
func TestVerifyNeedsAMajority(t *testing.T) {
	for fault, want := range map[string]error{
		"deleted": locker.ErrNotHeld, "another's": locker.ErrNotHeld,
		"unreachable": locker.ErrNoQuorum, "silent": locker.ErrNoQuorum,
	} {
		for n := range 6 {
			virtual.Test(t, func(t *testing.T) {
				w := newFaultyNodes(t)
				req := acquired(t, w.majority)
				switch fault {
				case "unreachable":
					w.inject(n, unreachable)
				case "silent":
					w.inject(n, silent)
				default:
					for i, node := range w.nodes[:n] {
						node.Delete("k")
						if fault == "another's" {
							takes(t, node, "another", i+1)
						}
					}
				}
				want := want
				if n <= 2 {
					want = nil
				}
				start := time.Now()
				err := w.Verify(t.Context(), req)
				if !errors.Is(err, want) || n > 2 && errors.Is(err, locker.ErrNotHeld) == errors.Is(err, locker.ErrUnavailable) {
					t.Errorf("%s on %d of 5 nodes: got %v, want %v", fault, n, err, want)
				}
				if took := time.Since(start); took > 0 && fault != "silent" || took > DefaultBudget {
					t.Errorf("%s on %d of 5 nodes: it took %v", fault, n, took)
				} else if n <= 2 && took > 0 {
					t.Errorf("%s on %d of 5 nodes: it waited %v for them", fault, n, took)
				}
				w.ends(t)
			})
		}
	}
}

// takes has owner acquire the lock on a node that is number i of its list, and returns the counter.
func takes(t *testing.T, n *simnode.Node, owner string, i int) uint64 {
	t.Helper()
	a := script.Attempt{Keys: script.KeysOf("", "k"), Token: owner, Node: i}
	got, err := script.ReadAcquired(n.Execute(a.Acquire(time.Minute, quantum, 0).Usual.Alone().Words))
	if err != nil || got.Status != script.Granted {
		t.Fatalf("%s on node %d: %+v, %v", owner, i, got, err)
	}
	return got.Counter
}

// It is one command for each node, and changes nothing there.
func TestVerifyAsksEachNodeOnce(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		b, nodes := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				for _, cmd := range cmds {
					asked[fmt.Sprint(i, wire.Steps(cmd)[0].Script)]++
				}
				return execute(), nil
			}
		}, 1)
		req := acquired(t, b)
		nodes[0].Observe = func(s simnode.Step) {
			if s.Before != s.After {
				t.Errorf("%s changed %+v to %+v", s.Script, s.Before, s.After)
			}
		}
		clear(asked)
		if err := b.Verify(t.Context(), req); err != nil || len(asked) != 1 || asked["0verify"] != 1 {
			t.Errorf("got %v after %v", err, asked)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A node that got the lock back while it was held may have had another owner in between. It extends the lease, but
// proves nothing.
func TestNodesThatHealedProveNothing(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		req := acquired(t, w.majority)
		for _, n := range w.nodes[:2] {
			n.Delete("k")
		}
		for range 2 { // the first hears of it, and heals
			if err := w.Extend(t.Context(), req); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if has := w.has(); has != allOf(5) {
			t.Fatalf("healed on %v", has)
		}
		if err := w.Verify(t.Context(), req); err != nil {
			t.Errorf("with three nodes of five that have had the lock all the time: %v", err)
		}
		w.fault[2] = unreachable
		err := w.Verify(t.Context(), req)
		votes := fmt.Sprint(outcomes(err))
		if !errors.Is(err, locker.ErrNoQuorum) || votes != "[ahead ahead failed agreed agreed]" {
			t.Errorf("got %v", err)
		}
		if err := w.Extend(t.Context(), req); err != nil {
			t.Errorf("they extend the lease all the same: %v", err)
		}
		w.ends(t)
	})
}

// How a late grant ahead of the token would make a wrong certificate. Ann has nodes 1 and 2, and Bob the third, with a
// greater counter. Bob's lock there ends early, and Ann's late request takes it. Ann's lock on node 1 ends early, too.
// Bob gets it, raises it to what he was granted on the third node, and has a greater token.
func TestLateGrantAheadOfTheTokenIsNoProof(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		land := make(chan struct{})
		b, nodes := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == 2 && wire.Acquires(cmds[0]) {
					<-land
				}
				return execute(), nil
			}
		}, 3)
		nodes[2].Skew = time.Minute
		bobs := takes(t, nodes[2], "Bob", 3)
		req := acquired(t, b)
		nodes[2].Expire(func(string) bool { return true })
		close(land)
		synctest.Wait()
		if l := req.Private.(*lease); l.ahead[2] <= req.Fence {
			t.Fatalf("the third node granted %d, and the token is %d", l.ahead[2], req.Fence)
		}
		nodes[0].Expire(func(string) bool { return true })
		takes(t, nodes[0], "Bob", 1)
		raise := script.Attempt{Keys: script.KeysOf("", "k"), Token: "Bob", Node: 1}.Raise(bobs)
		if got := nodes[0].Execute(raise.Words); got != int64(1) || bobs <= req.Fence {
			t.Fatalf("Bob has no greater token: %v, %d", got, bobs)
		}
		err := b.Verify(t.Context(), req)
		if got := fmt.Sprint(outcomes(err)); !errors.Is(err, locker.ErrNoQuorum) || got != "[held agreed ahead]" {
			t.Errorf("got %v, after token %d had been issued, and this lease has %d", err, bobs, req.Fence)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Only answers to requests of the call itself count. Here those to an earlier one arrive while the next one waits.
func TestVerifyCountsFreshAnswersOnly(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		req := acquired(t, w.majority)
		w.inject(5, func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			replies := execute()
			time.Sleep(DefaultBudget * 3 / 2)
			return replies, nil
		})
		if err := w.Verify(t.Context(), req); !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("nobody has answered in time: %v", err)
		}
		for i, n := range w.nodes {
			n.Delete("k")
			takes(t, n, "another", i+1)
		}
		if err := w.Verify(t.Context(), req); err == nil {
			t.Error("answers from before the loss count")
		}
		w.ends(t)
	})
}

// A lease that Verify has found lost is not acquired again, by an extension that was under way and is not answered.
func TestVerifyThatFindsALossEndsHealing(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		req := acquired(t, w.majority)
		for _, n := range w.nodes[:3] {
			n.Delete("k")
		}
		for i := range w.nodes {
			w.fault[i] = func(
				ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply,
			) ([]drivers.Reply, error) {
				if wire.Calls(cmds[0], "extend") {
					return silent(ctx, cmds, execute)
				}
				return execute(), nil
			}
		}
		extended := make(chan error)
		go func() { extended <- w.Extend(t.Context(), req) }()
		synctest.Wait()
		if err := w.Verify(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("got %v", err)
		}
		for i := range w.asked {
			w.asked[i].Store(0)
		}
		if err := <-extended; !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("the extension: %v", err)
		}
		synctest.Wait()
		for i := range w.asked {
			if n := w.asked[i].Load(); n != 0 {
				t.Errorf("node %d was asked for the lock %d times", i+1, n)
			}
		}
		w.ends(t)
	})
}

// A grant that is still in flight is waited for, and its node then asked, if the others are not enough.
func TestVerifyAsksNodesWhoseGrantArrives(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		land, fault := make(chan struct{}), false
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				replies := execute()
				if i == 2 && wire.Acquires(cmds[0]) {
					<-land
				}
				if fault && i == 0 {
					return silent(ctx, cmds, execute)
				}
				return replies, nil
			}
		}, 3)
		req := acquired(t, b)
		fault = true
		time.AfterFunc(100*time.Millisecond, func() { close(land) })
		if err := b.Verify(t.Context(), req); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Two addresses of one server are one answer, although both lead to the lock of the lease.
func TestVerifyCountsAServerOnce(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var nodes []*simnode.Node
		moved := false
		var b *majority
		b, nodes = quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == 1 && moved {
					return []drivers.Reply{nodes[0].Execute(cmds[0])}, nil
				}
				return execute(), nil
			}
		}, 3)
		req := acquired(t, b)
		moved = true
		nodes[2].Delete("k")
		err := b.Verify(t.Context(), req)
		if got := fmt.Sprint(outcomes(err)); !errors.Is(err, locker.ErrNoQuorum) || got != "[agreed duplicate held]" {
			t.Errorf("got %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

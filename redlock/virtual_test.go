package redlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/redlock"
)

// swallowed never answers before its context ends.
func swallowed(ctx context.Context, _ []drivers.Command, _ func() []drivers.Reply) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, io.EOF
}

// Nodes that grant late, with a counter past the token because their clocks are ahead, count when others fail.
func TestLateGrantsAheadOfTheTokenCount(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var prompt simnode.Wire // nodes 1 and 2
		nodes := make([]*simnode.Node, 5)
		ds := make([]drivers.Driver, 5)
		for i := range nodes {
			nodes[i] = simnode.New()
			network := simnode.Network(prompt.Deliver)
			if i >= 3 {
				nodes[i].Skew = 10 * time.Second
				network = func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
					time.Sleep(10 * time.Millisecond)
					return execute(), nil
				}
			} else if i == 2 {
				network = nil
			}
			ds[i] = nodes[i].Driver(network)
		}
		c := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
		lease, err := c.TryLock(t.Context(), "k", locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		resume := prompt.Hang()
		if err := lease.Extend(t.Context()); err != nil {
			t.Errorf("Extend by nodes 3 to 5: %v", err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock by nodes 3 to 5: %v", err)
		}
		resume()
		if next, err := c.TryLock(t.Context(), "k"); err != nil || next.Fence() <= lease.Fence() {
			t.Errorf("the next lease: %v, %v", next, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// If a majority refuses at once, the other node had no chance to answer. The error does not say that it has failed.
func TestNodeThatWasNotHeardIsNoFault(t *testing.T) {
	late := func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
		time.Sleep(time.Millisecond)
		return execute(), nil
	}
	for _, tt := range []struct {
		others simnode.Network
		text   string
		want   []redlock.Outcome
	}{
		{simnode.Dead, "c not heard", []redlock.Outcome{redlock.Failed, redlock.Failed, redlock.NotHeard}},
		{swallowed, "a no answer; b no answer", []redlock.Outcome{redlock.NoAnswer, redlock.NoAnswer, redlock.Agreed}},
	} {
		virtual.Test(t, func(t *testing.T) {
			ds := make([]drivers.Driver, 3)
			for i, network := range []simnode.Network{tt.others, tt.others, late} {
				ds[i] = simnode.New().Driver(network)
			}
			l := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)), redlock.Names("a", "b", "c"))
			time.Sleep(time.Minute)
			_, err := l.TryLock(t.Context(), "k")
			for i, v := range quorumError(t, err).Votes {
				if v.Outcome != tt.want[i] {
					t.Errorf("%s: %q, want %q", v.Node, v.Outcome, tt.want[i])
				}
			}
			wantText(t, err, tt.text)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A node that was not waited for is reported later: a slow node has answered, and a hung node has not.
func TestLateVotesAreTraced(t *testing.T) {
	const timeout = 2 * time.Second
	virtual.Test(t, func(t *testing.T) {
		networks := []simnode.Network{nil, nil, func(_ context.Context, _ []drivers.Command,
			execute func() []drivers.Reply) ([]drivers.Reply, error) {
			time.Sleep(10 * time.Millisecond)
			return execute(), nil
		}, swallowed, nil}
		ds := make([]drivers.Driver, len(networks))
		for i, network := range networks {
			ds[i] = simnode.New().Driver(network)
		}
		l := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)), redlock.Timeout(timeout),
			redlock.Names("a", "b", "slow", "hung", "c"))
		time.Sleep(time.Minute)
		var mu sync.Mutex
		votes := map[string][]lockertrace.Vote{}
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
			mu.Lock()
			defer mu.Unlock()
			if v.Late || v.Pending {
				votes[v.Op+" "+v.Node] = append(votes[v.Op+" "+v.Node], v)
			}
		}})
		lease, err := l.Lock(ctx, "k", locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := lease.Extend(ctx); err != nil {
			t.Error(err)
		}
		if err := lease.Unlock(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if _, err = l.TryLock(ctx, "k"); err != nil { // whose late answers come when it is closed: they are none
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for op, want := range map[string]int{"acquire slow": 3, "extend slow": 2, "release slow": 2, "acquire hung": 3} {
			got := votes[op]
			if len(got) != want {
				t.Errorf("%s: %+v", op, got)
				continue
			}
			for i, v := range got {
				late := i%2 == 1
				failed := !late || v.Node == "hung"
				if v.Late != late || v.Pending == late || errors.Is(v.Err, locker.ErrUnavailable) != failed ||
					late && (v.Duration < 10*time.Millisecond || v.Node == "hung" && v.Duration != timeout) {
					t.Errorf("%s: vote %d is %+v", op, i, v)
				}
			}
			delete(votes, op)
		}
		if len(votes) != 0 {
			t.Errorf("others were silent or late: %+v", votes)
		}
	})
}

// An acquisition whose replies are lost after it was executed leaves nothing on those nodes either.
func TestRepliesOfALostRoundAreLost(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var lose atomic.Bool
		nodes, ds := make([]*simnode.Node, 5), make([]drivers.Driver, 5)
		for i := range ds {
			nodes[i] = simnode.New()
			ds[i] = nodes[i].Driver(func(_ context.Context, _ []drivers.Command,
				execute func() []drivers.Reply) ([]drivers.Reply, error) {
				replies := execute()
				if i < 3 && lose.Load() {
					return nil, io.EOF
				}
				return replies, nil
			})
		}
		l := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
		time.Sleep(time.Minute)
		lose.Store(true)
		if _, err := l.TryLock(t.Context(), "k", locker.TTL(time.Hour)); !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("TryLock: %v", err)
		}
		lose.Store(false)
		time.Sleep(time.Minute)
		for i, n := range nodes {
			if slices.Contains(n.Keys(), "lock:k") {
				t.Errorf("node %d still has the lock", i)
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

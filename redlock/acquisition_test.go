package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/lockertrace"
)

// An acquisition that has stopped waiting for silent nodes, and then got a majority, waits for the raises as long as
// its budget allows.
func TestTimeoutIsForVotes(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const held, slow, silent = 2, 3, 4
		b, nodes := quorum(t, func(i int) simnode.Network {
			return func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				switch {
				case i == silent:
					<-ctx.Done()
					return nil, ctx.Err()
				case i == slow: // the third to grant
					time.Sleep(minTimeout / 4)
				case wire.Calls(cmds[0], "raise"):
					time.Sleep(2 * minTimeout)
				}
				return execute(), nil
			}
		}, 5)
		for i, n := range nodes {
			n.Skew = -time.Duration(i) * time.Second // their counters differ
		}
		if _, err := b.nodes[held].Acquire(t.Context(),
			backend.Request{Key: "k", Token: "somebody else", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		req := acquired(t, b)
		if err := b.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// While somebody else has a node, an acquisition does not wait for silent nodes as long as its budget allows. Its
// grants would keep others from a majority.
func TestRoundsAtOddsEndSoon(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const held = 0
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(ctx context.Context, _ []drivers.Command,
				execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i > 2 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return execute(), nil
			}
		}, 5)
		if _, err := b.nodes[held].Acquire(t.Context(),
			backend.Request{Key: "k", Token: "somebody else", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := b.Acquire(t.Context(), backend.Request{Key: "k", Token: "owner", TTL: time.Minute})
		if took := time.Since(start); err == nil || took > DefaultBudget/4 {
			t.Errorf("%v after %v", err, took)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An acquisition that was lost waits for nodes that answer soon. So none of its requests is executed after the owner
// has released the lock.
func TestLostAcquisitionLeavesNothingUnderWay(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const late = 2
		var executed atomic.Int64
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command,
				execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if i == late {
					time.Sleep(300 * time.Microsecond)
				}
				executed.Add(1)
				return execute(), nil
			}
		}, 3)
		for _, n := range b.nodes {
			other := backend.Request{Key: "k", Token: "somebody else", TTL: time.Minute}
			if _, err := n.Acquire(t.Context(), other); err != nil {
				t.Fatal(err)
			}
		}
		executed.Store(0)
		_, err := b.Acquire(t.Context(), backend.Request{Key: "k", Token: "owner", TTL: time.Minute})
		if n := executed.Load(); !errors.Is(err, locker.ErrHeld) || n != 6 { // usual case and script, of each
			t.Errorf("%v after %d commands", err, n)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// After a stall of the process, the answers, the end of the timeout and the end of the budget are ready at the same
// time. The answers count, whichever is noticed first.
func TestVotesThatHaveComeCount(t *testing.T) {
	for name, tt := range map[string]struct {
		others int // nodes that somebody else has
		at     int // the vote that the process is stalled after
		stall  time.Duration
	}{"timeout": {2, 4, 2 * minTimeout}, "budget": {0, 1, 2 * DefaultBudget}} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				b, _ := quorum(t, func(i int) simnode.Network {
					return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
						time.Sleep(time.Duration(i+1) * time.Millisecond)
						return execute(), nil
					}
				}, 5)
				for try := range 16 { // select draws lots
					key := fmt.Sprint("k", try)
					for _, n := range b.nodes[:tt.others] {
						if _, err := n.Acquire(t.Context(), backend.Request{Key: key, Token: "somebody else",
							TTL: time.Minute}); err != nil {
							t.Fatal(err)
						}
					}
					heard := 0
					ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Voted: func(lockertrace.Vote) {
						if heard++; heard == tt.at {
							time.Sleep(tt.stall)
						}
					}})
					if _, err := b.Acquire(ctx, backend.Request{Key: key, Token: "owner", TTL: time.Minute}); err != nil {
						t.Error(err)
					}
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Answers that come while the process is stalled and its context ends do not make a lock. The error says why not.
func TestErrorOfAMajorityThatCameTooLate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				time.Sleep(time.Duration(i+1) * time.Millisecond)
				return execute(), nil
			}
		}, 5)
		late := 0
		for try := range 32 { // select draws lots
			// It begins with a quantum, so that all counters agree and there is no second round.
			time.Sleep(time.Duration(quantum-time.Now().UnixMicro()%quantum) * time.Microsecond)
			heard := 0
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			traced := lockertrace.With(ctx, &lockertrace.Trace{Voted: func(lockertrace.Vote) {
				if heard++; heard == 1 {
					time.Sleep(20 * time.Millisecond)
				}
			}})
			_, err := b.Acquire(traced, backend.Request{Key: fmt.Sprint("k", try), Token: "owner", TTL: time.Minute})
			cancel()
			if err == nil {
				continue // select happened to take the answers first
			}
			late++
			if text := err.Error(); text != "no quorum: acquire: 5 of 5 nodes agreed, but not in time" {
				t.Error(text)
			}
		}
		if late == 0 {
			t.Error("none came too late")
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

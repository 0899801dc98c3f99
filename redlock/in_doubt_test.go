package redlock

import (
	"context"
	"errors"
	"io"
	"slices"
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
)

// An acquisition that heals is in flight when Unlock begins, or when the lease is over. It is released, whenever the
// node executes it, and whether its answer comes or not. After Unlock nothing heals.
func TestHealingThatComesTooLateIsUndone(t *testing.T) {
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
		for _, lost := range []string{"", "reply", "executed twice as late"} {
			for _, unlocks := range []bool{false, true} {
				virtual.Test(t, func(t *testing.T) {
					w := newFaultyNodes(t)
					w.inject(1, unreachable)
					req := acquired(t, w.majority)
					time.Sleep(time.Second) // it is connected to again
					var healing atomic.Bool
					w.inject(1, func(ctx context.Context, cmds []drivers.Command,
						execute func() []drivers.Reply) ([]drivers.Reply, error) {
						if !slices.ContainsFunc(cmds, isAcquiring) {
							return execute(), nil
						}
						healing.Store(true)
						if lost == "" {
							time.Sleep(after)
							return execute(), nil
						}
						go func() {
							if time.Sleep(after); lost != "reply" {
								time.Sleep(after)
							}
							execute()
						}()
						time.Sleep(min(after, time.Second))
						return nil, io.EOF
					})
					if err := w.Extend(t.Context(), req); err != nil {
						t.Fatal(err)
					}
					if synctest.Wait(); !healing.Load() {
						t.Fatal("it does not heal")
					}
					if unlocks {
						if err := w.Release(t.Context(), req); err != nil {
							t.Error(err)
						}
					} else {
						l := req.Private.(*lease)
						l.mu.Lock()
						l.until = time.Now().Add(-time.Second)
						l.mu.Unlock()
					}
					// The clean-up needs a moment. One that is neither unlocked nor answered is left to its TTL, as on
					// a crash.
					time.Sleep(45 * time.Second)
					if got := w.has(); got.has(0) && (unlocks || lost == "" && after > 0) {
						t.Errorf("executed after %v, %q lost, unlocked %t: the node has the lock", after, lost, unlocks)
					}
					w.ends(t)
				})
			}
		}
	}
}

// An acquisition that was not answered, of the round or to heal, may be executed long after Unlock.
func TestUnlockKeepsWhatIsInDoubtFromLanding(t *testing.T) {
	for _, heals := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			w := newFaultyNodes(t)
			loses := func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if !slices.ContainsFunc(cmds, isAcquiring) {
					return execute(), nil
				}
				time.AfterFunc(20*time.Second, func() { execute() })
				return nil, io.EOF
			}
			w.inject(2, loses)
			if heals {
				w.inject(2, unreachable)
			}
			req := acquired(t, w.majority)
			if time.Sleep(time.Second); heals {
				w.inject(2, loses)
				if err := w.Extend(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
			if err := w.Release(t.Context(), req); err != nil {
				t.Error(err)
			}
			time.Sleep(30 * time.Second)
			if got := w.has(); got != 0 {
				t.Errorf("heals %t: nodes %b have the lock", heals, got)
			}
			w.ends(t)
		})
	}
}

// A node that has not said whether it has the lock has not denied it. Two of five nodes did not answer the acquisition,
// or not the one that was to heal them, and a third node loses the key. A majority still has the lock.
func TestNodeInDoubtDeniesNothing(t *testing.T) {
	for _, heals := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			w := newFaultyNodes(t)
			if heals {
				w.inject(2, unreachable)
			} else {
				w.inject(2, replyLost)
			}
			req := acquired(t, w.majority)
			if heals {
				time.Sleep(time.Second)
				w.inject(2, replyLost)
				if err := w.Extend(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			w.inject(2, nil)
			w.nodes[2].Expire(func(string) bool { return true })
			if got := w.has(); got != set(0, 1, 3, 4) {
				t.Fatalf("nodes %b have the lock", got)
			}
			if err := w.Extend(t.Context(), req); !errors.Is(err, locker.ErrNoQuorum) {
				t.Errorf("heals %t: Extend: %v", heals, err)
			}
			synctest.Wait()
			if err := w.Extend(t.Context(), req); err != nil {
				t.Errorf("heals %t: Extend again: %v", heals, err)
			}
			w.ends(t)
		})
	}
}

// The same with nodes that answer that somebody else has the lock. Then a majority lacks it.
func TestNodeInDoubtMayDeny(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		w.inject(2, replyLost)
		req := acquired(t, w.majority)
		w.inject(2, occupied)
		if err := w.Extend(t.Context(), req); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		w.nodes[2].Expire(func(string) bool { return true })
		if err := w.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("Extend: %v", err)
		}
		w.ends(t)
	})
}

// Of two extensions at once, one heals two nodes while a third one loses the key under the other.
func TestNodeThatHasHealedDeniesNothing(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		w.inject(2, unreachable)
		req := acquired(t, w.majority)
		time.Sleep(time.Second)
		w.inject(2, nil)
		late := func(delays ...time.Duration) simnode.Network {
			var n atomic.Int64
			return func(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				time.Sleep(delays[min(int(n.Add(1)), len(delays))-1])
				return execute(), nil
			}
		}
		w.mu.Lock()
		w.fault[2] = late(0, 100*time.Millisecond) // the second extension
		w.fault[3] = late(10 * time.Millisecond)
		w.mu.Unlock()
		extended := [2]chan error{make(chan error, 1), make(chan error, 1)}
		for i := range extended {
			go func() { extended[i] <- w.Extend(t.Context(), req) }()
			synctest.Wait()
		}
		if err := <-extended[0]; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		w.nodes[2].Expire(func(string) bool { return true })
		if got := w.has(); got != set(0, 1, 3, 4) {
			t.Fatalf("nodes %b have the lock", got)
		}
		if err := <-extended[1]; !errors.Is(err, locker.ErrNoQuorum) {
			t.Errorf("Extend: %v", err)
		}
		w.ends(t)
	})
}

// Acquisitions that heal are executed by three of five nodes after the lease is over, when somebody else has had the
// lock in between. Unlock, which waits for them, does not take that for a lock that was held to the end.
func TestUnlockDoesNotCountWhatIsGrantedTooLate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w := newFaultyNodes(t)
		w.budget = 5 * time.Second
		w.inject(2, unreachable)
		lock := func(b *majority, owner string) backend.Request {
			t.Helper()
			req := backend.Request{Key: "k", Token: owner, TTL: 2 * time.Second}
			g, err := b.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			req.Fence, req.Private = g.Fence, g.Private
			return req
		}
		req := lock(w.majority, "owner of the lease")
		time.Sleep(200 * time.Millisecond)
		land := time.Now().Add(4 * time.Second)
		w.inject(3, func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			if slices.ContainsFunc(cmds, isAcquiring) {
				time.Sleep(time.Until(land))
			}
			return execute(), nil
		})
		if err := w.Extend(t.Context(), req); err != nil { // heals nodes 0 and 1
			t.Fatal(err)
		}
		synctest.Wait()
		w.nodes[2].Expire(func(string) bool { return true })
		w.mu.Lock()
		w.fault[4] = swallowedUp
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := w.Extend(ctx, req); !errors.Is(err, locker.ErrNoQuorum) { // heals node 2
			t.Errorf("Extend: %v", err)
		}
		cancel()
		time.Sleep(1200 * time.Millisecond)
		others, _ := quorum(t, func(int) simnode.Network { return nil }, 0)
		for i, n := range w.nodes {
			others.names = append(others.names, w.names[i])
			others.nodes = append(others.nodes, node.New(n.Driver(nil), node.Options{Name: w.names[i]}))
		}
		other := lock(others, "somebody else")
		if err := others.Release(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := w.Release(t.Context(), req); err == nil {
			t.Errorf("Unlock of token %d: nil, after token %d", req.Fence, other.Fence)
		}
		time.Sleep(5 * time.Second)
		if got := w.has(); got != 0 {
			t.Errorf("nodes %b have the lock", got)
		}
		if err := others.Close(); err != nil {
			t.Error(err)
		}
		w.ends(t)
	})
}

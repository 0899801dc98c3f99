package redlock

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// The time between the release of a lock and its next acquisition, by a waiter that was told of the release.
const prompt = 15 * time.Millisecond

// whenLocked has l lock k, within ten minutes, and unlock it. It sends when l got the lock.
func whenLocked(t *testing.T, l locker.Locker) <-chan time.Time {
	got := make(chan time.Time, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		lease, err := l.Lock(ctx, "k")
		got <- time.Now()
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}()
	return got
}

// A waiter that does not trust the node that keeps the queue, because that node has the lock of a dead owner, waits on
// another one. It has a position there at once, so that it is told of the next release.
func TestWaiterThatLeavesAQueueIsInTheNext(t *testing.T) {
	for after := 100 * time.Millisecond; after < 2*time.Second; after *= 2 {
		virtual.Test(t, func(t *testing.T) {
			s := newStreet(t)
			holder, w := s.client(), s.client()
			s.nodes[queueNode].Execute(dead("k"))
			lease, err := holder.Lock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			got := whenLocked(t, w)
			for b := s.backends[1]; b.hints.fit("k", queueNode, len(s.nodes)) == queueNode; {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(after)
			released := time.Now()
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if gap := (<-got).Sub(released); gap > prompt {
				t.Errorf("released %v after the waiter has left the queue: nobody had the lock for %v", after, gap)
			}
			time.Sleep(2 * time.Minute) // the dead owner's lock ends
			s.close()
		})
	}
}

// An attempt that was too early fails, because the release before it has not come to all nodes. A waiter that finds its
// own lock afterwards, because what undoes the attempt is slower than its next look, looks again soon.
func TestWaiterIsNotHeldUpByItsOwnAttempt(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const holders, waiters = 0, 1
		s := newStreet(t)
		var late, undone atomic.Bool // a release; what the attempt after it has got on the node of the queue
		var free time.Time           // when it was undone
		s.event = func(client, node int, cmds []drivers.Command, executed bool) {
			switch {
			case executed, !wire.Releases(cmds[0]):
			case client == holders && node != queueNode:
				late.Store(true)
				time.Sleep(2 * time.Millisecond)
			case client == waiters && node == queueNode && undone.CompareAndSwap(false, true):
				time.Sleep(6 * time.Millisecond)
				free = time.Now()
			}
		}
		holder, waiter := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		got := whenLocked(t, waiter)
		time.Sleep(time.Second)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if gap := (<-got).Sub(free); !late.Load() || !undone.Load() || gap > prompt {
			t.Errorf("late: %v, undone: %v; after that, nobody had the lock for %v", late.Load(), undone.Load(), gap)
		}
		s.close()
	})
}

// When a lock has ended by its time and another is there, the waiter that had the turn has probably taken it, and the
// others need not ask the nodes. They believe that once between two attempts, and not while nodes fail.
func TestWaiterLetsOneAttemptBe(t *testing.T) {
	const ttl = time.Second
	virtual.Test(t, func(t *testing.T) {
		w := &waiter{}
		look := func(after, left time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			if got := w.changed(left); got != want {
				t.Errorf("changed: %v, want %v", got, want)
			}
		}
		look(0, ttl, false)       // the first look
		look(ttl/2, ttl, false)   // extended
		look(ttl+1, ttl, true)    // another one
		look(ttl+1, ttl, false)   // again
		look(ttl/2, 0, true)      // free
		look(ttl, 0, false)       // still free
		look(ttl, ttl, false)     // taken
		w.waived = false          // as after an attempt
		look(ttl/2, ttl/2, false) // the same lock
		w.moved = true
		look(ttl+1, ttl, false)
		w.moved, w.fault = false, locker.ErrNoQuorum
		look(ttl+1, ttl, false)
		w.fault = nil
		look(ttl+1, ttl, true)
	})
}

// A client that reaches only the node that keeps the queue tries again and again. What its attempts leave there for a
// while looks like the lock of one holder after another. A waiter finds out nevertheless that the lock is free.
func TestClientThatReachesOnlyTheQueueHoldsUpNobody(t *testing.T) {
	for _, ttl := range []time.Duration{locker.DefaultTTL, 2 * time.Second, 300 * time.Millisecond} {
		virtual.Test(t, func(t *testing.T) {
			const polling = 2
			s := newStreet(t)
			holder, waiter, poller := s.client(), s.client(), s.client()
			for i := range s.nodes {
				if i != queueNode {
					s.set(polling, i, "hung")
				}
			}
			var run sync.WaitGroup
			var over atomic.Bool
			run.Go(func() {
				for ; !over.Load(); time.Sleep(10 * time.Millisecond) {
					if _, err := poller.TryLock(t.Context(), "k", locker.TTL(ttl)); err == nil {
						t.Error("a client that reaches one node has the lock")
					}
				}
			})
			time.Sleep(1500 * time.Millisecond)
			lease, err := holder.Lock(t.Context(), "k", locker.NoRenewal(), locker.TTL(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			got := whenLocked(t, waiter)
			time.Sleep(5 * time.Second)
			released := time.Now()
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if gap := (<-got).Sub(released); gap > 5*overdue {
				t.Errorf("TTL of the attempts %v: nobody had the lock for %v", ttl, gap)
			}
			over.Store(true)
			run.Wait()
			for i := range s.nodes {
				s.set(polling, i, "")
			}
			time.Sleep(time.Minute)
			s.close()
		})
	}
}

// When a holder has died, all its waiters have heard nothing for as long as the TTL. They take over one after the other
// nevertheless, without a pause and without competing: only the one whose turn it is asks the nodes.
func TestWaitersOfADeadHolderTakeTurns(t *testing.T) {
	const (
		waiters = 4
		hold    = 20 * time.Millisecond
		ttl     = 2 * time.Second
	)
	for range 20 {
		virtual.Test(t, func(t *testing.T) {
			s := newStreet(t)
			s.event = func(_, _ int, _ []drivers.Command, executed bool) {
				if !executed {
					time.Sleep(rand.N(time.Millisecond))
				}
			}
			holder := s.client()
			if _, err := holder.Lock(t.Context(), "k", locker.TTL(ttl)); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			end := time.Now().Add(4 * ttl)
			var free time.Time // when the last one began to release; zero: no waiter has had it
			var run sync.WaitGroup
			for range waiters {
				time.Sleep(rand.N(100 * time.Millisecond))
				w := s.client()
				run.Go(func() {
					for time.Now().Before(end) {
						l, err := w.Lock(t.Context(), "k", locker.TTL(ttl))
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						if gap := time.Since(free); !free.IsZero() && gap > prompt && time.Now().Before(end) {
							t.Errorf("nobody had the lock for %v", gap)
						}
						mu.Unlock()
						time.Sleep(hold)
						mu.Lock()
						free = time.Now()
						mu.Unlock()
						if err := l.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
						time.Sleep(hold) // others wait
					}
				})
			}
			time.Sleep(rand.N(2 * ttl))
			for i := range s.nodes {
				s.set(0, i, "hung")
			}
			run.Wait()
			for i := range s.nodes {
				s.set(0, i, "")
			}
			time.Sleep(time.Minute)
			s.close()
		})
	}
}

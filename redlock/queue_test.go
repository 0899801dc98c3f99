package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/lockertrace"
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
			s := newTestbed(t)
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
		s := newTestbed(t)
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

// A client that reaches only the node that keeps the queue tries again and again. What its attempts leave there for a
// while looks like the lock of one holder after another. A waiter finds out nevertheless that the lock is free.
func TestClientThatReachesOnlyTheQueueHoldsUpNobody(t *testing.T) {
	for _, ttl := range []time.Duration{locker.DefaultTTL, 2 * time.Second, 300 * time.Millisecond} {
		virtual.Test(t, func(t *testing.T) {
			const polling = 2
			s := newTestbed(t)
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
			s := newTestbed(t)
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

// A holder that dies right after it was given the turn is waited for until its TTL is over, or until the turn is, if
// that takes longer.
func TestWaiterTakesTheLockWhenTheNextHolderHasDied(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for held := time.Duration(0); held < 4*time.Second; held += 390 * time.Millisecond {
			t.Run(fmt.Sprintf("%v after %v", ttl, held), func(t *testing.T) {
				virtual.Test(t, func(t *testing.T) { nextHolderDies(t, ttl, held) })
			})
		}
	}
}

func nextHolderDies(t *testing.T, ttl, held time.Duration) {
	s := newTestbed(t)
	type got struct {
		lease locker.Lease
		err   error
		at    time.Time
	}
	lock := func(c *locker.Client) <-chan got {
		locked := make(chan got, 1)
		go func() {
			l, err := c.Lock(t.Context(), "k", locker.TTL(ttl))
			locked <- got{l, err, time.Now()}
		}()
		time.Sleep(10 * time.Millisecond)
		return locked
	}
	first := <-lock(s.client())
	next, waits := lock(s.client()), lock(s.client())
	time.Sleep(held)
	if err := first.lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	dead := <-next
	s.setAll(1, "hung")

	last := <-waits
	if late := last.at.Sub(dead.at.Add(max(ttl, script.ClaimWindow))); late > 20*time.Millisecond {
		t.Errorf("%v late", late)
	}
	s.setAll(1, "")
	if err := last.lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	s.close()
}

// setAll puts the ways from a client to all nodes into a state.
func (s *testbed) setAll(client int, state string) {
	for i := range s.nodes {
		s.set(client, i, state)
	}
}

// The node that keeps the queue may lack the lock, and tell a waiter only that others come first. The waiter then does
// not say that it waits for somebody without a label, but finds out who has the lock.
func TestWaitingNamesAHolderThatTheQueueDoesNotKnow(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, waiter := s.client(), s.client()
		keeper := s.backends[0].keeper("k", nil)
		s.set(0, keeper, "dead")
		lease, err := holder.Lock(t.Context(), "k", locker.TTL(time.Minute), locker.Label("web-7:4211"))
		if err != nil {
			t.Fatal(err)
		}
		if first, err := s.backends[1].nodes[keeper].NewTurn("k").Ask(t.Context()); err != nil || !first.Mine {
			t.Fatal("somebody else has the turn:", first, err)
		}
		s.backends[1].hints.contend("k") // so that the waiter queues before it asks
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var labels []string
		ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(w lockertrace.Waiting) {
			labels = append(labels, w.Label)
		}})
		if _, err := waiter.Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		if len(labels) != 1 || labels[0] != "web-7:4211" {
			t.Errorf("the waiter was told of the holders %q", labels)
		}
		s.set(0, keeper, "")
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		s.close()
	})
}

// A waiter asks the quorum about every two seconds, and the node that keeps the queue three times a second. It cannot
// tell a lost message from a message that is yet to come.
func TestWaitersCostLittle(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, waiter := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		const minute = 60
		begun := s.asked()
		time.AfterFunc(minute*time.Second, func() { _ = lease.Unlock(t.Context()) })
		looks := 0
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Woken: func(lockertrace.Wake) { looks++ }})
		next, err := waiter.Lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if n := s.asked() - begun; n > minute/2+2 || looks > 3*minute {
			t.Errorf("%d attempts and %d looks in a minute", n, looks)
		}
		_ = next.Unlock(t.Context())
		time.Sleep(time.Minute)
		s.close()
	})
}

// Behind another library, whose release notifies nobody, the first waiter polls the node that keeps the queue.
func TestFirstWaiterPollsBehindAnotherLibrary(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const most, d = 200 * time.Millisecond, time.Minute
		s := newTestbed(t)
		for _, n := range s.nodes {
			n.Take("lock:k", "theirs", time.Hour)
		}
		var turns [4]atomic.Int64 // by client
		s.event = func(client, _ int, cmds []drivers.Command, executed bool) {
			if !executed && isTurn(cmds[0]) {
				turns[client].Add(1)
			}
		}
		var got [len(turns)]<-chan time.Time
		for i := range got {
			got[i] = whenLocked(t, s.client())
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		for i := range turns {
			turns[i].Store(0)
		}
		time.Sleep(d)
		for i := range turns {
			switch n := turns[i].Load(); {
			case i == 0 && (n < int64(d/most)-5 || n > int64(3*d/most)):
				t.Errorf("the first waiter has looked %d times in %v", n, d)
			case i > 0 && n > int64(d/most)/2:
				t.Errorf("waiter %d has looked %d times in %v", i, n, d)
			}
		}
		released := time.Now()
		for _, n := range s.nodes {
			n.Delete("lock:k")
		}
		if late := (<-got[0]).Sub(released); late > most+prompt {
			t.Errorf("the first waiter has the lock after %v", late)
		}
		for _, g := range got[1:] {
			<-g
		}
		s.close()
	})
}

// A waiter is told that the quorum is lost, and not of a holder that most nodes do not know any more. The same holds
// for callers that wait behind one another in a Client. Their patience counts from when the first of them noticed the
// loss.
func TestWhoWaitsIsToldThatTheQuorumIsLost(t *testing.T) {
	for _, state := range []string{"dead", "hung"} {
		for _, keeper := range []int{0, 1} { // whether the node that keeps the queue is among those that are down
			t.Run(fmt.Sprint(state, " keeper down=", keeper == 0), func(t *testing.T) {
				virtual.Test(t, func(t *testing.T) {
					s := newTestbed(t)
					holder, w := s.client(), s.client()
					held, err := holder.Lock(t.Context(), "k", locker.TTL(time.Hour), locker.NoRenewal())
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					lock := func(w *locker.Client, d time.Duration, opts ...locker.Option) <-chan error {
						got := make(chan error, 1)
						ctx, cancel := context.WithTimeout(t.Context(), d)
						go func() {
							defer cancel()
							_, err := w.Lock(ctx, "k", opts...)
							got <- err
						}()
						time.Sleep(10 * time.Millisecond)
						return got
					}
					short, long := lock(w, 5*time.Second), lock(w, 25*time.Second)
					alone := lock(s.client(), 25*time.Second, locker.Patience(2*time.Second))
					time.Sleep(time.Second)
					for i := range 3 {
						s.set(everybody, (queueNode+keeper+i)%5, state)
					}
					err = <-short
					if !errors.Is(err, locker.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) ||
						errors.Is(err, locker.ErrHeld) {
						t.Errorf("after %v: %v", time.Since(begun), err)
					}
					err = <-alone // it is the second in the queue, and asks the quorum six seconds after it has begun to wait
					if took := time.Since(begun); !errors.Is(err, locker.ErrNoQuorum) || took > 10*time.Second {
						t.Errorf("with a patience of two seconds, after %v: %v", took, err)
					}
					err = <-long
					if !errors.Is(err, locker.ErrNoQuorum) || errors.Is(err, context.DeadlineExceeded) ||
						errors.Is(err, locker.ErrHeld) {
						t.Errorf("after %v: %v", time.Since(begun), err)
					}
					// A second, the time until it is noticed, and the patience, with the last attempts.
					if took := time.Since(begun); took < time.Second+locker.DefaultPatience ||
						took > 4*time.Second+locker.DefaultPatience+2*DefaultBudget {
						t.Errorf("it was given up after %v: %v", took, err)
					}
					for i := range s.nodes {
						s.set(everybody, i, "")
					}
					if err := held.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Minute)
					s.close()
				})
			})
		}
	}
}

// The answers to a renewal say that the lock is marked on the node that keeps the queue, also if they come after the
// decision. The mark stays when those that have waited have left.
func TestRenewalsTellThatOthersWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		s := newTestbed(t)
		holder, other := s.client(), s.client()
		lease, err := holder.TryLock(t.Context(), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		wanted := locker.Wanted(lease)
		open := func(when string) {
			t.Helper()
			time.Sleep(ttl)
			select {
			case <-wanted:
				t.Errorf("%s: the lease is wanted", when)
			default:
			}
		}
		open("nobody waits")
		ctx, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer leave()
		if _, err := other.Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		open("those that have waited have left")
		got := whenLocked(t, other)
		select {
		case <-wanted:
		case <-time.After(2*ttl/3 + time.Millisecond):
			t.Error("somebody waits, and the lease is not wanted")
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		<-got
		s.close()
	})
}

// A waiter that has the turn is not in the queue any more. The holder that has overtaken it learns of it nevertheless,
// and does not when it has left.
func TestRenewalsTellOfTheWaiterThatHasTheTurn(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprint("leaves=", leaves), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				const ttl, waiting = 3 * time.Second, 1
				s := newTestbed(t)
				var slow atomic.Bool // the waiter's attempts, so that another one overtakes it
				s.event = func(client, _ int, cmds []drivers.Command, executed bool) {
					if client == waiting && !executed && slow.Load() && isAcquiring(cmds[0]) {
						time.Sleep(10 * time.Millisecond)
					}
				}
				holder, waiter, barger := s.client(), s.client(), s.client()
				lease, err := holder.Lock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				ended := make(chan error, 1)
				go func() {
					lease, err := waiter.Lock(ctx, "k")
					if err == nil {
						err = lease.Unlock(t.Context())
					}
					ended <- err
				}()
				time.Sleep(time.Second)
				slow.Store(true)
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				if lease, err = barger.TryLock(t.Context(), "k", locker.TTL(ttl)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if leaves {
					leave()
					if err := <-ended; !errors.Is(err, locker.ErrHeld) {
						t.Error(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
				select {
				case <-locker.Wanted(lease):
					if leaves {
						t.Error("the only waiter has left, and the lease is wanted")
					}
				case <-time.After(2*ttl/3 + time.Millisecond):
					if !leaves {
						t.Error("a waiter has the turn, and the lease is not wanted")
					}
				}
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				if !leaves {
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}
				s.close()
			})
		})
	}
}

// The turn with which a lease was acquired lives for a while.
func TestLeaseIsNotWantedBecauseOfItsOwnTurn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, waiter, other := s.client(), s.client(), s.client()
		first, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan locker.Lease, 1)
		go func() {
			lease, err := waiter.Lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		time.Sleep(time.Second)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := other.Lock(ctx, "k")
			left <- err
		}()
		time.Sleep(time.Second)
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		lease := <-got
		leave()
		if err := <-left; !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
		wanted := locker.Wanted(lease)
		for range 2 { // the first answers say that the lock is marked
			if err := lease.Extend(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
		select {
		case <-wanted:
			t.Error("the other has left, and the lease is wanted")
		default:
		}
		if !slices.Contains(s.nodes[queueNode].Keys(), script.KeysOf(DefaultPrefix, "k").Turn()) {
			t.Error("its turn is over")
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		s.close()
	})
}

package redlock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

func wantOrder(t *testing.T, r contention.Result, each, most, unfair float64, gap time.Duration) {
	t.Helper()
	if each > most {
		t.Errorf("%.3f attempts per acquisition, want %v at most", each, most)
	}
	if r.Unfairness() > unfair {
		t.Errorf("holds %v differ by %.2f, want %v at most", r.Holds, r.Unfairness(), unfair)
	}
	if got := slices.Max(r.Handoffs); got > gap {
		t.Errorf("nobody had the lock for %v, want %v at most", got, gap)
	}
}

func TestTurnsInVirtualTime(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		r, each := s.contend(s.lockers(8), 2*time.Second)
		wantOrder(t, r, each, 1.1, .05, 50*time.Millisecond)
		if p99 := contention.Quantile(r.Waits, .99); p99 > 2*r.FairWait() {
			t.Errorf("waits: p99 %v, fair %v", p99, r.FairWait())
		}
		s.close()
	})
}

// A fault of the node that keeps the queue costs a heartbeat, and no client loses its share.
func TestQueueNodeFails(t *testing.T) {
	faults := map[string]func(s *testbed){
		"hung": func(s *testbed) { s.set(everybody, queueNode, "hung") },
		"killed": func(s *testbed) {
			s.set(everybody, queueNode, "dead")
			s.nodes[queueNode].Flush()
			s.nodes[queueNode].Cut()
		},
		"restarted": func(s *testbed) {
			s.nodes[queueNode].Flush()
			s.nodes[queueNode].Cut()
		},
		"flushed": func(s *testbed) { s.nodes[queueNode].Flush() },
		"hung for a second": func(s *testbed) {
			s.set(everybody, queueNode, "hung")
			time.Sleep(time.Second)
			s.set(everybody, queueNode, "")
		},
	}
	for _, name := range short.Part(t, 2, slices.Sorted(maps.Keys(faults))) {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newTestbed(t)
				ls := s.lockers(8)
				done := make(chan struct{})
				go func() {
					defer close(done)
					time.Sleep(500 * time.Millisecond)
					faults[name](s)
				}()
				r, each := s.contend(ls, 2*time.Second)
				// a waiter in the old queue loses a tenth of a second of two
				wantOrder(t, r, each, 1.1, .3, time.Second)
				<-done
				s.set(everybody, queueNode, "")
				time.Sleep(10 * time.Second) // what was left behind there is forgotten
				s.close()
			})
		})
	}
}

func TestLostPushes(t *testing.T) {
	for _, tt := range []struct {
		every  int64 // which is lost
		unfair float64
		gap    time.Duration
	}{{20, .3, 500 * time.Millisecond}, {1, 8, 2500 * time.Millisecond}} {
		virtual.Test(t, func(t *testing.T) {
			s := newTestbed(t)
			var n atomic.Int64
			s.nodes[queueNode].Deliver = func(_, payload string) (time.Duration, bool) {
				return 0, payload != "" && n.Add(1)%tt.every == 0
			}
			r, each := s.contend(s.lockers(8), 3*time.Second)
			wantOrder(t, r, each, 3, tt.unfair, tt.gap)
			if slices.Min(r.Holds) == 0 {
				t.Errorf("holds: %v", r.Holds)
			}
			s.close()
		})
	}
}

// All clients are served even if they do not agree on the node that keeps the queue, because every release hands on.
// Clients that cannot reach the agreed node do not believe that it has the lock, so the others turn away from it.
func TestTwoQueues(t *testing.T) {
	for name, differ := range map[string]func(s *testbed, c int){
		"another opinion": func(s *testbed, c int) { s.backends[c].hints.unfit("k", queueNode) },
		"out of reach":    func(s *testbed, c int) { s.set(c, queueNode, "dead") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newTestbed(t)
				ls := s.lockers(8)
				for c := range 4 {
					differ(s, c)
				}
				r, each := s.contend(ls, 3*time.Second)
				wantOrder(t, r, each, 2, 1.5, 300*time.Millisecond) // the two queues share, however many are in each
				if slices.Min(r.Holds) < r.Total()/len(r.Holds)/4 {
					t.Errorf("holds: %v", r.Holds)
				}
				s.close()
			})
		})
	}
}

func TestTryLockBargesIn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		ls := s.lockers(8)
		barger := s.client()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				if lease, err := barger.TryLock(ctx, "k"); err == nil {
					_ = lease.Unlock(t.Context())
				}
				time.Sleep(700 * time.Microsecond)
			}
		}()
		// Mutual exclusion is the others' only, so the barger is not among them.
		r, _ := s.contend(ls, time.Second)
		stop()
		<-done
		wantOrder(t, r, 0, 1, .3, time.Second)
		if r.Rate() < 100 {
			t.Errorf("%v", r)
		}
		s.close()
	})
}

// The mark in the lock's value tells the first holder of waiters that cannot be notified.
func TestNobodyCanBeTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		s.bare = true
		r, each := s.contend(s.lockers(8), 3*time.Second)
		wantOrder(t, r, each, 1.1, .05, 50*time.Millisecond)
		if r.Rate() < 100 {
			t.Errorf("%v", r)
		}
		s.close()
	})
}

// A client that locks again and again makes way for a waiter that it cannot notify. It learns of the waiter only by the
// mark, because its own attempts never fail.
func TestLateWaiterThatCannotBeTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		s.bare = true
		defer s.close()
		busy, late := s.client(), s.client()
		ctx, stop := context.WithCancel(t.Context())
		var again sync.WaitGroup
		defer again.Wait()
		defer stop()
		again.Go(func() {
			for ctx.Err() == nil {
				lease, err := busy.Lock(t.Context(), "k")
				if !assert.NoError(t, err) {
					return
				}
				time.Sleep(time.Millisecond)
				assert.NoError(t, lease.Unlock(t.Context()))
			}
		})
		for range 20 {
			time.Sleep(50 * time.Millisecond)
			soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			lease, err := late.Lock(soon, "k")
			cancel()
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
	})
}

// A waiter that cannot be notified, among others that can, does not stop them for long, and gets its share.
func TestOneCannotBeTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		ls := s.lockers(7)
		s.bare = true
		ls = append(ls, s.client())
		r, each := s.contend(ls, 3*time.Second)
		wantOrder(t, r, each, 1.1, .3, 200*time.Millisecond)
		s.close()
	})
}

// A waiter that dies while it has the turn stops the others for the claim window, and no longer.
func TestDiesWithTheTurn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, dead, next := s.client(), s.client(), s.client()
		s.nodes[queueNode].Deliver = func(_, payload string) (time.Duration, bool) {
			if payload != "" {
				s.mu.Lock()
				for i := range s.nodes {
					s.state[[2]int{1, i}] = "hung"
				}
				s.mu.Unlock()
			}
			return 0, false
		}
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := dead.Lock(ctx, "k")
			ended <- err
		}()
		time.Sleep(200 * time.Millisecond)
		got := make(chan time.Time, 1)
		go func() {
			l, err := next.Lock(t.Context(), "k")
			got <- time.Now()
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(200 * time.Millisecond)
		start := time.Now()
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if took := (<-got).Sub(start); took > 2*time.Second+100*time.Millisecond {
			t.Errorf("stalled for %v", took)
		}
		cancel()
		// It has heard nothing for two seconds.
		if err := <-ended; !errors.Is(err, locker.ErrNoQuorum) || !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for i := range s.nodes {
			s.set(1, i, "")
		}
		time.Sleep(10 * time.Second)
		s.close()
	})
}

// dead is the acquisition of an owner that never comes back.
func dead(key string) drivers.Command {
	a := script.Attempt{Keys: script.KeysOf(DefaultPrefix, key), Token: "dead", Node: 1}
	return a.Acquire(time.Minute, 1, 0).Usual.Alone().Words
}

// A key that a dead owner has left on the node that keeps the queue stops nobody for more than a moment, even if it
// lives much longer.
func TestQueueNodeHasADeadLock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		ls := s.lockers(4)
		s.nodes[queueNode].Execute(dead("k"))
		r := contention.Run(t, ls, "k", 10*time.Millisecond, 30*time.Second)
		if gap := slices.Max(r.Handoffs); gap > 3*time.Second || r.Rate() < 50 || slices.Min(r.Holds) < r.Total()/16 {
			t.Errorf("%v, holds %v, gap %v", r, r.Holds, gap)
		}
		time.Sleep(time.Minute)
		s.close()
	})
}

// Attempts that fail notify nobody, not even the waiter that has the turn. It would ask again at once, and fail again.
func TestFailedAttemptsTellNobody(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		var pushes atomic.Int64
		s.nodes[queueNode].Deliver = func(_, payload string) (time.Duration, bool) {
			if payload != "" {
				pushes.Add(1)
			}
			return 0, false
		}
		holder, w := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k", locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		s.nodes[queueNode].Delete("lock:k") // so that it is w's turn
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := w.Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		if n := pushes.Load(); n != 0 {
			t.Errorf("%d messages", n)
		}
		if n := s.asked(); n < 3 || n > 50 {
			t.Errorf("%d attempts in two seconds", n)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		s.close()
	})
}

// A waiter tolerates a lost quorum for some seconds. A caller that begins to wait does not.
func TestQuorumIsLostWhileWaiting(t *testing.T) {
	for _, outage := range []time.Duration{3 * time.Second, time.Minute} {
		virtual.Test(t, func(t *testing.T) {
			s := newTestbed(t)
			holder, w, late := s.client(), s.client(), s.client()
			if _, err := holder.Lock(t.Context(), "k", locker.TTL(2*time.Second), locker.NoRenewal()); err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			var took time.Duration
			go func() {
				l, err := w.Lock(t.Context(), "k", locker.TTL(time.Minute))
				took = time.Since(start(t))
				if err == nil {
					err = l.Unlock(t.Context())
				}
				got <- err
			}()
			time.Sleep(time.Second)
			for i := range 3 {
				s.set(everybody, (queueNode+i)%5, "dead")
			}
			time.Sleep(2 * time.Second)
			if _, err := late.Lock(t.Context(), "k"); !errors.Is(err, locker.ErrNoQuorum) || errors.Is(err, locker.ErrHeld) {
				t.Errorf("one that comes during the outage: %v", err)
			}
			time.Sleep(outage - 2*time.Second)
			for i := range s.nodes {
				s.set(everybody, i, "")
			}
			err := <-got
			if outage < locker.DefaultPatience && err != nil ||
				outage > locker.DefaultPatience && (!errors.Is(err, locker.ErrNoQuorum) || took > 12*time.Second) {
				t.Errorf("outage of %v: %v after %v", outage, err, took)
			}
			time.Sleep(time.Minute)
			s.close()
		})
	}
}

// The node that keeps the queue still says who has the lock. That does not show that there is a quorum, so the patience
// of the waiter ends.
func TestQueueShowsNoQuorum(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, w := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k")
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() {
			for i := 1; i <= 3; i++ {
				s.set(1, (queueNode+i)%5, "dead")
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err = w.Lock(ctx, "k")
		assert.ErrorIs(t, err, locker.ErrNoQuorum)
		assert.Less(t, time.Since(began), 2*locker.DefaultPatience)
		require.NoError(t, lease.Unlock(t.Context()))
		for i := range s.nodes {
			s.set(1, i, "")
		}
		time.Sleep(time.Minute)
		s.close()
	})
}

// A call begins with what the call before it in this Client has seen: that there was no quorum. There is one again by
// then, and the call finds that out soon.
func TestFaultOfTheCallBeforeIsLookedInto(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, w := s.client(), s.client()
		held, err := holder.Lock(t.Context(), "k")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		lock := func(got chan<- error, opts ...locker.Option) {
			_, err := w.Lock(ctx, "k", opts...)
			got <- err
		}
		go lock(first, locker.Patience(2*time.Second))
		time.Sleep(50 * time.Millisecond)
		go lock(second)
		time.Sleep(500 * time.Millisecond)
		for i := range 3 {
			s.set(1, (queueNode+1+i)%5, "dead")
		}
		require.ErrorIs(t, <-first, locker.ErrNoQuorum)
		// The second call has found no quorum either, and pauses for half a second at least.
		for i := range s.nodes {
			s.set(1, i, "")
		}
		time.Sleep(300 * time.Millisecond)
		other, err := w.Lock(t.Context(), "another key")
		require.NoError(t, err)
		require.NoError(t, other.Unlock(t.Context()))
		time.Sleep(2 * time.Second)
		cancel()
		assert.ErrorIs(t, <-second, locker.ErrHeld)
		require.NoError(t, held.Unlock(t.Context()))
		s.close()
	})
}

// A call has heard nothing from the nodes since it came to the front of its Client. It says that, and not that the call
// before it has seen a holder.
func TestCallThatHeardNothingNamesNoHolder(t *testing.T) {
	for _, far := range []time.Duration{0, 150 * time.Millisecond} { // nodes far away are waited for longer
		virtual.Test(t, func(t *testing.T) {
			s := newTestbed(t)
			w := s.client()
			held, err := w.Lock(t.Context(), "k")
			require.NoError(t, err)
			first, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			go func() { _, _ = w.Lock(first, "k") }()
			time.Sleep(50 * time.Millisecond)
			for i := range s.nodes {
				s.backends[0].health.answered(i, far)
			}
			s.setAll(0, "hung")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err = w.Lock(ctx, "k")
			assert.ErrorIs(t, err, locker.ErrUnavailable)
			assert.NotErrorIs(t, err, locker.ErrHeld)
			s.setAll(0, "")
			_ = held.Unlock(t.Context())
			time.Sleep(2 * time.Minute)
			s.close()
		})
	}
}

// Callers of one Client come to the front one after the other, while no node can be asked. It is for the race detector.
func TestCallersOfOneClientWhileAllNodesAreDown(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		w := s.client()
		s.setAll(0, "dead")
		var run sync.WaitGroup
		for range 8 {
			run.Go(func() {
				for range 100 {
					s.backends[0].hints.contend("k") // so that the call queues before it asks
					s.backends[0].faulty.Store(false)
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					_, err := w.Lock(ctx, "k")
					assert.Error(t, err)
					cancel()
				}
			})
		}
		run.Wait()
		s.close()
	})
}

// A program may close the backend itself.
func TestCloseOfTheBackendEndsTheWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder := s.client()
		lease, err := holder.Lock(t.Context(), "k")
		require.NoError(t, err)
		s.client()
		b := s.backends[1]
		s.clients = s.clients[:1] // b is closed here
		time.AfterFunc(time.Second, func() { assert.NoError(t, b.Close()) })
		began := time.Now()
		wait, _ := clientwait.New(t.Context(), locker.Patience(time.Minute))
		_, err = b.Queue(t.Context(), backend.Request{Key: "k", Token: backend.NewToken(), TTL: time.Minute}, wait)
		assert.ErrorIs(t, err, locker.ErrClosed)
		assert.Less(t, time.Since(began), 1100*time.Millisecond)
		require.NoError(t, lease.Unlock(t.Context()))
		s.close()
	})
}

// start is when the bubble began.
func start(*testing.T) time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// The validity counts from when the attempt was sent that won, and the lease has its token.
func TestGrantIsOfTheAttemptThatWon(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		sent := map[string]time.Time{}
		var mu sync.Mutex
		s.event = func(_, _ int, cmds []drivers.Command, executed bool) {
			mu.Lock()
			defer mu.Unlock()
			if !executed {
				for _, token := range wire.Attempts(cmds[0]) {
					sent[token] = time.Now() // at the same moment to all nodes
				}
			}
		}
		holder, w := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(7*time.Second, func() { _ = lease.Unlock(t.Context()) })
		const ttl = 10 * time.Second
		l, err := w.Lock(t.Context(), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		want := sent[l.Token()].Add(ttl - ttl/100 - 2*time.Millisecond)
		mu.Unlock()
		if !l.Until().Equal(want) {
			t.Errorf("until %v, want %v", l.Until(), want)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		s.close()
	})
}

// A client that locks again at once does not overtake waiters, however long it holds the lock.
func TestHolderQueuesUpAgain(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		r := contention.Run(t, s.lockers(3), "k", 3*time.Second, 5*time.Minute)
		if r.Unfairness() > .1 {
			t.Errorf("%v, holds %v", r, r.Holds)
		}
		s.close()
	})
}

// The first holder has seen nobody wait. The reply to its release says that others wait, so it does not overtake them.
func TestFirstHolderMakesWay(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		s.event = func(c, _ int, _ []drivers.Command, executed bool) {
			if c == 1 && !executed {
				time.Sleep(time.Millisecond) // it lives further away
			}
		}
		holder, w := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		var got time.Time
		go func() {
			l, err := w.Lock(t.Context(), "k")
			if got = time.Now(); err == nil {
				err = l.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(50 * time.Millisecond)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if lease, err = holder.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if got.IsZero() {
			t.Error("it had the lock again before the one that waited")
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		s.close()
	})
}

// There are no other clients any more: a lock costs what it did before.
func TestAloneAgain(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		ls := s.lockers(2)
		s.contend(ls, time.Second)
		alone := func(d time.Duration) int {
			s.turns = 0
			contention.Run(t, ls[:1], "k", time.Millisecond, d)
			return s.turns
		}
		alone(2 * crowdedFor)
		if n := alone(time.Second); n > 0 {
			t.Errorf("the queue was asked %d times", n)
		}
		s.close()
	})
}

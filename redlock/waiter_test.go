package redlock

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/virtual"
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
		s := newStreet(t)
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
	faults := map[string]func(s *street){
		"hung": func(s *street) { s.set(everybody, queueNode, "hung") },
		"killed": func(s *street) {
			s.set(everybody, queueNode, "dead")
			s.nodes[queueNode].Flush()
			s.nodes[queueNode].Cut()
		},
		"restarted": func(s *street) {
			s.nodes[queueNode].Flush()
			s.nodes[queueNode].Cut()
		},
		"flushed": func(s *street) { s.nodes[queueNode].Flush() },
		"hung for a second": func(s *street) {
			s.set(everybody, queueNode, "hung")
			time.Sleep(time.Second)
			s.set(everybody, queueNode, "")
		},
	}
	for _, name := range short.Part(t, 2, slices.Sorted(maps.Keys(faults))) {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newStreet(t)
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
			s := newStreet(t)
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
	for name, differ := range map[string]func(s *street, c int){
		"another opinion": func(s *street, c int) { s.backends[c].hints.unfit("k", queueNode) },
		"out of reach":    func(s *street, c int) { s.set(c, queueNode, "dead") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newStreet(t)
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
		s := newStreet(t)
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
		s := newStreet(t)
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
		s := newStreet(t)
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
		s := newStreet(t)
		ls := s.lockers(7)
		s.bare = true
		ls = append(ls, s.client())
		r, each := s.contend(ls, 3*time.Second)
		wantOrder(t, r, each, 1.1, .3, 200*time.Millisecond)
		s.close()
	})
}

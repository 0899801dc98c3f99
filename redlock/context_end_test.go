package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// A context ends at any message: before it, when it has been executed, or while the notification is in flight. It keeps
// nothing from the others and leaves nothing behind.
func TestContextEndsAtAnyMessage(t *testing.T) {
	for _, contended := range []bool{false, true} {
		most := 1
		for n := 1; n <= most; n++ {
			virtual.Test(t, func(t *testing.T) {
				s := newTestbed(t)
				ctx, cancel := context.WithCancel(t.Context())
				var count atomic.Int64
				tick := func() {
					if count.Add(1) == int64(n) {
						cancel()
					}
				}
				s.event = func(client, _ int, cmds []drivers.Command, _ bool) {
					if client == 1 {
						tick()
					}
				}
				s.nodes[queueNode].Deliver = func(_, payload string) (time.Duration, bool) {
					if payload != "" {
						tick()
					}
					return 0, false
				}
				holder, w, next := s.client(), s.client(), s.client()
				if contended { // w goes straight to the queue
					s.backends[1].hints.contend("k")
				}
				lease, err := holder.Lock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				var both sync.WaitGroup
				both.Go(func() {
					l, err := w.Lock(ctx, "k")
					if err == nil {
						time.Sleep(time.Millisecond)
						if err := l.Unlock(t.Context()); err != nil {
							t.Errorf("message %d: %v", n, err)
						}
					} else if !errors.Is(err, context.Canceled) {
						t.Errorf("message %d: %v", n, err)
					}
				})
				both.Go(func() {
					time.Sleep(5 * time.Millisecond)
					l, err := next.Lock(t.Context(), "k")
					if err != nil {
						t.Errorf("message %d: %v", n, err)
						return
					}
					if err := l.Unlock(t.Context()); err != nil {
						t.Errorf("message %d: %v", n, err)
					}
				})
				time.Sleep(100 * time.Millisecond)
				start := time.Now()
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				both.Wait()
				if took := time.Since(start); took > 120*time.Millisecond {
					t.Errorf("message %d: the next one got the lock after %v", n, took)
				}
				cancel()
				s.close()
				most = max(most, int(count.Load()))
			})
			if t.Failed() {
				return
			}
		}
		t.Logf("%d messages", most)
	}
}

// A position that was given up before the first attempt is given up in the name of an attempt that is never made. The
// node may learn of it much later.
func TestLeavingReleasesNothing(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		var mu sync.Mutex
		var released []string
		s.event = func(_, _ int, cmds []drivers.Command, _ bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, cmd := range cmds {
				for _, step := range wire.Steps(cmd) {
					if step.Script == "turnrelease" {
						released = append(released, step.Token)
					}
				}
			}
		}
		w := s.client()
		s.backends[0].hints.contend("k")
		s.set(everybody, queueNode, "hung")
		lease, err := w.Lock(t.Context(), "k", locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		mu.Lock()
		if len(released) == 0 || slices.Contains(released, lease.Token()) {
			t.Errorf("released: %q, held: %q", released, lease.Token())
		}
		mu.Unlock()
		s.set(everybody, queueNode, "")
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		s.close()
	})
}

// An attempt that is unanswered when its waiter leaves might be executed later on the node that keeps the queue, and
// take the lock that the next turn depends on. It finds a tombstone there. No other node needs one.
func TestWaiterLeavesATombstoneForWhatIsUnderWay(t *testing.T) {
	const soon, late = 20 * time.Millisecond, 200 * time.Millisecond
	for name, tt := range map[string]struct {
		out, back time.Duration // how long the attempt takes to the queue's node, and its answer from there
		asking    time.Duration // how long the question for the turn takes
		stay      time.Duration
		want      int
	}{
		"all is answered":                        {stay: soon},
		"the attempt is under way":               {out: late, stay: soon, want: 1},
		"its answer is under way":                {back: late, stay: soon, want: 1},
		"its answer has come late":               {out: late, stay: 3 * late},
		"the question for the turn is under way": {asking: late, stay: soon},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newTestbed(t)
				var slow atomic.Bool
				s.event = func(client, node int, cmds []drivers.Command, executed bool) {
					switch {
					case client != 1 || node != queueNode || !slow.Load():
					case isTurn(cmds[0]) && !executed:
						time.Sleep(tt.asking)
					case isAcquiring(cmds[0]) && executed:
						time.Sleep(tt.back)
					case isAcquiring(cmds[0]):
						time.Sleep(tt.out)
					}
				}
				holder, waiter := s.client(), s.client()
				lease, err := holder.Lock(t.Context(), "k", locker.TTL(time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(soon) // all nodes have granted it
				slow.Store(true)
				s.backends[1].faulty.Store(true) // so that it asks all nodes
				ctx, cancel := context.WithTimeout(t.Context(), tt.stay)
				defer cancel()
				if _, err := waiter.Lock(ctx, "k", locker.TTL(time.Minute)); !errors.Is(err, locker.ErrHeld) {
					t.Fatal(err)
				}
				time.Sleep(soon)
				tombstones := 0
				for _, n := range s.nodes {
					tombstones += n.Tombstones()
				}
				if tombstones != tt.want {
					t.Errorf("%d tombstones, want %d", tombstones, tt.want)
				}
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				for range 10 * late / time.Millisecond {
					time.Sleep(time.Millisecond)
					for i, n := range s.nodes {
						if slices.Contains(n.Keys(), DefaultPrefix+"k") {
							t.Fatalf("node %d has granted the lock to a caller that has left", i)
						}
					}
				}
				slow.Store(false)
				time.Sleep(10 * time.Second)
				s.close()
			})
		})
	}
}

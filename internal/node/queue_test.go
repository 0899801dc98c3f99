package node

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
)

func TestBusyNodeGathersCommands(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		const calls = 300
		for range calls {
			callers.Go(func() {
				if _, err := n.Acquire(t.Context(), request("a")); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if got := len(d.batches); got != maxLanes {
			t.Errorf("%d batches are in flight, want %d", got, maxLanes)
		}
		close(wake)
		callers.Wait()
		sent := 0
		for _, b := range d.batches {
			sent += len(b)
			if len(b) > maxBatch {
				t.Errorf("a batch of %d", len(b))
			}
		}
		if sent != calls {
			t.Errorf("%d commands were sent for %d calls", sent, calls)
		}
		if got := len(d.batches); got > maxLanes+calls/maxBatch+1 {
			t.Errorf("%d round trips for %d calls of a busy node", got, calls)
		}
	})
}

func TestHungNodeCostsNoGoroutinePerCall(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		before := runtime.NumGoroutine()
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := n.Acquire(ctx, request("a"))
			cancel()
			if err == nil {
				t.Fatal("granted by a node that does not answer")
			}
		}
		if more := runtime.NumGoroutine() - before; more > maxLanes+2 { // and the cleaner's
			t.Errorf("%d goroutines are left by 1000 calls", more)
		}
		if got := len(d.sent(acquireScript)); got > maxLanes {
			t.Errorf("%d acquisitions were sent; those that waited must vanish with their callers", got)
		}
		n.queue.mu.Lock()
		if got := len(n.queue.pending); got > maxBatch {
			t.Errorf("%d commands still wait", got)
		}
		n.queue.mu.Unlock()
		close(wake)
	})
}

func TestQueueIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var err error
		for range maxPending + maxLanes*maxBatch + 1 {
			if err = n.queue.submit(&Call{script: releaseScript, cmd: drivers.Command{"EVALSHA", releaseScript.sha, "0"}}); err != nil {
				break
			}
		}
		if err != errFull {
			t.Errorf("got %v, want %v", err, errFull)
		}
		close(wake)
	})
}

func TestIdleNodeHasNoGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		before := runtime.NumGoroutine()
		if _, err := n.Acquire(t.Context(), request("a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after != before {
			t.Errorf("%d goroutines after a call, %d before", after, before)
		}
	})
}

package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
)

// A waiter that gives up leaves nothing on the nodes, if they have answered all its attempts. It may have made no
// attempt, and its question for the turn may be unanswered.
func TestWaiterThatLeavesLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 3)
		holder, waiter := c.client(t, driver), c.client(t, driver)
		lease := c.lockAll(t, holder, "k")
		ctx, cancel := context.WithCancel(t.Context())
		// The first one makes an attempt, and learns that others want the lock.
		traced := lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { cancel() }})
		if _, err := waiter.Lock(traced, "k", locker.TTL(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			if _, err := waiter.Lock(ctx, "k", locker.TTL(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		s := c[keeper("k", len(c))]
		eventually(t, 10*time.Second, "nobody is in the queue", func() bool { return len(s.Keys(t, "*:lockqueue")) == 0 })
		if n := c.tombstones(t); n > 0 {
			t.Errorf("51 waiters have left, and %d tombstones", n)
		}
		steady.Unlock(t, lease)
		c.wantNoLocks(t)
	})
}

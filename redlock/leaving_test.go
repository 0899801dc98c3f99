package redlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
)

// A waiter that gives up leaves nothing on a node that has answered all its attempts. It may have made no attempt, and
// its question for the turn may be unanswered. On a node that has not answered an attempt it may leave a tombstone; see
// TestWaiterLeavesATombstoneForWhatIsUnderWay. There are such nodes only on a machine that stalls.
func TestWaiterThatLeavesLeavesNothing(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		const tries = 8
		for range tries {
			unanswered := waitersLeave(t, driver)
			if unanswered == 0 {
				return
			}
			t.Logf("%d answers to attempts were late: once more", unanswered)
		}
		t.Errorf("answers to attempts were late %d times", tries)
	})
}

// waitersLeave lets 51 waiters give up, and checks that they leave no more tombstones than answers that they have not
// waited for. It returns the number of these answers.
func waitersLeave(t *testing.T, driver string) (unanswered int) {
	t.Helper()
	c := startCluster(t, 3)
	holder, waiter := c.client(t, driver), c.client(t, driver)
	lease := c.lockAll(t, holder, "k")
	var late atomic.Int64
	voted := func(v lockertrace.Vote) {
		if !v.Late && errors.Is(v.Err, locker.ErrUnavailable) {
			late.Add(1)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	// The first one makes an attempt, and learns that others want the lock.
	traced := lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { cancel() }, Voted: voted})
	if _, err := waiter.Lock(traced, "k", locker.TTL(time.Hour)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		traced := lockertrace.With(ctx, &lockertrace.Trace{Voted: voted})
		if _, err := waiter.Lock(traced, "k", locker.TTL(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	s := c[keeper("k", len(c))]
	eventually(t, 10*time.Second, "nobody is in the queue", func() bool { return len(s.Keys(t, "*:lockqueue")) == 0 })
	if n := c.tombstones(t); n > int(late.Load()) {
		t.Errorf("51 waiters have left, with %d answers unheard, and %d tombstones", late.Load(), n)
	}
	steady.Unlock(t, lease)
	c.wantNoLocks(t)
	return int(late.Load())
}

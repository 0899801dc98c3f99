package redlock_test

import (
	"context"
	"errors"
	"sync"
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
// heard. It returns the number of these answers.
func waitersLeave(t *testing.T, driver string) int {
	t.Helper()
	c := startCluster(t, 3)
	holder, waiter := c.client(t, driver), c.client(t, driver)
	lease, err := holder.TryLock(t.Context(), "k", locker.TTL(longTTL))
	if err != nil || !within(5*time.Second, func() bool { return len(c.locks(t)) == len(c) }) {
		return 1 // what undoes this attempt, or gets the lock on the last node, may leave a tombstone at any time
	}
	before := c.tombstones(t)
	unheard := leaveWhenAllIsAnswered(t, waiter)
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		traced := lockertrace.With(ctx, &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
			if !v.Late && errors.Is(v.Err, locker.ErrUnavailable) {
				unheard.Add(1) // it has made an attempt, because it has long not seen others
			}
		}})
		if _, err := waiter.Lock(traced, "k", locker.TTL(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	s := c[keeper("k", len(c))]
	eventually(t, 10*time.Second, "nobody is in the queue", func() bool { return len(s.Keys(t, "*:lockqueue")) == 0 })
	most := int(unheard.Load())
	if n := c.tombstones(t) - before; n > most {
		t.Errorf("51 waiters have left, with %d answers unheard, and %d tombstones", most, n)
	}
	steady.Unlock(t, lease)
	c.wantNoLocks(t)
	return most
}

// shortestPatience is how long a waiter waits at least for the node that keeps the queue. See quietPatience.
const shortestPatience = 5 * time.Millisecond

// leaveWhenAllIsAnswered lets l wait for k, so that it makes an attempt and learns that others want the lock, and give
// up when all nodes have answered that attempt. It counts the answers that it has not heard nevertheless.
func leaveWhenAllIsAnswered(t *testing.T, l locker.Locker) (unheard *atomic.Int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	unheard = new(atomic.Int64)
	var mu sync.Mutex
	var waits bool
	var open int64 // answers that will be late
	leave := func(late bool) {
		if waits && open == 0 || late {
			unheard.Add(open)
			cancel()
		}
	}
	patience := time.AfterFunc(5*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		leave(true)
	})
	defer patience.Stop()
	traced := lockertrace.With(ctx, &lockertrace.Trace{
		Waiting: func(lockertrace.Waiting) {
			mu.Lock()
			defer mu.Unlock()
			waits = true
			leave(false)
		},
		Voted: func(v lockertrace.Vote) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() == nil && v.Pending:
				open++
			case ctx.Err() == nil && v.Late:
				open--
				if v.Duration > shortestPatience { // it may have left the queue of this node for that of the next one
					unheard.Add(1)
				}
				leave(false)
			}
			if errors.Is(v.Err, locker.ErrUnavailable) && (!v.Pending || ctx.Err() != nil) {
				unheard.Add(1)
			}
		},
	})
	if _, err := l.Lock(traced, "k", locker.TTL(time.Hour)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return unheard
}

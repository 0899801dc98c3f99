package redlock_test

import (
	"context"
	"errors"
	"fmt"
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
		const want, most = 51, 1000
		c := startCluster(t, 3)
		holder, waiter := c.client(t, driver), c.client(t, driver)
		heard := 0
		for batch := range most / waitersOfABatch {
			if c.waitersLeave(t, holder, waiter, fmt.Sprintf("k%d.", batch)) == 0 {
				heard += waitersOfABatch
			}
			if heard >= want || t.Failed() {
				c.wantNoLocks(t)
				return
			}
		}
		t.Errorf("only %d of %d waiters had no late answers beside them", heard, most)
	})
}

// waitersOfABatch is small, so that a late answer spoils few.
const waitersOfABatch = 6

// waitersLeave lets some waiters for key give up, and checks that they leave no more tombstones than answers that they
// have not heard. It returns the number of these answers. Nobody has used the key before.
func (c cluster) waitersLeave(t *testing.T, holder, waiter locker.Locker, key string) int {
	t.Helper()
	lease, err := holder.TryLock(t.Context(), key, locker.TTL(longTTL))
	if err != nil {
		return 1 // what undoes this attempt may leave a tombstone at any time
	}
	defer steady.Unlock(t, lease)
	everywhere := func() bool {
		for _, s := range c {
			if len(s.Keys(t, "*:"+key)) == 0 {
				return false
			}
		}
		return true
	}
	if !within(5*time.Second, everywhere) {
		return 1
	}
	unheard := leaveWhenAllIsAnswered(t, waiter, key)
	for range waitersOfABatch - 1 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		traced := lockertrace.With(ctx, &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
			if !v.Late && errors.Is(v.Err, locker.ErrUnavailable) {
				unheard.Add(1) // it has made an attempt, because it has long not seen others
			}
		}})
		if _, err := waiter.Lock(traced, key, locker.TTL(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	s := c[keeper(key, len(c))]
	eventually(t, 10*time.Second, "nobody is in the queue", func() bool { return len(s.Keys(t, "*:lockqueue")) == 0 })
	most := int(unheard.Load())
	if n := c.tombstones(t, "*"+key+"*"); n > most {
		t.Errorf("%d waiters have left, with %d answers unheard, and %d tombstones", waitersOfABatch, most, n)
	}
	return most
}

// shortestTimeout is how long a waiter waits at least for the node that keeps the queue. See quietTimeout.
const shortestTimeout = 5 * time.Millisecond

// leaveWhenAllIsAnswered lets l wait for key. It makes an attempt, learns that others want the lock, and gives up when
// all nodes have answered that attempt. It counts the answers that it has not heard nevertheless.
func leaveWhenAllIsAnswered(t *testing.T, l locker.Locker, key string) (unheard *atomic.Int64) {
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
	timer := time.AfterFunc(5*time.Second, func() {
		mu.Lock()
		defer mu.Unlock()
		leave(true)
	})
	defer timer.Stop()
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
				if v.Duration > shortestTimeout { // it may have left the queue of this node for that of the next one
					unheard.Add(1)
				}
				leave(false)
			}
			if errors.Is(v.Err, locker.ErrUnavailable) && (!v.Pending || ctx.Err() != nil) {
				unheard.Add(1)
			}
		},
	})
	if _, err := l.Lock(traced, key, locker.TTL(time.Hour)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return unheard
}

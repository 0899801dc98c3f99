package locker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// crowd is a number of workers that lock random subsets of a few keys, with crashes and short contexts. It judges from
// outside what they hold.
type crowd struct {
	t    *testing.T
	keys []string
	left atomic.Int64 // how many times the workers have yet to acquire
	open func() (c *locker.Client, l locker.Locker)

	mu     sync.Mutex
	holds  map[string]string    // by key: the worker that holds it
	until  map[string]time.Time // by key: when the lock of a crashed worker ends
	tokens map[string]uint64    // by key: of its last holder

	acquired, failed, crashed atomic.Int64
}

const crowdTTL = 500 * time.Millisecond

// work is one worker. Each of its leases ends in one of three ways: Unlock, a crash that leaves the lock, or a loss.
func (cr *crowd) work(ctx context.Context, name string, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	c, l := cr.open()
	defer func() { _ = c.Close() }()
	for cr.left.Add(-1) >= 0 && ctx.Err() == nil {
		keys := make([]string, 0, len(cr.keys))
		for _, i := range r.Perm(len(cr.keys))[:1+r.IntN(len(cr.keys))] {
			keys = append(keys, cr.keys[i])
		}
		opts := []locker.Option{locker.TTL(crowdTTL), locker.Label(name)}
		call, cancel := locker.LockAll, context.CancelFunc(func() {})
		lctx := ctx
		switch r.IntN(4) {
		case 0:
			call = locker.TryLockAll
		case 1:
			lctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(20))*time.Millisecond)
		}
		lease, err := call(lctx, l, keys, opts...)
		cancel()
		if err != nil {
			cr.failed.Add(1)
			if !errors.Is(err, locker.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) {
				cr.t.Errorf("%s: %v", name, err)
			}
			cr.nothing(ctx, c, name)
			continue
		}
		cr.acquired.Add(1)
		cr.begin(name, lease)
		time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
		if err := lease.Err(); err != nil {
			cr.t.Errorf("%s: %v", name, err)
		}
		if r.IntN(50) == 0 {
			cr.crashed.Add(1)
			cr.end(name, lease, lease.Until())
			_ = c.Close()
			c, l = cr.open()
			continue
		}
		cr.end(name, lease, time.Time{})
		if err := lease.Unlock(ctx); err != nil {
			cr.t.Errorf("%s: %v", name, err)
		}
	}
}

// begin checks that nobody else holds one of the keys, and that tokens have grown.
func (cr *crowd) begin(name string, lease *locker.AllLease) {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	for _, key := range lease.Keys() {
		if other := cr.holds[key]; other != "" && time.Now().Before(cr.until[key]) {
			cr.t.Errorf("%s acquired %s, which %s holds", name, key, other)
		}
		if token := lease.FenceOf(key); token <= cr.tokens[key] {
			cr.t.Errorf("%s acquired %s with the token %d after %d", name, key, token, cr.tokens[key])
		}
		cr.holds[key], cr.until[key], cr.tokens[key] = name, time.Now().Add(time.Hour), lease.FenceOf(key)
	}
}

// end notes that the worker no longer holds its keys after until.
func (cr *crowd) end(name string, lease *locker.AllLease, until time.Time) {
	cr.mu.Lock()
	defer cr.mu.Unlock()
	for _, key := range lease.Keys() {
		if cr.holds[key] != name {
			cr.t.Errorf("%s held %s, and then %s did", name, key, cr.holds[key])
		}
		cr.until[key] = until
	}
}

// nothing checks that a call that failed has left none of its locks. A call whose context has ended releases them in
// the background, which takes much less time than their TTL. A lock that a crash has left is not one of them.
func (cr *crowd) nothing(ctx context.Context, c *locker.Client, name string) {
	start := time.Now()
	for _, key := range cr.keys {
		for cr.has(ctx, c, name, key) {
			if time.Since(start) > crowdTTL/2 {
				cr.t.Errorf("%s failed and still has %s", name, key)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// has reports whether a worker that holds nothing has the lock of key.
func (cr *crowd) has(ctx context.Context, c *locker.Client, name, key string) bool {
	seen, err := c.Inspect(ctx, key)
	if err != nil {
		cr.t.Error(err)
	}
	cr.mu.Lock()
	defer cr.mu.Unlock()
	crashed := cr.holds[key] == name && time.Now().Before(cr.until[key].Add(crowdTTL))
	return seen.Label == name && !crashed
}

// run runs 16 workers until they have acquired n times.
func (cr *crowd) run(n int) {
	cr.left.Store(int64(n))
	cr.holds, cr.until, cr.tokens = map[string]string{}, map[string]time.Time{}, map[string]uint64{}
	for i := range 8 {
		cr.keys = append(cr.keys, fmt.Sprint("k", i))
	}
	// A circle of waiting callers would end only here.
	ctx, cancel := context.WithTimeout(cr.t.Context(), time.Duration(n)*20*time.Millisecond+time.Minute)
	defer cancel()
	var workers sync.WaitGroup
	for i := range 16 {
		workers.Go(func() { cr.work(ctx, fmt.Sprint("worker-", i), uint64(i)) })
	}
	workers.Wait()
	if ctx.Err() != nil {
		cr.t.Error("the workers wait for each other")
	}
	cr.t.Logf("acquired %d times, failed %d times, crashed %d times", cr.acquired.Load(), cr.failed.Load(),
		cr.crashed.Load())
	if cr.acquired.Load() < int64(n/4) || cr.crashed.Load() == 0 || cr.failed.Load() == 0 {
		cr.t.Error("that is too few to show anything")
	}
}

// crowdCalls returns how many calls a crowd makes: few in a usual run, and 100,000 in "make crowd".
func crowdCalls(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("LOCKER_CROWD")); err == nil {
		return n
	}
	return usual
}

// Workers that lock random subsets of keys never wait for each other in a circle, never hold a part of what they asked
// for after a failure, and get growing tokens.
func TestCrowdOfLockAll(t *testing.T) {
	for name, wrap := range map[string]func(l locker.Locker) locker.Locker{
		"in one step": func(l locker.Locker) locker.Locker { return l },
		"one by one":  func(l locker.Locker) locker.Locker { return plain{l} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				b := memory.NewBackend()
				cr := &crowd{t: t, open: func() (*locker.Client, locker.Locker) {
					c := locker.NewClient(b)
					return c, wrap(c)
				}}
				cr.run(crowdCalls(2000))
			})
		})
	}
}

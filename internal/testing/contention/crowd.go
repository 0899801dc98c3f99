package contention

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
	"github.com/golocker/locker/inspect"
)

const (
	workers = 16
	keys    = 8

	// hangLimit is for a call that has no other limit. On a busy machine a lock of a crashed worker may be in the way for
	// several TTLs.
	hangLimit = 3 * time.Minute
)

// Crowd is a number of workers that lock random subsets of a few keys, with LockAll and TryLockAll, with crashes and
// short contexts. It judges from outside what they hold.
type Crowd struct {
	// Open returns a Client of a store that all workers share, and what the worker calls: the Client, or a Locker that
	// wraps it. Clients are closed at the end.
	Open func() (*locker.Client, locker.Locker)
	// TTL is that of the locks. A crash stops others for that long.
	TTL time.Duration
	// Crash is that one of so many leases ends with a crash.
	Crash int

	t    testing.TB
	left atomic.Int64 // how many calls are left

	mu   sync.Mutex
	held map[string]*hold // by key: its last holder

	acquired, failed, crashed, lost atomic.Int64
}

// hold is what a worker has, or had.
type hold struct {
	worker string
	lease  *locker.AllLease
	token  uint64
	over   bool      // it was given back
	until  time.Time // if the worker crashed: when the lock is free
}

// CrowdCalls returns usual, or the number in the environment variable LOCKER_CROWD, which "trial crowd" sets.
func CrowdCalls(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("LOCKER_CROWD")); err == nil {
		return n
	}
	return usual
}

// Run makes n calls. It checks that workers do not wait for each other in a circle, that no two have a lock at once,
// that a call that failed leaves nothing, and that the tokens of each key grow. It returns how many leases were lost
// or requests not answered in time. Neither is a failure, because both happen on a busy machine.
func (c *Crowd) Run(t testing.TB, n int) (lost int) {
	c.t, c.held = t, map[string]*hold{}
	c.left.Store(int64(n))
	ctx := t.Context()
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			w := &worker{Crowd: c, name: fmt.Sprint("worker-", i), random: rand.New(rand.NewPCG(uint64(i), 1))}
			w.work(ctx)
		})
	}
	all.Wait()
	t.Logf("acquired %d times, failed %d times, crashed %d times, lost %d leases or answers",
		c.acquired.Load(), c.failed.Load(), c.crashed.Load(), c.lost.Load())
	if c.acquired.Load() < int64(n/4) || c.failed.Load() == 0 {
		t.Error("that is too few to show anything")
	}
	return int(c.lost.Load())
}

// begin records that a worker has a lease. Nobody else may have one of its locks, and tokens have grown.
func (c *Crowd) begin(name string, lease *locker.AllLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range lease.Keys() {
		now := &hold{worker: name, lease: lease, token: lease.FenceOf(key)}
		if last := c.held[key]; last != nil {
			if !last.over && last.lease.Err() == nil || time.Now().Before(last.until) {
				c.t.Errorf("%s acquired %s, which %s holds", name, key, last.worker)
			}
			if now.token <= last.token {
				c.t.Errorf("%s acquired %s with the token %d after %d", name, key, now.token, last.token)
			}
		}
		c.held[key] = now
	}
}

// end records that a worker no longer has a lease, or, if it has crashed, when it has not.
func (c *Crowd) end(lease *locker.AllLease, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range lease.Keys() {
		if last := c.held[key]; last.lease == lease {
			last.over, last.until = true, until
		}
	}
}

// crashedWith reports whether a crash of the worker may still have the lock of key.
func (c *Crowd) crashedWith(name, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.held[key]
	return last != nil && last.worker == name && !last.until.IsZero() && time.Now().Before(last.until.Add(c.TTL))
}

// worker is one goroutine with a Client of its own.
type worker struct {
	*Crowd
	name   string
	random *rand.Rand
	client *locker.Client
	locker locker.Locker
	doubt  time.Time // until then, something that was not answered may have a lock
}

func (w *worker) work(ctx context.Context) {
	w.client, w.locker = w.Open()
	for w.left.Add(-1) >= 0 && ctx.Err() == nil {
		lease, err := w.call(ctx)
		if err != nil {
			w.failed.Add(1)
			switch {
			case w.unanswered(err):
			case !errors.Is(err, locker.ErrHeld) && !errors.Is(err, context.DeadlineExceeded):
				w.t.Errorf("%s: %v", w.name, err)
			}
			w.hasNothing(ctx)
			continue
		}
		w.acquired.Add(1)
		w.begin(w.name, lease)
		time.Sleep(time.Duration(w.random.IntN(3)) * time.Millisecond)
		if w.random.IntN(w.Crash) == 0 {
			w.crashed.Add(1)
			w.end(lease, lease.Until())
			w.close()
			w.client, w.locker = w.Open()
			continue
		}
		lost := lease.Err() != nil
		w.end(lease, time.Time{})
		err = lease.Unlock(ctx)
		switch {
		case w.unanswered(err):
		case lost || errors.Is(err, locker.ErrLost):
			w.lost.Add(1)
		case err != nil:
			w.t.Errorf("%s: %v", w.name, err)
		}
	}
	w.close()
}

// unanswered reports whether err means that the store has not answered in time. What was asked of it is then undone in
// the background, or ends with its TTL.
func (w *worker) unanswered(err error) bool {
	if !errors.Is(err, locker.ErrUnavailable) {
		return false
	}
	w.lost.Add(1)
	w.doubt = time.Now().Add(2 * w.TTL)
	return true
}

// call makes one of the possible calls, with random keys.
func (w *worker) call(ctx context.Context) (*locker.AllLease, error) {
	wants := make([]string, 0, keys)
	for _, i := range w.random.Perm(keys)[:1+w.random.IntN(keys)] {
		wants = append(wants, fmt.Sprint("k", i))
	}
	opts := []locker.Option{locker.TTL(w.TTL), locker.Label(w.name)}
	switch w.random.IntN(4) {
	case 0:
		return locker.TryLockAll(ctx, w.locker, wants, opts...)
	case 1:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(w.random.IntN(20))*time.Millisecond)
		defer cancel()
		return locker.LockAll(ctx, w.locker, wants, opts...)
	default:
		ctx, cancel := context.WithTimeout(ctx, hangLimit)
		defer cancel() // a circle would end only here
		lease, err := locker.LockAll(ctx, w.locker, wants, opts...)
		if ctx.Err() != nil {
			w.t.Errorf("%s waits for %v and does not get them: %v", w.name, wants, err)
		}
		return lease, err
	}
}

// hasNothing checks that a call that failed has left none of its locks. A call whose context has ended releases them in
// the background, which takes much less time than their TTL.
func (w *worker) hasNothing(ctx context.Context) {
	start := time.Now()
	for i := range keys {
		key := fmt.Sprint("k", i)
		for {
			seen, err := w.client.Inspect(ctx, key)
			if w.unanswered(err) {
				return
			}
			if err != nil {
				w.t.Errorf("%s: %v", w.name, err)
				return
			}
			if seen.State != inspect.Held || seen.Label != w.name || w.crashedWith(w.name, key) ||
				time.Now().Before(w.doubt) {
				break
			}
			if time.Since(start) > w.TTL/2 {
				w.t.Errorf("%s failed and still has %s", w.name, key)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func (w *worker) close() {
	if err := w.client.Close(); err != nil {
		w.t.Errorf("%s: %v", w.name, err)
	}
}

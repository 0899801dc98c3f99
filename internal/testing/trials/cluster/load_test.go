package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

const (
	clients = 3 // each waits for each of the locks
	keys    = 12
	ttl     = 4 * time.Second
	// forever is longer than any wait in order: a master that was killed comes back, and all leases end before.
	forever = time.Minute
)

// lock is one lock, and what its users have seen.
type lock struct {
	key    string
	newest atomic.Uint64 // the greatest token that was granted
	users  atomic.Int32

	mu    sync.Mutex
	taken time.Time     // when it was acquired last
	gap   time.Duration // the longest time between two acquisitions since it was reset
}

// took records an acquisition. floor is the greatest token before it began.
func (l *lock) took(t *testing.T, lease locker.Lease, floor uint64) {
	if lease.Fence() <= floor {
		t.Errorf("%s: token %d after %d", l.key, lease.Fence(), floor)
	}
	for old := l.newest.Load(); lease.Fence() > old && !l.newest.CompareAndSwap(old, lease.Fence()); {
		old = l.newest.Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.gap, l.taken = max(l.gap, now.Sub(l.taken)), now
}

// since returns when the lock was acquired last, and the longest time without an acquisition since it was asked last.
func (l *lock) since() (taken time.Time, gap time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken, gap = l.taken, l.gap
	l.gap = 0
	return taken, gap
}

// load is what clients do while slots move and masters fail.
type load struct {
	locks                   []*lock
	taken, failed, overlaps atomic.Int64
}

func newLoad() *load {
	w := &load{}
	for i := range keys {
		w.locks = append(w.locks, &lock{key: fmt.Sprint("cluster/", i), taken: time.Now()})
	}
	return w
}

// run uses the locks until ctx ends.
func (w *load) run(ctx context.Context, t *testing.T, c *locker.Client) {
	var users sync.WaitGroup
	for _, l := range w.locks {
		users.Go(func() {
			for ctx.Err() == nil {
				w.use(ctx, t, c, l)
			}
		})
	}
	users.Wait()
}

func (w *load) use(ctx context.Context, t *testing.T, c *locker.Client, l *lock) {
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), forever)
	defer cancel()
	floor := l.newest.Load()
	lease, err := c.Lock(waiting, l.key, locker.TTL(ttl))
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: somebody has waited for %v: %v", l.key, forever, err)
		}
		w.failed.Add(1)
		time.Sleep(rand.N(100 * time.Millisecond)) // as a program does that goes on after an error
		return
	}
	l.took(t, lease, floor)
	w.taken.Add(1)
	if l.users.Add(1) > 1 {
		w.overlaps.Add(1)
	}
	select {
	case <-lease.Done():
	case <-time.After(rand.N(20 * time.Millisecond)):
	}
	l.users.Add(-1)
	_ = lease.Unlock(context.Background()) // goes on in the background if it fails
}

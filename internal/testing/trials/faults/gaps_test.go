package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// forever is longer than any wait in order: a master that was killed comes back, and all leases end before.
const forever = 2 * time.Minute

// load is what callers do while servers fail: each waits for each of some locks, again and again. Its Client's driver
// has a name.
type load struct {
	*testing.T
	name   string
	client *locker.Client
	ttl    time.Duration
	locks  []*contended
	held   locker.Lease // over each event

	taken            atomic.Int64
	failed, overlaps atomic.Int64 // since the first of the events of one kind
	kept, lost       int
	running          sync.WaitGroup
}

// contended is one lock, and what its callers have seen.
type contended struct {
	key    string
	newest atomic.Uint64 // the greatest token that was granted
	users  atomic.Int32

	mu    sync.Mutex
	by    []int         // acquisitions, by caller
	taken time.Time     // when it was acquired last
	gap   time.Duration // the longest time between two acquisitions since the last event began
	fails string        // the last failure, and when it was
}

// newLoad starts the load of some Clients, each with some callers. It ends with ctx.
func newLoad(ctx context.Context, t *testing.T, name string, keys, callers int, ttl time.Duration,
	clients ...*locker.Client) *load {
	w := &load{T: t, name: name, client: clients[0], ttl: ttl}
	for i := range keys {
		l := &contended{key: fmt.Sprint("gaps/", i), by: make([]int, callers*len(clients)), taken: time.Now()}
		w.locks = append(w.locks, l)
		for who := range l.by {
			w.running.Go(func() {
				for ctx.Err() == nil {
					w.use(ctx, clients[who%len(clients)], l, who)
				}
			})
		}
	}
	return w
}

func (w *load) use(ctx context.Context, c *locker.Client, l *contended, who int) {
	waiting, cancel := context.WithTimeout(ctx, forever)
	defer cancel()
	floor := l.newest.Load()
	lease, err := c.Lock(waiting, l.key, locker.TTL(w.ttl))
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return
	default:
		if !errors.Is(err, locker.ErrUnavailable) {
			w.Errorf("%s: %s after at most %v: %v", w.name, l.key, forever, err)
		}
		w.failed.Add(1)
		l.mu.Lock()
		l.fails = fmt.Sprint(time.Now().Format(time.TimeOnly), " ", err)
		l.mu.Unlock()
		time.Sleep(rand.N(100 * time.Millisecond)) // as a program does that goes on after an error
		return
	}
	if lease.Fence() <= floor {
		w.Errorf("%s: %s: token %d after %d", w.name, l.key, lease.Fence(), floor)
	}
	for old := l.newest.Load(); lease.Fence() > old && !l.newest.CompareAndSwap(old, lease.Fence()); {
		old = l.newest.Load()
	}
	l.mu.Lock()
	now := time.Now()
	l.gap, l.taken = max(l.gap, now.Sub(l.taken)), now
	l.by[who]++
	l.mu.Unlock()
	w.taken.Add(1)
	if l.users.Add(1) > 1 {
		w.overlaps.Add(1)
	}
	select {
	case <-lease.Done():
	case <-time.After(rand.N(20 * time.Millisecond)):
	}
	l.users.Add(-1)
	_ = lease.Unlock(context.WithoutCancel(ctx)) // goes on in the background if it fails
}

// begin begins an event. A lock is held over it.
func (w *load) begin() {
	w.eventually("a lock", func() bool {
		var err error
		w.held, err = w.client.TryLock(w.Context(), "held", locker.TTL(w.ttl))
		return err == nil
	})
	for _, l := range w.locks {
		l.mu.Lock()
		l.gap = 0
		l.mu.Unlock()
	}
}

// recovers waits until each caller has had each of some locks again, twice, and returns the longest time since the
// event began in which nobody got one of them.
func (w *load) recovers(locks []*contended) (gap time.Duration) {
	w.Helper()
	for _, l := range locks {
		l.mu.Lock()
		before := slices.Clone(l.by)
		l.mu.Unlock()
		w.eventually("each caller has "+l.key, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			gap = max(gap, l.gap)
			for i, n := range l.by {
				if n < before[i]+2 {
					return false
				}
			}
			return true
		})
	}
	return gap
}

// end finds out what became of the lock that was held: the lease is lost, or still the only one.
func (w *load) end() {
	w.eventually("the lock that was held is proved, or lost", func() bool {
		if w.held.Err() != nil {
			w.lost++
			return true
		}
		if locker.Verify(w.Context(), w.held) != nil {
			return false
		}
		w.kept++
		if other, err := w.client.TryLock(w.Context(), "held"); err == nil {
			w.Errorf("%s: a lock that is proved was given to another", w.name)
			_ = other.Unlock(w.Context())
		}
		return true
	})
	_ = w.held.Unlock(w.Context())
}

func (w *load) eventually(what string, cond func() bool) {
	w.Helper()
	if !eventually(forever, cond) {
		for _, l := range w.locks {
			l.mu.Lock()
			w.Logf("%s: %s: %v acquisitions, the last failure: %s", w.name, l.key, l.by, l.fails)
			l.mu.Unlock()
		}
		w.Fatalf("%s: not within %v: %s", w.name, forever, what)
	}
}

// gapsHead is the head of a report.
const gapsHead = "| driver | event | times | without a lock, median | longest | calls that failed | leases kept | " +
	"lost | second holders |\n| --- | --- | --: | --: | --: | --: | --: | --: | --: |\n"

// underLoads lets an event happen that often, and returns the lines of the report. The event returns which locks it
// hits.
func underLoads(loads []*load, name string, times int, event func(i int) []int) (rows string) {
	if times == 0 {
		return ""
	}
	gaps := make([][]time.Duration, len(loads))
	for _, w := range loads {
		w.kept, w.lost = 0, 0
		w.failed.Store(0)
		w.overlaps.Store(0)
	}
	for n := range times {
		for _, w := range loads {
			w.begin()
		}
		hit := event(n)
		for i, w := range loads {
			gaps[i] = append(gaps[i], w.recovers(w.some(hit)))
			w.end()
		}
	}
	for i, w := range loads {
		slices.Sort(gaps[i])
		rows += fmt.Sprintf("| %s | %s | %d | %v | %v | %d | %d | %d | %d |\n", w.name, name, times,
			gaps[i][times/2].Round(time.Millisecond), gaps[i][times-1].Round(time.Millisecond), w.failed.Load(), w.kept,
			w.lost, w.overlaps.Load())
	}
	return rows
}

// some returns some of the locks.
func (w *load) some(which []int) (locks []*contended) {
	for _, i := range which {
		locks = append(locks, w.locks[i])
	}
	return locks
}

package postgreslock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/lockertrace"
)

const (
	crowdClients = 4
	crowdWorkers = 8
	crowdKeys    = 6
	crowdTTL     = 8 * time.Second
	// crowdPatience is how long a worker waits for a lock before it takes another one.
	crowdPatience = 2 * time.Second
)

// hold is what one worker knows about a lock that it had: from the return of Lock until the call of Unlock, or until
// the lease ended.
type hold struct {
	key      string
	fence    uint64
	from, to time.Time
}

// crowd is workers that lock some keys again and again, while a fault happens. It judges from outside: by what the
// callers were told, and by no answer of the server about its locks.
type crowd struct {
	t       *testing.T
	workers sync.WaitGroup
	stopped atomic.Bool

	seats atomic.Int64 // how many of the next holders keep their locks until thaw is closed
	thaw  chan struct{}

	kept     locker.Lease // see keep
	keptFrom time.Time

	mu    sync.Mutex
	holds []hold
	fails map[string][]string // by key: the calls of Lock that have failed
}

// gather starts a crowd.
func gather(t *testing.T, url string) *crowd {
	t.Helper()
	c := &crowd{t: t, thaw: make(chan struct{}), fails: make(map[string][]string)}
	for range crowdClients {
		l := client(t, url)
		for range crowdWorkers / crowdClients {
			c.workers.Go(func() { c.work(l) })
		}
	}
	return c
}

func (c *crowd) work(l locker.Locker) {
	ctx := c.t.Context()
	for !c.stopped.Load() && ctx.Err() == nil {
		key := strconv.Itoa(rand.IntN(crowdKeys))
		asked := time.Now()
		waiting, cancel := context.WithTimeout(ctx, crowdPatience)
		lease, err := l.Lock(waiting, key, locker.TTL(crowdTTL), locker.Patience(crowdPatience))
		cancel()
		if err != nil {
			c.failed(key, asked, err)
			<-time.After(50 * time.Millisecond)
			continue
		}
		from := time.Now()
		// A caller that has had its lock before there are seats takes none: each lock that is kept slows the others down.
		keeps := c.seats.Load() > 0 && c.seats.Add(-1) >= 0
		<-time.After(rand.N(10 * time.Millisecond))
		if keeps {
			select {
			case <-c.thaw:
			case <-lease.Done():
			}
		}
		to := time.Now()
		if until := lease.Until(); until.Before(to) {
			to = until
		}
		_ = lease.Unlock(ctx) // it goes on in the background
		c.mu.Lock()
		c.holds = append(c.holds, hold{key, lease.Fence(), from, to})
		c.mu.Unlock()
	}
}

// failed looks at the error of a call of Lock that began at asked. If the turn of a caller does not come in its
// process, the error is only that of its context.
func (c *crowd) failed(key string, asked time.Time, err error) {
	c.mu.Lock()
	c.fails[key] = append(c.fails[key], fmt.Sprintf("%s to %s: %v", asked.UTC().Format(clockFormat),
		time.Now().UTC().Format(clockFormat), err))
	c.mu.Unlock()
	for _, may := range []error{locker.ErrUnavailable, locker.ErrHeld, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, may) {
			return
		}
	}
	c.t.Errorf("Lock: got %v, want ErrHeld or ErrUnavailable", err)
}

// keptKey is the key of the lock of keep.
const keptKey = "0"

// keep lets one more caller keep a lock until the crowd is dispersed. The lock lasts for an hour and is not extended,
// so nothing tells the caller that it is lost.
func (c *crowd) keep(url string) {
	c.t.Helper()
	l := client(c.t, url)
	eventually(c.t, "a caller has a lock that it keeps", func() bool {
		var err error
		c.kept, err = l.Lock(c.t.Context(), keptKey, locker.TTL(time.Hour), locker.NoRenewal())
		c.keptFrom = time.Now()
		return err == nil
	})
}

// overtaken waits until a worker has the lock that another caller keeps.
func (c *crowd) overtaken() {
	c.t.Helper()
	eventually(c.t, "a worker has the lock that another caller keeps", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.holds, func(h hold) bool { return h.key == keptKey && h.from.After(c.keptFrom) })
	})
}

// more waits until there are n more holds.
func (c *crowd) more(n int) {
	c.t.Helper()
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.holds)
	}
	want := count() + n
	eventually(c.t, "the crowd goes on", func() bool { return count() >= want })
}

// freeze lets two workers keep their locks until the crowd is dispersed.
func (c *crowd) freeze() {
	c.t.Helper()
	c.seats.Store(2)
	eventually(c.t, "two workers keep their locks", func() bool { return c.seats.Load() <= 0 })
}

// disperse ends the crowd. It returns how often two workers had a lock at the same time, and how often a later hold of
// a key had a token that was not greater.
func (c *crowd) disperse() (double, backwards int) {
	c.t.Helper()
	close(c.thaw)
	c.stopped.Store(true)
	c.workers.Wait()
	if c.kept != nil {
		c.holds = append(c.holds, hold{keptKey, c.kept.Fence(), c.keptFrom, time.Now()})
		_ = c.kept.Unlock(c.t.Context()) // it may have been lost
	}
	slices.SortFunc(c.holds, func(a, b hold) int { return a.from.Compare(b.from) })
	last := make(map[string]hold)
	for _, h := range c.holds {
		before, ok := last[h.key]
		if ok && h.from.Before(before.to) {
			double++
		}
		if ok && h.fence <= before.fence {
			backwards++
			c.t.Logf("key %s: token %d after %d", h.key, h.fence, before.fence)
		}
		if !ok || h.to.After(before.to) {
			h.fence = max(h.fence, before.fence)
			last[h.key] = h
		}
	}
	c.t.Logf("%d holds, %d at the same time as another one", len(c.holds), double)
	return double, backwards
}

// clockFormat is how reports write times, so that they can be compared with those of a server.
const clockFormat = "15:04:05.000"

// nothingLeft waits until no lock is held and nobody waits, and returns how long that took. If it takes a minute, it
// tells which callers wanted what is left.
func (c *crowd) nothingLeft(url string) time.Duration {
	c.t.Helper()
	p := pool(c.t, url)
	const list = "SELECT encode(name, 'escape') || concat_ws(' ', ': lock', token, 'since', since, 'to', expires, 'at', " +
		"clock_timestamp()) FROM locker.locks WHERE expires > clock_timestamp() UNION ALL " +
		"SELECT encode(name, 'escape') || concat_ws(' ', ': waiter', ticket, 'of', channel, 'seen', seen, 'at', " +
		"clock_timestamp()) FROM locker.waiters"
	var left []string
	defer func() {
		for _, row := range left {
			key, _, _ := strings.Cut(strings.TrimPrefix(row, postgreslock.DefaultPrefix), ":")
			c.t.Logf("left behind: %s; calls for this key that failed:\n%s", row, strings.Join(c.fails[key], "\n"))
		}
	}()
	start := time.Now()
	eventually(c.t, "nothing is left", func() bool {
		left = texts(c.t, p, list)
		return len(left) == 0
	})
	return time.Since(start)
}

// A lock that is released while a waiter has not read the answer yet, that another owner has it, is told of
// nevertheless. A poll wakes a waiter only if the machine stands still for a second.
func TestReleaseDuringTheFirstRequest(t *testing.T) {
	t.Parallel()
	const handOvers, polled = 400, 4
	s := migrated(t)
	var all sync.WaitGroup
	var n, polls atomic.Int64
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
		if w.Reason == lockertrace.WakePoll {
			polls.Add(1)
		}
	}})
	for range 2 {
		l := postgreslock.New(pool(t, s.URL("postgres")))
		t.Cleanup(func() { _ = l.Close() })
		all.Go(func() {
			for n.Add(1) <= handOvers && polls.Load() <= polled {
				lease, err := l.Lock(ctx, "k", locker.NoRenewal())
				if err == nil {
					err = lease.Unlock(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if got := polls.Load(); got > polled {
		t.Errorf("%d waiters had to poll", got)
	}
}

package postgreslock_test

import (
	"context"
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
	"github.com/golocker/locker/internal/testing/contention"
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

// crowd is workers that lock some keys again and again, while a fault happens.
type crowd struct {
	*contention.Siege
	seats atomic.Int64 // how many of the next holders keep their locks until the crowd is dispersed
	kept  locker.Lease // see keep
	since time.Time    // when kept was granted
}

// gather starts a crowd.
func gather(t *testing.T, url string) *crowd {
	t.Helper()
	c := &crowd{Siege: &contention.Siege{TB: t, Wait: crowdPatience, Options: func() []locker.Option {
		return []locker.Option{locker.TTL(crowdTTL), locker.Patience(crowdPatience)}
	}}}
	c.Hold = c.hold
	for i := range crowdKeys {
		c.Keys = append(c.Keys, strconv.Itoa(i))
	}
	for range crowdClients {
		l := client(t, url)
		for range crowdWorkers / crowdClients {
			c.Join(l)
		}
	}
	c.more(30)
	return c
}

// hold keeps a lock for some milliseconds, or until the end. A caller that has had its lock before there are seats
// takes none: each lock that is kept slows the others down.
func (c *crowd) hold(ctx context.Context, lease locker.Lease) {
	keeps := c.seats.Load() > 0 && c.seats.Add(-1) >= 0
	contention.Rest(ctx, lease, rand.N(10*time.Millisecond))
	if keeps {
		select {
		case <-ctx.Done():
		case <-lease.Done():
		}
	}
}

// keptKey is the key of the lock of keep.
const keptKey = "0"

// keep lets one more caller keep a lock until the crowd is dispersed. The lock lasts for an hour and is not extended,
// so nothing tells the caller that it is lost.
func (c *crowd) keep(url string) {
	c.Helper()
	l := client(c, url)
	eventually(c, "a caller has a lock that it keeps", func() bool {
		var err error
		c.kept, err = l.Lock(c.Context(), keptKey, locker.TTL(time.Hour), locker.NoRenewal())
		c.since = time.Now()
		return err == nil
	})
}

// overtaken waits until a worker has had the lock that another caller keeps.
func (c *crowd) overtaken() {
	c.Helper()
	c.Until("a worker has the lock that another caller keeps", func(holds []contention.Hold) bool {
		return slices.ContainsFunc(holds, func(h contention.Hold) bool { return h.Key == keptKey && h.From.After(c.since) })
	})
}

// more waits until there are n more holds.
func (c *crowd) more(n int) {
	c.Helper()
	c.More(n, "the crowd goes on")
}

// freeze lets two workers keep their locks until the crowd is dispersed.
func (c *crowd) freeze() {
	c.Helper()
	c.seats.Store(2)
	eventually(c, "two workers keep their locks", func() bool { return c.seats.Load() <= 0 })
}

// disperse ends the crowd. It returns which locks two workers had at the same time, and which tokens did not grow.
func (c *crowd) disperse() (double, backwards []string) {
	c.Helper()
	c.End()
	if c.kept != nil {
		c.Had(contention.Hold{Caller: -1, Key: keptKey, Fence: c.kept.Fence(), From: c.since, To: time.Now()})
		_ = c.kept.Unlock(c.Context()) // it may have been lost
	}
	return c.Judge()
}

// nothingLeft waits until no lock is held and nobody waits, and returns how long that took. If it takes a minute, it
// tells which callers wanted what is left.
func (c *crowd) nothingLeft(url string) time.Duration {
	c.Helper()
	p := pool(c, url)
	const list = "SELECT encode(name, 'escape') || concat_ws(' ', ': lock', token, 'since', since, 'to', expires, 'at', " +
		"clock_timestamp()) FROM locker.locks WHERE expires > clock_timestamp() UNION ALL " +
		"SELECT encode(name, 'escape') || concat_ws(' ', ': waiter', ticket, 'of', channel, 'seen', seen, 'at', " +
		"clock_timestamp()) FROM locker.waiters"
	var left []string
	defer func() {
		for _, row := range left {
			key, _, _ := strings.Cut(strings.TrimPrefix(row, postgreslock.DefaultPrefix), ":")
			c.Logf("left behind: %s; calls for this key that failed:\n%s", row, strings.Join(c.Failures(key), "\n"))
		}
	}()
	start := time.Now()
	eventually(c, "nothing is left", func() bool {
		left = texts(c, p, list)
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

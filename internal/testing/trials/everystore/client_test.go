package everystore

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	rules "github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/internal/testing/trials/history"
)

const (
	clients = 8
	keys    = 2
	holds   = 40 // of each client, and of every second one a long one

	// hangLimit is for all that the clients do together, which takes seconds.
	hangLimit = 4 * time.Minute
)

// closer is a Locker with an end.
type closer interface {
	locker.Locker
	io.Closer
}

// client is one of the clients of a store.
type client struct {
	id     int
	locker locker.Locker
	ttl    time.Duration
}

// play lets clients acquire locks until each has had its share, and returns what they did. open opens a client of the
// store.
func play(t *testing.T, ttl time.Duration, open func() closer) *history.History {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	h := history.New()
	var all sync.WaitGroup
	for id := range clients {
		l := open()
		c := &client{id, h.Client(id, l), ttl}
		all.Go(func() {
			c.work(ctx)
			if err := l.Close(); err != nil {
				t.Errorf("client %d: %v", id, err)
			}
		})
	}
	all.Wait()
	h.Wait()
	if ctx.Err() != nil {
		t.Errorf("the clients have not had their locks within %v", hangLimit)
	}
	return h
}

// work acquires locks for short times. Of each key, one client lets the lock expire once, and another keeps it.
func (c *client) work(ctx context.Context) {
	for n := range holds {
		c.brief(ctx)
		if n != (c.id+1)*holds/(clients+1) {
			continue
		}
		switch key := key(c.id % keys); c.id / keys {
		case 0:
			c.abandon(ctx, key)
		case 1:
			c.keep(ctx, key)
		}
	}
}

func key(i int) string { return fmt.Sprint("k", i) }

// brief tries to acquire a lock until it has one, and uses it for a moment.
func (c *client) brief(ctx context.Context) {
	for ctx.Err() == nil {
		lease, err := c.try(ctx, key(rand.IntN(keys)))
		if err != nil {
			c.pause(ctx, time.Millisecond+rand.N(4*time.Millisecond))
			continue
		}
		for range rand.IntN(3) {
			c.use(ctx, lease)
		}
		_ = lease.Unlock(ctx)
		return
	}
}

// try makes an attempt, or waits for a while.
func (c *client) try(ctx context.Context, key string) (locker.Lease, error) {
	if rand.IntN(2) == 0 {
		return c.locker.TryLock(ctx, key, locker.TTL(c.ttl))
	}
	ctx, cancel := context.WithTimeout(ctx, rand.N(c.ttl))
	defer cancel()
	return c.locker.Lock(ctx, key, locker.TTL(c.ttl))
}

// use does something with a lease. What comes of it is in the history.
func (c *client) use(ctx context.Context, lease locker.Lease) {
	switch rand.IntN(3) {
	case 0:
		_ = lease.Extend(ctx)
	case 1:
		_ = locker.Verify(ctx, lease)
	default:
		c.pause(ctx, rand.N(3*time.Millisecond))
	}
}

// abandon lets a lock expire. The late calls of its holder must fail.
func (c *client) abandon(ctx context.Context, key string) {
	lease := c.lock(ctx, key, locker.NoRenewal())
	if lease == nil {
		return
	}
	<-lease.Done()
	c.pause(ctx, c.ttl/4)
	_ = locker.Verify(ctx, lease)
	_ = lease.Unlock(ctx)
}

// keep holds a lock for longer than its TTL. On a machine that stalls, that takes several attempts, and a broken store
// may never allow it.
func (c *client) keep(ctx context.Context, key string) {
	kept := false
	for range 10 {
		if kept {
			return
		}
		lease := c.lock(ctx, key)
		if lease == nil {
			return
		}
		for range 6 {
			c.pause(ctx, c.ttl/4)
			_ = locker.Verify(ctx, lease)
		}
		kept = lease.Err() == nil
		_ = lease.Unlock(ctx)
	}
}

// lock waits until it has the lock, or ctx ends.
func (c *client) lock(ctx context.Context, key string, opts ...locker.Option) locker.Lease {
	for ctx.Err() == nil {
		lease, err := c.locker.Lock(ctx, key, append(opts, locker.TTL(c.ttl))...)
		if err == nil {
			return lease
		}
		c.pause(ctx, 10*time.Millisecond)
	}
	return nil
}

func (c *client) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// judge returns what is wrong with a history. It does not judge when Done was closed: on a busy machine timers are
// late.
func judge(h *history.History) (found []history.Violation) {
	for _, v := range h.Check(rules.Options{}) {
		if v.Rule != "DONE" {
			found = append(found, v)
		}
	}
	return append(found, h.CheckModel(time.Minute)...)
}

// enough returns a violation for each kind of event of which there were too few to show anything. On a machine that
// stalls, some calls come too late, so that it expects only a part of what usually happens.
func enough(h *history.History) []history.Violation {
	happened := map[string]int{}
	for _, e := range h.Events() {
		if e.Outcome == history.Taken {
			e.Outcome = history.Lost
		}
		happened[fmt.Sprint(e.Op, " ", e.Outcome)]++
	}
	return history.Quota(happened, map[string]int{
		"trylock ok": 20, "lock ok": 20, "trylock held": 20, "lock held": 1, "extend ok": 20, "verify ok": 20,
		"unlock ok": 100, "done lost": keys, "verify lost": keys, "until ok": 1,
	})
}

package etcdlock_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// cluster is an etcd of three members, and what its workers have done.
type cluster struct {
	t       *testing.T
	members []*etcdtest.Member
	relays  []*etcdtest.Relay // between the workers and the members
	direct  *clientv3.Client  // of the test

	mu    sync.Mutex
	holds []hold
}

// hold is one lock of a worker. It was held at least from one time to the other.
type hold struct {
	key      string
	fence    uint64
	from, to time.Time
}

func startCluster(t *testing.T, args ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, members: etcdtest.StartCluster(t, 3, args...)}
	var endpoints []string
	for _, m := range c.members {
		c.relays = append(c.relays, etcdtest.NewRelay(t, m.Addr()))
		endpoints = append(endpoints, m.Addr())
	}
	c.direct = connect(t, clientv3.Config{Endpoints: endpoints})
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// client makes a Client that reaches the members through the relays, until the test ends.
func (c *cluster) client() *locker.Client {
	c.t.Helper()
	var endpoints []string
	for _, r := range c.relays {
		endpoints = append(endpoints, r.Addr())
	}
	b, err := etcdlock.Open(&etcdlock.Config{Endpoints: endpoints})
	c.must(err)
	l := locker.NewClient(b)
	c.t.Cleanup(func() { c.must(l.Close()) })
	return l
}

// work locks key again and again until ctx ends.
func (c *cluster) work(ctx context.Context, l locker.Locker, key string) {
	for ctx.Err() == nil {
		ttl := []time.Duration{2 * time.Second, 5 * time.Second}[rand.IntN(2)]
		lease, err := l.Lock(ctx, key, locker.TTL(ttl), locker.Patience(time.Minute))
		from := time.Now()
		switch {
		case err == nil:
			wait(ctx, lease, []time.Duration{time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond}[rand.IntN(3)])
			c.add(hold{key, lease.Fence(), from, earlier(time.Now(), lease.Until())})
			_ = lease.Unlock(ctx) // it may have been lost, or etcd may fail
		case errors.Is(err, locker.ErrUnavailable):
			wait(ctx, nil, 20*time.Millisecond)
		case ctx.Err() == nil:
			c.t.Errorf("Lock: %v", err)
			return
		}
	}
}

// wait waits for d, for the end of the lease if there is one, or for the end of ctx.
func wait(ctx context.Context, lease locker.Lease, d time.Duration) {
	var lost <-chan struct{}
	if lease != nil {
		lost = lease.Done()
	}
	select {
	case <-time.After(d):
	case <-lost:
	case <-ctx.Done():
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (c *cluster) add(h hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds = append(c.holds, h)
}

// count returns how often the worker have had each key.
func (c *cluster) count() (counts map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts = map[string]int{}
	for _, h := range c.holds {
		counts[h.key]++
	}
	return counts
}

// progress waits until the workers have had each key twice more.
func (c *cluster) progress(when string) {
	c.t.Helper()
	start, before := time.Now(), c.count()
	until(c.t, "the workers go on: "+when, func() bool {
		now := c.count()
		return now["a"] >= before["a"]+2 && now["b"] >= before["b"]+2
	})
	c.t.Logf("%5.1f s %s", time.Since(start).Seconds(), when)
}

// judge finds locks that were held twice, and tokens that did not grow.
func (c *cluster) judge() {
	slices.SortFunc(c.holds, func(a, b hold) int { return cmp.Or(cmp.Compare(a.key, b.key), a.from.Compare(b.from)) })
	c.t.Logf("%d locks", len(c.holds))
	for i, h := range c.holds[1:] {
		before := c.holds[i]
		if before.key != h.key {
			continue
		}
		if h.from.Before(before.to) {
			c.t.Errorf("%s: the holder of token %d got the lock %v before the end of token %d",
				h.key, h.fence, before.to.Sub(h.from), before.fence)
		}
		if h.fence <= before.fence {
			c.t.Errorf("%s: token %d after %d", h.key, h.fence, before.fence)
		}
	}
}

// empty waits until there are no entries and no leases. The record of the tokens stays.
func (c *cluster) empty() {
	until(c.t, "nothing is left", func() bool {
		ctx, cancel := background()
		defer cancel()
		entries, err := c.direct.Get(ctx, "", clientv3.WithPrefix())
		if err != nil { // a member that is cut off does not answer; the next request is for another one
			return false
		}
		isEntry := func(kv *mvccpb.KeyValue) bool { return !strings.HasSuffix(string(kv.Key), etcdlock.TokensKey) }
		leases, err := c.direct.Leases(ctx)
		return err == nil && !slices.ContainsFunc(entries.Kvs, isEntry) && len(leases.Leases) == 0
	})
}

func (c *cluster) leader() *etcdtest.Member { return c.member(func(leads bool) bool { return leads }) }

func (c *cluster) follower() *etcdtest.Member {
	return c.member(func(leads bool) bool { return !leads })
}

// member returns a member that leads, or does not.
func (c *cluster) member(wanted func(leads bool) bool) (found *etcdtest.Member) {
	c.t.Helper()
	until(c.t, "the members know who leads", func() bool {
		for _, m := range c.members {
			s := c.status(m)
			if s != nil && s.Leader != 0 && wanted(s.Leader == s.Header.MemberId) {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

// status returns what a member says of itself, or nil if it says nothing.
func (c *cluster) status(m *etcdtest.Member) *clientv3.StatusResponse {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	s, err := c.direct.Status(ctx, m.Addr())
	if err != nil {
		return nil
	}
	return s
}

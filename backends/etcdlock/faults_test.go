package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// TestFaults breaks an etcd of three members in one way after the other, under the load of workers that lock two keys.
// After each fault all go on: nobody waits for ever. At the end nothing is left, and no two workers have had a lock at
// the same time, or with tokens that do not grow. With -short nothing of this is tested: it takes most of a minute.
func TestFaults(t *testing.T) {
	if testing.Short() {
		return
	}
	c := startCluster(t)
	siege := &contention.Siege{
		TB: t, Keys: []string{"a", "b"},
		Options: func() []locker.Option {
			return []locker.Option{locker.TTL(2*time.Second + rand.N(3*time.Second)), locker.Patience(time.Minute)}
		},
		Hold: func(ctx context.Context, lease locker.Lease) {
			holds := []time.Duration{time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond}
			contention.Rest(ctx, lease, holds[rand.IntN(len(holds))])
		},
	}
	for range 6 {
		siege.Join(c.client())
	}
	siege.Everybody("at the beginning")
	for _, fault := range []struct {
		name   string
		inject func() (mend func())
	}{
		{"the leader is killed", func() func() { return kill(c.leader()) }},
		{"the leader is stopped", func() func() { return pause(c.leader()) }},
		{"the leader is isolated", func() func() { return isolate(c.leader()) }},
		{"the leader is moved", c.moveLeader},
		{"connections are cut", c.cut},
		{"all are killed", c.killAll},
	} {
		mend := fault.inject()
		siege.More(4, fault.name)
		mend()
		siege.Everybody("after this was mended: " + fault.name)
	}
	siege.Clean()
	c.empty()
}

// A member that does not reach the others refuses requests, which then go to another one.
func TestIsolatedMemberCostsNothing(t *testing.T) {
	if testing.Short() {
		return // three members take seconds to start
	}
	c := startCluster(t)
	l := c.client()
	m := c.follower()
	m.Isolate()
	until(t, "the member knows no leader", func() bool {
		s := c.status(m)
		return s != nil && s.Leader == 0
	})
	for range 30 {
		lease, err := l.TryLock(t.Context(), "k")
		c.must(err)
		unlock(t, lease)
	}
	c.empty()
}

// A member stands still, and its kernel goes on to confirm what comes. No lock is lost that can live through an
// election, whether the member has led or not.
func TestStoppedMemberCostsNoLock(t *testing.T) {
	if testing.Short() {
		return // three members take seconds to start
	}
	const clients = 8
	n := leasesOr(manyLeases) / clients
	c := startCluster(t)
	for who, member := range map[string]func() *etcdtest.Member{"follower": c.follower, "leader": c.leader} {
		m := member()
		leases := map[locker.Lease]time.Time{}
		for i := range clients {
			for _, lease := range c.many(c.client(), fmt.Sprint(who, i, "/"), n, 8*time.Second, nil) {
				leases[lease] = lease.Until()
			}
		}
		m.Pause()
		for lease, granted := range leases {
			until(t, "the lock is renewed", func() bool {
				if err := lease.Err(); err != nil {
					t.Fatalf("the %s is stopped: %v", who, err)
				}
				return lease.Until().After(granted.Add(4 * time.Second)) // twice
			})
		}
		m.Resume()
		locks := slices.Collect(maps.Keys(leases))
		concurrently(len(locks), func(i int) { unlock(t, locks[i]) })
	}
	c.empty()
}

func kill(m *etcdtest.Member) (mend func()) {
	m.Kill()
	return m.Restart
}

func pause(m *etcdtest.Member) (mend func()) {
	m.Pause()
	return m.Resume
}

func isolate(m *etcdtest.Member) (mend func()) {
	m.Isolate()
	return m.Rejoin
}

func (c *cluster) moveLeader() (mend func()) {
	to := c.status(c.follower()).Header.MemberId
	leader := connect(c.t, clientv3.Config{Endpoints: []string{c.leader().Addr()}})
	ctx, cancel := background()
	defer cancel()
	_, err := leader.MoveLeader(ctx, to)
	c.must(err)
	return func() {}
}

func (c *cluster) cut() (mend func()) {
	for _, r := range c.relays {
		r.Cut()
	}
	return func() {}
}

func (c *cluster) killAll() (mend func()) {
	for _, m := range c.members {
		m.Kill()
	}
	for _, m := range c.members {
		m.Start()
	}
	return func() {}
}

// With a full database, etcd grants nothing until the alarm is disarmed. Locks that are held are released, and not
// extended: that takes another lease. Waiters wait.
func TestFullDatabase(t *testing.T) {
	if testing.Short() {
		return
	}
	t.Parallel()
	s := newStore(t, etcdtest.Start(t, "--quota-backend-bytes=2097152"))
	l := s.client()
	brief, long := lock(t, l, "brief", locker.TTL(time.Minute)), lock(t, l, "long", locker.TTL(time.Minute))
	next := func(key string, ttl time.Duration, n int) <-chan locker.Lease {
		granted, waiter := make(chan locker.Lease, 1), s.client()
		go func() {
			lease, err := waiter.Lock(t.Context(), key, locker.TTL(ttl), locker.Patience(time.Hour))
			if err != nil {
				t.Errorf("Lock: %v", err)
			}
			granted <- lease
		}()
		until(t, "the lock is waited for", func() bool { return len(s.left()) == n })
		return granted
	}
	nextBrief, nextLong := next("brief", 10*time.Second, 3), next("long", time.Hour, 4)
	var err error
	for i := 0; err == nil; i++ {
		_, err = s.direct.Put(t.Context(), fmt.Sprint("fill", i), strings.Repeat("x", 100_000))
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatal(err)
	}
	_, err = l.TryLock(t.Context(), "other")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "etcdctl alarm disarm") {
		t.Errorf("TryLock: expected ErrUnavailable and what to do, seen %v", err)
	}
	err = brief.Extend(t.Context())
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "etcdctl alarm disarm") {
		t.Errorf("Extend: expected ErrUnavailable and what to do, seen %v", err)
	}
	s.must(brief.Err())
	unlock(t, brief)
	unlock(t, long)
	if _, err := l.TryLock(t.Context(), "long"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("TryLock: expected ErrUnavailable, seen %v", err)
	}
	_, err = s.direct.Delete(t.Context(), "fill", clientv3.WithPrefix())
	s.must(err)
	now, err := s.direct.Get(t.Context(), "fill")
	s.must(err)
	_, err = s.direct.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	s.must(err)
	_, err = s.direct.Defragment(t.Context(), s.member.Addr())
	s.must(err)
	_, err = s.direct.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	s.must(err)
	unlock(t, <-nextBrief)
	unlock(t, <-nextLong)
	unlock(t, lock(t, l, "other"))
	until(t, "nothing is left", func() bool { return len(s.left()) == 0 })
}

package etcdlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// cluster is an etcd of three members.
type cluster struct {
	t       *testing.T
	members []*etcdtest.Member
	relays  []*etcdtest.Relay // between the workers and the members
	direct  *clientv3.Client  // of the test
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

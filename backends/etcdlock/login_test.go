package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// A function for credentials that does not heed its context delays no caller.
func TestLoginThatHangs(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	c, err := config.Parse("etcd://" + s.member.Addr())
	s.must(err)
	hang := make(chan struct{})
	c.Credentials = func(context.Context) (string, string, error) {
		<-hang
		return "", "", nil
	}
	l, err := c.Open(t.Context())
	s.must(err)
	defer l.Close()
	defer close(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- second(l.TryLock(ctx, "k")) }()
	select {
	case err := <-result:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("expected DeadlineExceeded, seen %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a call goes on for a minute after its context has ended")
	}
}

// A member without a leader refuses logins, which go to another member then.
func TestIsolatedMemberDelaysNoLogin(t *testing.T) {
	if testing.Short() {
		return // three members take seconds to start
	}
	c := startCluster(t, "--bcrypt-cost=4")
	m := c.follower()
	enableAuth(t, c.direct)
	root := &etcdlock.Config{Username: "root", Password: password}
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.Addr())
	}
	root.Endpoints = endpoints
	m.Isolate()
	until(t, "the member is not healthy", func() bool { return !m.Healthy() })
	for range 6 {
		b, err := etcdlock.Open(root)
		c.must(err)
		l := locker.NewClient(b)
		start := time.Now()
		lease, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Errorf("after %v: %v", time.Since(start), err)
		} else {
			unlock(t, lease)
		}
		c.must(l.Close())
	}
}

func enableAuth(t *testing.T, direct *clientv3.Client) {
	t.Helper()
	_, err := direct.UserAdd(t.Context(), "root", password)
	if err == nil {
		_, err = direct.UserGrantRole(t.Context(), "root", "root")
	}
	if err == nil {
		_, err = direct.AuthEnable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

package natslock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/internal/testing/natstest"
)

// cluster is three servers with a bucket of three replicas.
type cluster struct {
	t       testing.TB
	servers []*natstest.Server
	js      jetstream.JetStream // connected to any of them
}

func startCluster(t testing.TB, args ...string) cluster {
	t.Helper()
	c := cluster{t: t, servers: natstest.StartCluster(t, 3, args...)}
	c.js = connect(t, c.addrs("nats://"))
	return c
}

// addrs returns the addresses of the servers, each with a prefix, and commas between them.
func (c cluster) addrs(prefix string) string {
	addrs := make([]string, len(c.servers))
	for i, s := range c.servers {
		addrs[i] = prefix + s.Addr()
	}
	return strings.Join(addrs, ",")
}

const prefix = "p:"

// url is the configuration of a client. The TTL is long, so that what is left behind stays.
func (c cluster) url() string {
	return "nats://" + c.addrs("") + "?replicas=3&ttl=5m&timeout=1s&prefix=" + prefix
}

// nothingLeft waits until there are no locks.
func (c cluster) nothingLeft() {
	c.t.Helper()
	c.within("nothing left behind", func(ctx context.Context) error {
		if left := c.store().Left(ctx); len(left) > 0 {
			return fmt.Errorf("left behind: %v", left)
		}
		return nil
	})
}

// backend returns a Backend with the connection of the test.
func (c cluster) store() *natslock.Backend {
	return natslock.NewBackend(c.js, natslock.Replicas(len(c.servers)))
}

// logs shows the ends of the servers' logs.
func (c cluster) logs() {
	for i, s := range c.servers {
		log := s.Log()
		c.t.Logf("log of n%d:\n%s", i, log[max(0, len(log)-4000):])
	}
}

// within calls do until it returns nil, for a minute.
func (c cluster) within(what string, do func(ctx context.Context) error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err = do(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	c.t.Fatalf("%s, for a minute: %v", what, err)
}

// leader returns the server that is the leader of the bucket.
func (c cluster) leader() (s *natstest.Server) {
	c.t.Helper()
	c.within("the leader of the bucket", func(ctx context.Context) error {
		stream, err := c.js.Stream(ctx, "KV_"+natslock.DefaultBucket)
		if err != nil {
			return err
		}
		var i int
		if _, err := fmt.Sscanf(stream.CachedInfo().Cluster.Leader, "n%d", &i); err != nil {
			return fmt.Errorf("the bucket has no leader: %w", err)
		}
		s = c.servers[i]
		return nil
	})
	return s
}

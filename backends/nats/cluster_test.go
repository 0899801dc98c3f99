package nats_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker/backends/nats"
	"github.com/golocker/locker/internal/testing/natstest"
)

// cluster is three servers with a bucket of three replicas.
type cluster struct {
	t       testing.TB
	servers []*natstest.Server
	js      jetstream.JetStream // connected to any of them
}

func startCluster(t testing.TB) cluster {
	t.Helper()
	c := cluster{t: t, servers: natstest.StartCluster(t, 3)}
	c.js = store{Server: c.servers[0], t: t}.connect(t)
	return c
}

const prefix = "p:"

func (c cluster) url() string {
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, s.Addr())
	}
	return "nats://" + strings.Join(addrs, ",") + "?replicas=3&ttl=3s&timeout=1s&prefix=" + prefix
}

// backend returns a Backend with the connection of the test.
func (c cluster) backend() *nats.Backend { return nats.NewBackend(c.js, nats.Replicas(len(c.servers))) }

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
		stream, err := c.js.Stream(ctx, "KV_"+nats.DefaultBucket)
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

package goredisdriver_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
)

// withCluster adds a cluster to a harness.
func withCluster(t *testing.T, h conformance.DriverHarness, options redis.ClusterOptions) conformance.DriverHarness {
	c := redistest.StartCluster(t, 2, false)
	if !c.Masters[0].Knows(t, "ssubscribe") {
		return h // before Redis 7
	}
	h.Cluster = func(testing.TB) []string { return c.Addrs() }
	h.OpenCluster = func(t testing.TB, addrs []string) drivers.Driver {
		options := options
		options.Addrs = addrs
		client := redis.NewClusterClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		return goredisdriver.New(client)
	}
	return h
}

// A client of a type that the driver does not know may keep its channels anywhere.
func TestOnlyClustersSubscribeToShards(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = client.Close() }()
	assert.Implements(t, (*drivers.ShardSubscriber)(nil), goredisdriver.New(client))
	trusted := goredisdriver.New(struct{ redis.UniversalClient }{client}, goredisdriver.Trusted())
	assert.Implements(t, (*drivers.Cluster)(nil), trusted)
	assert.NotImplements(t, (*drivers.ShardSubscriber)(nil), trusted)
}

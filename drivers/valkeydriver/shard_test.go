// Code generated from drivers/rueidisdriver by go generate; DO NOT EDIT.

package valkeydriver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
)

// withCluster adds a cluster to a harness.
func withCluster(t *testing.T, h conformance.DriverHarness, options valkey.ClientOption) conformance.DriverHarness {
	c := redistest.StartCluster(t, 2, false)
	if !c.Masters[0].Knows(t, "ssubscribe") {
		return h // before Redis 7
	}
	h.Cluster = func(testing.TB) []string { return c.Addrs() }
	h.OpenCluster = func(t testing.TB, addrs []string) drivers.Driver {
		options := options
		options.InitAddress = addrs
		client, err := valkey.NewClient(options)
		require.NoError(t, err)
		t.Cleanup(client.Close)
		return valkeydriver.New(client)
	}
	return h
}

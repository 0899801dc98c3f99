package valkeydriver_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// Each backend takes, extends, verifies, hands over and releases a lock with this driver. The suites of the backends
// run with the driver of rueidis, from which this one is generated.
func TestBackends(t *testing.T) {
	t.Parallel()
	options := func(t *testing.T, o valkey.ClientOption) drivers.Driver {
		client, err := valkey.NewClient(o)
		require.NoError(t, err)
		t.Cleanup(client.Close)
		return valkeydriver.New(client)
	}
	open := func(t *testing.T, addr string) drivers.Driver {
		d, err := drivers.Open(t.Context(), "valkey", drivers.Config{Network: "tcp", Addr: addr})
		require.NoError(t, err)
		return d
	}
	server, cluster := redistest.Start(t), redistest.StartCluster(t, 2, false)
	sentinel := redistest.StartSentinel(t, redistest.Start(t))
	var nodes []string
	for range 3 {
		nodes = append(nodes, redistest.Start(t).Addr())
	}
	for name, client := range map[string]func(t *testing.T) *locker.Client{
		"single": func(t *testing.T) *locker.Client { return single.New(open(t, server.Addr())) },
		"single on a cluster": func(t *testing.T) *locker.Client {
			return single.New(options(t, valkey.ClientOption{InitAddress: cluster.Addrs()}))
		},
		"single behind sentinels": func(t *testing.T) *locker.Client {
			return single.New(options(t, valkey.ClientOption{InitAddress: []string{sentinel.Addr()},
				Sentinel: valkey.SentinelOption{MasterSet: redistest.SentinelMaster}}))
		},
		"redlock": func(t *testing.T) *locker.Client {
			var ds []drivers.Driver
			for _, addr := range nodes {
				ds = append(ds, open(t, addr))
			}
			return redlock.New(ds)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			one, other := client(t), client(t)
			defer func() { require.NoError(t, one.Close()); require.NoError(t, other.Close()) }()
			lease, err := one.Lock(ctx, "key", locker.TTL(time.Minute))
			require.NoError(t, err)
			require.NoError(t, lease.Extend(ctx, locker.TTL(2*time.Minute)))
			require.NoError(t, locker.Verify(ctx, lease))
			short, cancel := context.WithCancel(ctx)
			defer cancel()
			waiting := &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { cancel() }}
			_, err = other.Lock(lockertrace.With(short, waiting), "key")
			require.ErrorIs(t, err, locker.ErrHeld)
			granted := make(chan error, 1)
			go func() {
				next, err := other.Lock(ctx, "key")
				if err == nil {
					err = next.Unlock(ctx)
				}
				granted <- err
			}()
			require.NoError(t, lease.Unlock(ctx))
			require.NoError(t, <-granted)
		})
	}
}

// Code generated from drivers/rueidisdriver by go generate; DO NOT EDIT.

package valkeydriver_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m)
}

func harness(t *testing.T, open func(t testing.TB, addr, password string) drivers.Driver) conformance.DriverHarness {
	plain, locked := redistest.Start(t), redistest.Start(t, "--requirepass", "pw")
	return conformance.DriverHarness{
		Addr:    func(testing.TB) string { return plain.Addr() },
		Open:    func(t testing.TB, addr string) drivers.Driver { return open(t, addr, "") },
		Refused: func(t testing.TB) drivers.Driver { return open(t, locked.Addr(), "wrong") },
	}
}

// userDriver drives a client as a program may have made it, with retries, client-side caching and several connections
// among its defaults. ForceSingleClient is what a program needs to build a client while the server is down.
func userDriver(options valkey.ClientOption) func(t testing.TB, addr, password string) drivers.Driver {
	return func(t testing.TB, addr, password string) drivers.Driver {
		options := options
		options.InitAddress, options.Password, options.ForceSingleClient = []string{addr}, password, true
		// NewClient waits this long for a server that does not answer, and so does each new connection.
		options.Dialer.Timeout = 1500 * time.Millisecond
		client, _ := valkey.NewClient(options)
		require.NotNil(t, client)
		t.Cleanup(client.Close)
		return valkeydriver.New(client)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]valkey.ClientOption{
		"Defaults":              {},
		"AlwaysPipelining":      {AlwaysPipelining: true, ConnWriteTimeout: time.Second},
		"DisableAutoPipelining": {DisableAutoPipelining: true},
		"RESP2":                 {AlwaysRESP2: true, DisableCache: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness(t, userDriver(options))
			if name == "Defaults" || name == "RESP2" {
				h = withCluster(t, h, options)
			}
			conformance.RunDriver(t, h)
		})
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	conformance.RunDriver(t, harness(t, func(t testing.TB, addr, password string) drivers.Driver {
		d, err := drivers.Open(t.Context(), "valkey", drivers.Config{Network: "tcp", Addr: addr, Password: password})
		require.NoError(t, err)
		return d
	}))
}

func TestCloseSparesTheCallersClient(t *testing.T) {
	t.Parallel()
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redistest.Start(t).Addr()},
		ForceSingleClient: true})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, valkeydriver.New(client).Close())
	require.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error())
}

// A client whose connections have a lifetime sends commands again that are unanswered when a connection ends. If that
// fails, the commands may still have been executed.
func TestExpiredConnectionMayHaveSent(t *testing.T) {
	t.Parallel()
	for size := range 2 {
		server := redistest.Start(t)
		proxy := fault.New(t, server.Addr())
		var down atomic.Bool
		client, err := valkey.NewClient(valkey.ClientOption{
			InitAddress: []string{proxy.Addr()}, ForceSingleClient: true, ConnLifetime: 500 * time.Millisecond,
			DialCtxFn: func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if down.Load() {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
				}
				return dialer.DialContext(ctx, "tcp", addr)
			},
		})
		require.NoError(t, err)
		defer client.Close()
		d := valkeydriver.New(client)
		for range 20 { // a machine that stalls may let the client dial before it cannot
			down.Store(false)
			_, err = d.Do(t.Context(), drivers.Command{"DEL", "n"})
			require.NoError(t, err)
			proxy.Handle(fault.Nth(1, fault.DropReply, "INCR"))
			executed := make(chan struct{})
			go func() {
				defer close(executed)
				for value, _ := server.Do("GET", "n"); value == nil && t.Context().Err() == nil; value,
					_ = server.Do("GET", "n") {
					time.Sleep(time.Millisecond)
				}
				down.Store(true)
			}()
			_, err = d.Do(t.Context(),
				append([]drivers.Command{{"INCR", "n"}}, []drivers.Command{{"PING"}}[:size]...)...)
			<-executed
			if err != nil {
				break
			}
		}
		require.Error(t, err)
		assert.NotErrorIs(t, err, drivers.ErrNotSent)
		_, err = d.Do(t.Context(), drivers.Command{"INCR", "n"})
		require.ErrorIs(t, err, drivers.ErrNotSent, "there is no connection")
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	server.AddSlots(t, 0, 16383)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()}, ShuffleInit: true})
	require.NoError(t, err)
	defer client.Close()
	require.Equal(t, valkey.ClientModeCluster, client.Mode())
	d := valkeydriver.New(client)
	require.Eventually(t, func() bool {
		replies, err := d.Do(t.Context(), drivers.Command{"SET", "{k}", "v"})
		return err == nil && replies[0] == "OK"
	}, 10*time.Second, 10*time.Millisecond)
	replies, err := d.Do(t.Context(),
		drivers.Command{"EVAL", "return {KEYS[1], redis.call('GET', KEYS[1])}", "1", "{k}"},
		drivers.Command{"EVALSHA", "0000000000000000000000000000000000000000", "1", "{l}"},
		drivers.Command{"GET", "none"})
	require.NoError(t, err)
	assert.Equal(t, []drivers.Reply{"{k}", "v"}, replies[0])
	assert.Equal(t, "NOSCRIPT", replies[1].(drivers.ServerError).Code())
	assert.Nil(t, replies[2])
}

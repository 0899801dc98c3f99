package goredisdriver_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

// subscribe opens a subscription and returns its events as texts.
func subscribe(t *testing.T, d drivers.Driver) (drivers.Subscription, chan string) {
	t.Helper()
	heard := make(chan string, 100)
	sub, err := d.(drivers.Subscriber).Subscribe(t.Context(), drivers.Listener{
		Subscribed: func(channel string) { heard <- "subscribed " + channel },
		Message:    func(channel, payload string) { heard <- channel + ": " + payload },
		Lost:       func(error) { heard <- "lost" },
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sub.Close()) })
	return sub, heard
}

func TestClustersDoNotSubscribe(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = cluster.Close() }()
	assert.NotImplements(t, (*drivers.Subscriber)(nil), goredisdriver.New(cluster))
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	assert.Implements(t, (*drivers.Subscriber)(nil), goredisdriver.New(client))
}

// A subscription has a client of its own. Its options are those of the caller's client, where 0 means none.
func TestSubscribeWithTheCallersOptions(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "pw")
	var connected atomic.Int32
	for name, options := range map[string]redis.Options{
		"none":  {},
		"RESP2": {Protocol: 2},
		"short time-outs": {ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond,
			ContextTimeoutEnabled: true},
		"no time-outs":        {ReadTimeout: -1, WriteTimeout: -1},
		"no deadlines at all": {ReadTimeout: -2, WriteTimeout: -2, MaxRetries: -1},
		"a pool that is busy": {PoolSize: 1, MinIdleConns: 1, MaxActiveConns: 1, PoolTimeout: 10 * time.Millisecond},
		"client-side caching": {ClientSideCacheConfig: &redis.CacheConfig{}},
		"a name and a hook": {ClientName: "mine", OnConnect: func(context.Context, *redis.Conn) error {
			connected.Add(1)
			return nil
		}},
		"a provider of credentials": {CredentialsProvider: func() (string, string) { return "", "pw" }},
	} {
		t.Run(name, func(t *testing.T) {
			options.Addr = server.Addr()
			if options.CredentialsProvider == nil {
				options.Password = "pw"
			}
			proxy := fault.New(t, server.Addr())
			options.Addr = proxy.Addr()
			client := redis.NewClient(&options)
			defer func() { _ = client.Close() }()
			d := goredisdriver.New(client)
			conn := client.Conn()
			require.NoError(t, conn.Ping(t.Context()).Err())
			defer func() { _ = conn.Close() }()
			log.take()
			before := connected.Load()
			sub, heard := subscribe(t, d)
			if options.OnConnect != nil {
				assert.Equal(t, before+1, connected.Load())
				assert.Contains(t, server.Cmd(t, "CLIENT", "LIST", "TYPE", "NORMAL"), "name=mine")
			}
			time.Sleep(150 * time.Millisecond)
			require.NoError(t, sub.Subscribe("a"))
			assert.Equal(t, "subscribed a", <-heard)
			server.Cmd(t, "PUBLISH", "a", "b")
			assert.Equal(t, "a: b", <-heard)
			proxy.Cut()
			assert.Equal(t, "lost", <-heard)
			require.Error(t, sub.Subscribe("a"))
			require.NoError(t, sub.Close())
			assert.Empty(t, log.take(), "a lost subscription is no news to the process's log")
		})
	}
}

// The caller's dialer is used once. A PubSub would use it again when its connection fails.
func TestSubscriptionDialsOnce(t *testing.T) {
	server := redistest.Start(t)
	var dials atomic.Int32
	client := redis.NewClient(&redis.Options{Addr: server.Addr(),
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}})
	defer func() { _ = client.Close() }()
	sub, heard := subscribe(t, goredisdriver.New(client))
	server.Kill()
	assert.Equal(t, "lost", <-heard)
	server.Restart()
	require.Error(t, sub.Subscribe("a"))
	require.Error(t, sub.Unsubscribe("a"))
	assert.EqualValues(t, 1, dials.Load())
}

// A dialer may ignore the context, as the client's own does with TLS.
func TestSubscribeDoesNotWaitForTheDialer(t *testing.T) {
	server := redistest.Start(t)
	release, closed, dialling := make(chan struct{}), make(chan struct{}), make(chan struct{})
	began, ended := sync.OnceFunc(func() { close(dialling) }), sync.OnceFunc(func() { close(closed) })
	client := redis.NewClient(&redis.Options{Addr: server.Addr(),
		Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			began()
			<-release
			conn, err := net.Dial(network, addr)
			return closing{conn, ended}, err
		}})
	defer func() { _ = client.Close() }()
	for limit := 20 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := goredisdriver.New(client).(drivers.Subscriber).Subscribe(ctx, drivers.Listener{})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if isClosed(dialling) { // else the time was up before, on a machine that stalls
			break
		}
	}
	close(release)
	<-closed
}

type closing struct {
	net.Conn
	ended func()
}

func (c closing) Close() error {
	c.ended()
	return c.Conn.Close()
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

package goredisdriver_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
)

// log collects what go-redis writes to its process-wide logger.
var log logger

type logger struct {
	sync.Mutex
	lines []string
}

func (l *logger) Printf(_ context.Context, format string, args ...any) {
	l.Lock()
	defer l.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *logger) take() []string {
	l.Lock()
	defer l.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

func TestMain(m *testing.M) {
	redis.SetLogger(&log)
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

// userDriver returns a driver of a client with default options, which include retries (MaxRetries 3).
func userDriver(options redis.Options) func(t testing.TB, addr, password string) drivers.Driver {
	return func(t testing.TB, addr, password string) drivers.Driver {
		options := options
		options.Addr, options.Password = addr, password
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		return goredisdriver.New(client)
	}
}

func TestNew(t *testing.T) {
	t.Run("Defaults", func(t *testing.T) {
		conformance.RunDriver(t, withCluster(t, harness(t, userDriver(redis.Options{})), redis.ClusterOptions{}))
	})
	t.Run("ContextTimeout", func(t *testing.T) {
		conformance.RunDriver(t, harness(t, userDriver(redis.Options{ContextTimeoutEnabled: true, Protocol: 2})))
	})
}

func TestOpen(t *testing.T) {
	log.take()
	t.Run("Conformance", func(t *testing.T) {
		conformance.RunDriver(t, harness(t, func(t testing.TB, addr, password string) drivers.Driver {
			d, err := drivers.Open(t.Context(), "goredis",
				drivers.Config{Network: "tcp", Addr: addr, Password: password})
			require.NoError(t, err)
			return d
		}))
	})
	assert.Empty(t, log.take(), "an opened driver writes nothing to the log, whatever goes wrong")
}

func TestCloseSparesTheCallersClient(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()})
	require.NoError(t, goredisdriver.New(client).Close())
	require.NoError(t, client.Ping(t.Context()).Err())
	require.NoError(t, client.Close())
	_, err := goredisdriver.New(client).Do(t.Context(), drivers.Command{"PING"})
	require.ErrorIs(t, err, drivers.ErrNotSent, "the caller has closed the client")
	require.ErrorIs(t, err, redis.ErrClosed)
}

func TestBusyPoolIsNotSent(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 1, PoolTimeout: 20 * time.Millisecond,
		ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	d := goredisdriver.New(client)
	conn := client.Conn()
	require.NoError(t, conn.Ping(t.Context()).Err())
	_, err := d.Do(t.Context(), drivers.Command{"INCR", "key"})
	require.ErrorIs(t, err, drivers.ErrNotSent)
	require.NoError(t, conn.Close())
	replies, err := d.Do(t.Context(), drivers.Command{"INCR", "key"})
	require.NoError(t, err)
	assert.Equal(t, []drivers.Reply{int64(1)}, replies)
}

func TestCluster(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
	server.AddSlots(t, 0, 16383)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	d := goredisdriver.New(client)
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

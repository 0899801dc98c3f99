package goredisdriver_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/single"
)

// measured is a wrapper of a client, as programs use it to measure calls.
type measured struct{ redis.UniversalClient }

func ringOf(t *testing.T, servers ...*redistest.Server) *redis.Ring {
	t.Helper()
	shards := map[string]string{}
	for _, s := range servers {
		shards[s.Addr()] = s.Addr()
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: shards, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

func TestRingIsRefused(t *testing.T) {
	one, two := redistest.Start(t), redistest.Start(t)
	ring := ringOf(t, one, two)
	for name, c := range map[string]struct {
		driver drivers.Driver
		named  string
	}{
		"by itself":                {goredisdriver.New(ring), "redis.Ring"},
		"by itself, vouched for":   {goredisdriver.New(ring, goredisdriver.Trusted()), "redis.Ring"},
		"embedded":                 {goredisdriver.New(struct{ *redis.Ring }{ring}), "Trusted"},
		"in a wrapper":             {goredisdriver.New(measured{ring}), "Trusted"},
		"in a wrapper's interface": {goredisdriver.New(measured{measured{ring}}), "measured"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, cmds := range [][]drivers.Command{{{"INCR", "k"}}, {{"INCR", "k"}, {"INCR", "l"}}} {
				_, err := c.driver.Do(t.Context(), cmds...)
				require.ErrorIs(t, err, drivers.ErrNotSent)
				require.ErrorContains(t, err, c.named)
			}
			_, err := c.driver.(drivers.Subscriber).Subscribe(t.Context(), drivers.Listener{})
			require.ErrorContains(t, err, c.named)
			l := single.New(c.driver)
			_, err = l.TryLock(t.Context(), "k")
			require.ErrorIs(t, err, locker.ErrUnavailable)
			require.ErrorContains(t, err, c.named)
			require.NoError(t, l.Close())
			_, err = c.driver.Do(t.Context(), drivers.Command{"PING"})
			require.ErrorIs(t, err, drivers.ErrClosed)
			for _, s := range []*redistest.Server{one, two} {
				assert.Empty(t, s.Keys(t, "*"))
			}
		})
	}
}

func TestTrustedWrapperWorks(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	l := single.New(goredisdriver.New(measured{client}, goredisdriver.Trusted()))
	t.Cleanup(func() { _ = l.Close() })
	held, err := l.Lock(t.Context(), "k")
	require.NoError(t, err)
	_, err = l.TryLock(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, held.Unlock(t.Context()))
}

// A wrapper may hide a cluster. An answer after a redirection must not be taken for a refusal.
func TestTrustedWrapperIsDrivenLikeACluster(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	d := goredisdriver.New(measured{client}, goredisdriver.Trusted())
	assert.Implements(t, (*drivers.Cluster)(nil), d)
	assert.NotImplements(t, (*drivers.Subscriber)(nil), d)
}

// A client of a cluster pauses before it asks a dead master again, also beyond a deadline. So callers must not wait in
// it.
func TestClusterIsNotDirect(t *testing.T) {
	server := redistest.Start(t)
	one := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = one.Close() })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: server.Addr()}}}}, nil
		},
	})
	t.Cleanup(func() { _ = cluster.Close() })
	for client, want := range map[redis.UniversalClient]bool{one: true, cluster: false} {
		d := goredisdriver.New(client)
		_, err := d.Do(t.Context(), drivers.Command{"GET", "k"})
		require.NoError(t, err)
		assert.Equal(t, want, d.(drivers.Direct).Direct(), "%T", client)
	}
}

// A client of a cluster does not learn about the new master from a dead one.
func TestClusterIsAskedAgainAtMostOnceASecond(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		client := redis.NewClusterClient(&redis.ClusterOptions{
			ContextTimeoutEnabled: true, DialerRetries: 1, ClusterStateReloadInterval: time.Hour,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
			},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				asked.Add(1)
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}}},
					nil
			},
		})
		d := goredisdriver.New(client)
		const seconds = 10
		for start := time.Now(); time.Since(start) < seconds*time.Second; time.Sleep(time.Millisecond) {
			_, err := d.Do(t.Context(), drivers.Command{"GET", "k"})
			require.ErrorIs(t, err, drivers.ErrNotSent)
		}
		assert.InDelta(t, 1+seconds, asked.Load(), 1)
		require.NoError(t, client.Close())
		time.Sleep(2 * time.Second) // the client's goroutines may sleep for this long
	})
}

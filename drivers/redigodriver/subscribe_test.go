package redigodriver_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
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

// plain hides all methods of a connection except those of redis.Conn.
type plain struct{ redis.Conn }

func TestSubscribeWithTheCallersPool(t *testing.T) {
	server := redistest.Start(t)
	dial := func(options ...redis.DialOption) (redis.Conn, error) {
		return redis.Dial("tcp", server.Addr(), options...)
	}
	for name, pool := range map[string]*redis.Pool{
		"busy": {MaxActive: 1, Dial: func() (redis.Conn, error) { return dial() }},
		"short timeouts": {Dial: func() (redis.Conn, error) {
			return dial(redis.DialReadTimeout(50*time.Millisecond), redis.DialWriteTimeout(50*time.Millisecond))
		}},
		"with a context": {DialContext: func(ctx context.Context) (redis.Conn,
			error) {
			return redis.DialContext(ctx, "tcp", server.Addr())
		}},
		"wrapped": {Dial: func() (redis.Conn, error) {
			conn, err := dial()
			return plain{conn}, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { _ = pool.Close() }()
			conn := pool.Get()
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.Err())
			sub, heard := subscribe(t, redigodriver.New(pool))
			time.Sleep(150 * time.Millisecond)
			require.NoError(t, sub.Subscribe("a"))
			assert.Equal(t, "subscribed a", <-heard)
			server.Cmd(t, "PUBLISH", "a", "b")
			assert.Equal(t, "a: b", <-heard)
			assert.Equal(t, 1, pool.ActiveCount(), "the pool does not count subscriptions")
			require.NoError(t, sub.Close())
			assert.Equal(t, "lost", <-heard)
		})
	}
}

func TestSubscribeWithoutADial(t *testing.T) {
	_, err := redigodriver.New(&redis.Pool{}).(drivers.Subscriber).Subscribe(t.Context(), drivers.Listener{})
	require.ErrorContains(t, err, "Dial")
}

// A pool's Dial takes no context.
func TestSubscribeDoesNotWaitForTheDial(t *testing.T) {
	server := redistest.Start(t)
	release, closed, dialling := make(chan struct{}), make(chan struct{}), make(chan struct{})
	began, ended := sync.OnceFunc(func() { close(dialling) }), sync.OnceFunc(func() { close(closed) })
	d := redigodriver.New(&redis.Pool{Dial: func() (redis.Conn, error) {
		began()
		<-release
		conn, err := redis.Dial("tcp", server.Addr())
		return closing{conn, ended}, err
	}})
	for limit := 20 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := d.(drivers.Subscriber).Subscribe(ctx, drivers.Listener{})
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
	redis.Conn
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

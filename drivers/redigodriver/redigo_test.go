package redigodriver_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func harness(t *testing.T, open func(t testing.TB, addr, password string) drivers.Driver) conformance.DriverHarness {
	plain, locked := redistest.Start(t), redistest.Start(t, "--requirepass", "pw")
	return conformance.DriverHarness{
		Addr:    func(testing.TB) string { return plain.Addr() },
		Open:    func(t testing.TB, addr string) drivers.Driver { return open(t, addr, "") },
		Refused: func(t testing.TB) drivers.Driver { return open(t, locked.Addr(), "wrong") },
	}
}

// userDriver returns a driver of a pool without time-outs, with a Dial function that takes no context.
func userDriver(maxIdle int, test func(redis.Conn, time.Time) error) func(t testing.TB, addr,
	password string) drivers.Driver {
	return func(t testing.TB, addr, password string) drivers.Driver {
		pool := &redis.Pool{MaxIdle: maxIdle, TestOnBorrow: test, Dial: func() (redis.Conn, error) {
			return redis.Dial("tcp", addr, redis.DialPassword(password))
		}}
		t.Cleanup(func() { _ = pool.Close() })
		return redigodriver.New(pool)
	}
}

func TestNew(t *testing.T) {
	t.Run("Defaults", func(t *testing.T) { conformance.RunDriver(t, harness(t, userDriver(0, nil))) })
	t.Run("Idle", func(t *testing.T) { conformance.RunDriver(t, harness(t, userDriver(8, nil))) })
	t.Run("TestOnBorrow", func(t *testing.T) {
		conformance.RunDriver(t, harness(t, userDriver(8, func(c redis.Conn, _ time.Time) error {
			_, err := c.Do("PING")
			return err
		})))
	})
}

func TestOpen(t *testing.T) {
	conformance.RunDriver(t, harness(t, func(t testing.TB, addr, password string) drivers.Driver {
		d, err := drivers.Open(t.Context(), "redigo", drivers.Config{Network: "tcp", Addr: addr, Password: password})
		require.NoError(t, err)
		return d
	}))
}

func TestCloseSparesTheCallersPool(t *testing.T) {
	addr := redistest.Start(t).Addr()
	pool := &redis.Pool{MaxIdle: 1, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", addr) }}
	require.NoError(t, redigodriver.New(pool).Close())
	conn := pool.Get()
	_, err := conn.Do("PING")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, pool.Close())
	_, err = redigodriver.New(pool).Do(t.Context(), drivers.Command{"PING"})
	require.ErrorIs(t, err, drivers.ErrNotSent, "the caller has closed the pool")
}

func TestBusyPoolIsNotSent(t *testing.T) {
	addr := redistest.Start(t).Addr()
	pool := &redis.Pool{MaxIdle: 1, MaxActive: 1, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", addr) }}
	defer func() { _ = pool.Close() }()
	d := redigodriver.New(pool)
	conn := pool.Get()
	_, err := d.Do(t.Context(), drivers.Command{"PING"})
	require.ErrorIs(t, err, drivers.ErrNotSent)
	require.ErrorIs(t, err, redis.ErrPoolExhausted)
	require.NoError(t, conn.Close())
	_, err = d.Do(t.Context(), drivers.Command{"PING"})
	require.NoError(t, err)
}

// The buffers between a client and a frozen server fill up. A pool without a write time-out would wait without end.
func TestDeadlineBoundsWriting(t *testing.T) {
	server := redistest.Start(t)
	pool := &redis.Pool{MaxIdle: 1, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	defer func() { _ = pool.Close() }()
	d := redigodriver.New(pool)
	_, err := d.Do(t.Context(), drivers.Command{"PING"})
	require.NoError(t, err)
	value := strings.Repeat("x", 64<<20)
	server.Pause()
	for range 2 { // on the idle connection, and on a new one
		var start time.Time
		for range 20 { // a machine that stalls may let the time pass before anything is sent
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			start = time.Now()
			_, err = d.Do(ctx, drivers.Command{"SET", "key", value})
			cancel()
			require.Error(t, err)
			if !errors.Is(err, drivers.ErrNotSent) {
				break
			}
		}
		assert.NotErrorIs(t, err, drivers.ErrNotSent)
		assert.Less(t, time.Since(start), 20*time.Second)
	}
	server.Resume()
	assert.Zero(t, server.Cmd(t, "EXISTS", "key"), "half a command is none")
}

func TestCancellationInterrupts(t *testing.T) {
	server := redistest.Start(t)
	d, err := drivers.Open(t.Context(), "redigo",
		drivers.Config{Network: "tcp", Addr: server.Addr(), Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { _ = d.Close() }()
	_, err = d.Do(t.Context(), drivers.Command{"PING"})
	require.NoError(t, err)
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	_, err = d.Do(ctx, drivers.Command{"PING"})
	require.Error(t, err)
	assert.Less(t, time.Since(start), 20*time.Second)
}

func TestNoGoroutinePerCall(t *testing.T) {
	d, err := drivers.Open(t.Context(), "redigo", drivers.Config{Network: "tcp", Addr: redistest.Start(t).Addr()})
	require.NoError(t, err)
	defer func() { _ = d.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = d.Do(ctx, drivers.Command{"PING"})
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	for range 100 {
		_, err = d.Do(ctx, drivers.Command{"PING"})
		require.NoError(t, err)
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
	}
}

// bare hides all methods of a connection except those of redis.Conn, like a wrapper that measures calls.
type bare struct{ redis.Conn }

// Such a connection also serves a caller whose context has a deadline and no Done channel.
func TestConnectionsWithoutTimeouts(t *testing.T) {
	addr := redistest.Start(t).Addr()
	pool := &redis.Pool{MaxIdle: 8, Dial: func() (redis.Conn, error) {
		c, err := redis.Dial("tcp", addr)
		return bare{c}, err
	}}
	t.Cleanup(func() { _ = pool.Close() })
	d := redigodriver.New(pool)
	_, err := d.Do(t.Context(), drivers.Command{"PING"}) // so that one is idle
	require.NoError(t, err)
	for range 3 {
		replies, err := d.Do(byTimeAlone{t.Context(), time.Now().Add(10 * time.Second)},
			drivers.Command{"ECHO", "hello"})
		require.NoError(t, err)
		assert.Equal(t, []drivers.Reply{"hello"}, replies)
	}
	assert.False(t, d.(drivers.Direct).Direct())
}

// byTimeAlone is a context with a deadline and no Done channel.
type byTimeAlone struct {
	context.Context
	end time.Time
}

func (c byTimeAlone) Deadline() (time.Time, bool) { return c.end, true }
func (byTimeAlone) Done() <-chan struct{}         { return nil }
func (byTimeAlone) Err() error                    { return nil }

// A connection whose exchange was interrupted does not return to the pool.
func TestBrokenConnectionIsNotUsedAgain(t *testing.T) {
	server := redistest.Start(t)
	pool := &redis.Pool{MaxIdle: 1, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", server.Addr()) }}
	t.Cleanup(func() { _ = pool.Close() })
	d := redigodriver.New(pool)
	for range 50 {
		_, err := d.Do(t.Context(), drivers.Command{"PING"})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go cancel() // before, during or after the exchange
		_, _ = d.Do(ctx, drivers.Command{"ECHO", "of the one who left"})
		replies, err := d.Do(t.Context(), drivers.Command{"ECHO", "hello"})
		require.NoError(t, err)
		require.Equal(t, []drivers.Reply{"hello"}, replies)
	}
}

// A caller whose context can be cancelled does not wait for a pool that dials instead of using an idle connection.
func TestCallersLeaveWhileThePoolDials(t *testing.T) {
	addr := redistest.Start(t).Addr()
	for name, pool := range map[string]*redis.Pool{
		"IdleTimeout":     {MaxIdle: 8, IdleTimeout: time.Nanosecond},
		"MaxConnLifetime": {MaxIdle: 8, MaxConnLifetime: time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			var hangs atomic.Bool
			dialling, answer := make(chan struct{}, 100), make(chan struct{})
			pool.Dial = func() (redis.Conn, error) {
				if hangs.Load() {
					dialling <- struct{}{}
					<-answer
				}
				return redis.Dial("tcp", addr)
			}
			t.Cleanup(func() { _ = pool.Close() })
			client := single.New(redigodriver.New(pool))
			for range 2 { // so that one is idle, and of a known kind
				lease, err := client.Lock(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, lease.Unlock(t.Context()))
			}
			require.Positive(t, pool.IdleCount())
			hangs.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				_, err := client.Lock(ctx, "k")
				left <- err
			}()
			<-dialling
			cancel()
			select {
			case err := <-left:
				assert.ErrorIs(t, err, context.Canceled)
			case <-time.After(20 * time.Second):
				t.Error("a caller that was cancelled is still there")
			}
			close(answer)
			require.NoError(t, client.Close())
		})
	}
}

// One caller gets the idle connection. The others, for which the pool dials, can still leave when their context ends.
func TestOneIdleConnectionServesOneCaller(t *testing.T) {
	addr := redistest.Start(t).Addr()
	const callers = 4
	for range 300 {
		down := make(chan struct{})
		first := true
		var mu sync.Mutex
		pool := &redis.Pool{MaxIdle: 1, Dial: func() (redis.Conn, error) {
			mu.Lock()
			idle := first
			first = false
			mu.Unlock()
			if !idle {
				<-down
				return nil, errors.New("the server is down")
			}
			return redis.Dial("tcp", addr)
		}}
		d := redigodriver.New(pool)
		_, err := d.Do(t.Context(), drivers.Command{"PING"}) // so that one is idle
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		var together, left sync.WaitGroup
		together.Add(callers)
		for range callers {
			left.Go(func() {
				together.Done()
				together.Wait()
				_, _ = d.Do(ctx, drivers.Command{"PING"})
			})
		}
		gone := make(chan struct{})
		go func() {
			left.Wait()
			close(gone)
		}()
		select {
		case <-gone:
		case <-time.After(20 * time.Second):
			t.Error("a caller waits for the pool although its time is over")
		}
		cancel()
		close(down)
		<-gone
		require.NoError(t, pool.Close())
		if t.Failed() {
			return
		}
	}
}

// Code generated from drivers/rueidisdriver by go generate; DO NOT EDIT.

package valkeydriver_test

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/valkeydriver"
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
		Lost:       func(err error) { heard <- "lost: " + err.Error() },
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sub.Close()) })
	return sub, heard
}

func TestClustersDoNotSubscribe(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	server.AddSlots(t, 0, 16383)
	for _, single := range []bool{false, true} {
		client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()},
			ForceSingleClient: single, ShuffleInit: true})
		require.NoError(t, err)
		defer client.Close()
		_, subscribes := valkeydriver.New(client).(drivers.Subscriber)
		assert.Equal(t, single, subscribes)
	}
}

// With RESP2 the client opens a second connection for messages, and sends no command on the first one.
func TestSubscribeWithTheCallersOptions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "pw", "--user", "deaf", "on", ">pw", "~*", "+@all", "-subscribe")
	for name, options := range map[string]valkey.ClientOption{
		"defaults":       {},
		"RESP2":          {AlwaysRESP2: true, DisableCache: true},
		"short timeouts": {ConnWriteTimeout: 2 * time.Second},
		"lifetime":       {ConnLifetime: 2 * time.Second},
		"no pipelining":  {DisableAutoPipelining: true},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := fault.New(t, server.Addr())
			options.InitAddress, options.Password, options.ForceSingleClient = []string{proxy.Addr()}, "pw", true
			client, err := valkey.NewClient(options)
			require.NoError(t, err)
			defer client.Close()
			d := valkeydriver.New(client)
			sub, heard := subscribe(t, d)
			select {
			case event := <-heard:
				t.Fatal(event)
			case <-time.After((options.ConnWriteTimeout + options.ConnLifetime) * 3 / 2): // the subscription outlives these
			}
			require.NoError(t, sub.Subscribe("a", "b"))
			assert.Equal(t, "subscribed a", <-heard)
			assert.Equal(t, "subscribed b", <-heard)
			server.Cmd(t, "PUBLISH", "a", "b")
			assert.Equal(t, "a: b", <-heard)
			require.NoError(t, sub.Unsubscribe("a", "b"))
			require.NoError(t, sub.Subscribe("c"))
			assert.Equal(t, "subscribed c", <-heard)
			proxy.Cut()
			assert.Contains(t, <-heard, "lost: ")
			require.Error(t, sub.Subscribe("d"))
			assert.Equal(t, 1, proxy.Count(func(r fault.Request) bool { return r.Is("SUBSCRIBE") && r.Args[1] == "c" }),
				"nobody subscribes again")

			options.Username = "deaf"
			deaf, err := valkey.NewClient(options)
			require.NoError(t, err)
			defer deaf.Close()
			sub, heard = subscribe(t, valkeydriver.New(deaf))
			require.NoError(t, sub.Subscribe("a"))
			assert.Contains(t, <-heard, "lost: NOPERM ")
		})
	}
}

// Subscriptions come from the client's pool of connections for blocking commands, which may be exhausted.
func TestSubscribeDoesNotWaitForThePool(t *testing.T) {
	t.Parallel()
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redistest.Start(t).Addr()},
		ForceSingleClient: true, BlockingPoolSize: 1})
	require.NoError(t, err)
	defer client.Close()
	d := valkeydriver.New(client)
	sub, heard := subscribe(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = d.(drivers.Subscriber).Subscribe(ctx, drivers.Listener{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, sub.Close())
	assert.Contains(t, <-heard, "lost: ")
	sub, heard = subscribe(t, d) // succeeds when the connection that came too late was returned
	require.NoError(t, sub.Subscribe("a"))
	assert.Equal(t, "subscribed a", <-heard)
}

// A caller that left while the pool was exhausted leaves no goroutine behind that waits.
func TestOneSubscribeAtATimeWaitsForThePool(t *testing.T) {
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{redistest.Start(t).Addr()},
		ForceSingleClient: true, BlockingPoolSize: 1})
	require.NoError(t, err)
	defer client.Close()
	d := valkeydriver.New(client)
	sub, _ := subscribe(t, d)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err = d.(drivers.Subscriber).Subscribe(ctx, drivers.Listener{})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	assert.LessOrEqual(t, bytes.Count(stacks, []byte("valkey-io/valkey-go.(*pool).Acquire(")), 1)
	require.NoError(t, sub.Close())
	subscribe(t, d)
}

package all_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

// heard has the events of a subscription, as text.
type heard chan string

func (h heard) listener() drivers.Listener {
	return drivers.Listener{
		Subscribed: func(channel string) { h <- "subscribed " + channel },
		Message:    func(channel, payload string) { h <- channel + ": " + payload },
		Lost:       func(err error) { h <- fmt.Sprintf("lost: %v", err) },
	}
}

func (h heard) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case seen := <-h:
		assert.Equal(t, want, seen)
	case <-time.After(10 * time.Second):
		t.Fatalf("nothing heard, want %q", want)
	}
}

// expectPrefix is expect for a text whose end depends on the server.
func (h heard) expectPrefix(t *testing.T, want string) {
	t.Helper()
	select {
	case seen := <-h:
		assert.Truef(t, strings.HasPrefix(seen, want), "heard %q, want %q…", seen, want)
	case <-time.After(10 * time.Second):
		t.Fatalf("nothing heard, want %q…", want)
	}
}

func subscribe(t *testing.T, d drivers.Driver) (drivers.Subscription, heard) {
	t.Helper()
	h := make(heard, 100)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sub, err := d.(drivers.Subscriber).Subscribe(ctx, h.listener())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sub.Close()) })
	return sub, h
}

// soon fails if f takes as long as the shortest time-out of a client. Time during which this process could not run does
// not count.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	const step = 5 * time.Millisecond
	over, took := make(chan struct{}), make(chan time.Duration)
	go func() {
		tick := time.NewTicker(step)
		defer tick.Stop()
		sum := time.Duration(0)
		for last := time.Now(); ; {
			select {
			case <-tick.C:
			case <-over:
				took <- sum
				return
			}
			sum += min(time.Since(last), 2*step)
			last = time.Now()
		}
	}()
	f()
	close(over)
	assert.Less(t, <-took, 900*time.Millisecond, what)
}

func TestSubscribeAnyConnection(t *testing.T) {
	plain := redistest.Start(t, "--requirepass", "pw")
	secure, config := redistest.StartTLS(t, "--requirepass", "pw")
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		for name, cfg := range map[string]drivers.Config{
			"tcp":  {Network: "tcp", Addr: plain.Addr(), Password: "pw", DB: 3},
			"unix": {Network: "unix", Addr: plain.Socket(), Password: "pw"},
			"tls":  {Network: "tcp", Addr: secure.Addr(), Password: "pw", TLS: config},
		} {
			d := open(cfg)
			sub, h := subscribe(t, d)
			channel := t.Name() + name // of its own, because a server may notice late that a subscriber has left
			require.NoError(t, sub.Subscribe(channel))
			h.expect(t, "subscribed "+channel)
			assert.Equal(t, int64(1), do(t, d, drivers.Command{"PUBLISH", channel, name})[0])
			h.expect(t, channel+": "+name)
			require.NoError(t, sub.Close())
			h.expect(t, "lost: driver is closed")
		}
	})
}

func TestSubscribeRefused(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "pw")
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		server.User(t, "locker", "on", ">secret", "~*", "+@all")
		for want, cfg := range map[string]drivers.Config{
			"NOAUTH":    {},
			"WRONGPASS": {Username: "locker", Password: "no"},
			"ERR":       {Password: "pw", DB: 99},
		} {
			cfg.Network, cfg.Addr = "tcp", server.Addr()
			_, err := open(cfg).(drivers.Subscriber).Subscribe(t.Context(), make(heard).listener())
			if assert.IsType(t, drivers.ServerError(""), err) {
				assert.Equal(t, want, err.(drivers.ServerError).Code())
			}
		}
		refusals := [][]any{{"-subscribe"}}
		if server.ChannelRights(t) {
			refusals = append(refusals, []any{"resetchannels", "&may:*"})
		}
		for _, refusal := range refusals {
			server.User(t, "locker", "on", ">secret", "~*", "+@all")
			d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Username: "locker", Password: "secret"})
			sub, h := subscribe(t, d)
			require.NoError(t, sub.Subscribe("may:this"))
			h.expect(t, "subscribed may:this")
			server.Cmd(t, append([]any{"ACL", "SETUSER", "locker"}, refusal...)...)
			require.NoError(t, sub.Subscribe("that"), "the refusal comes later")
			h.expectPrefix(t, "lost: NOPERM ")
			require.ErrorContains(t, sub.Subscribe("may:this"), "NOPERM")
		}
	})
}

// A subscription stays open if no messages arrive for longer than the client waits for an answer.
func TestSubscriptionMayBeSilent(t *testing.T) {
	server := redistest.Start(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Timeout: time.Second})
		sub, h := subscribe(t, d)
		for _, channel := range []string{"a", "b"} {
			time.Sleep(1500 * time.Millisecond)
			require.NoError(t, sub.Subscribe(channel))
			h.expect(t, "subscribed "+channel)
		}
	})
}

func TestSubscribeToAFrozenServer(t *testing.T) {
	plain := redistest.Start(t, "--requirepass", "pw")
	secure, config := redistest.StartTLS(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		for _, cfg := range []drivers.Config{
			{Network: "tcp", Addr: plain.Addr(), Password: "pw", Timeout: time.Minute},
			{Network: "tcp", Addr: secure.Addr(), TLS: config, Timeout: time.Minute},
		} {
			d := open(cfg)
			_, h := subscribe(t, d)
			plain.Pause()
			secure.Pause()
			timeout, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			cancelled, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			for _, ctx := range []context.Context{timeout, cancelled} {
				soon(t, "Subscribe", func() {
					_, err := d.(drivers.Subscriber).Subscribe(ctx, make(heard).listener())
					require.Error(t, err)
				})
			}
			soon(t, "Close", func() { _ = d.Close() })
			h.expect(t, "lost: driver is closed")
			plain.Resume()
			secure.Resume()
		}
	})
}

func TestCloseBesideAFrozenServer(t *testing.T) {
	server := redistest.Start(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Timeout: time.Minute})
		sub, h := subscribe(t, d)
		require.NoError(t, sub.Subscribe("a"))
		h.expect(t, "subscribed a")
		server.Pause()
		defer server.Resume()
		soon(t, "Subscribe and Unsubscribe", func() {
			require.NoError(t, sub.Subscribe("b"))
			require.NoError(t, sub.Unsubscribe("a"))
		})
		soon(t, "Close", func() { require.NoError(t, sub.Close()) })
		h.expect(t, "lost: driver is closed")
	})
}

// writes reports whether a goroutine is blocked while it writes to a connection.
func writes() bool {
	stacks := make([]byte, 4<<20)
	for _, g := range bytes.Split(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
		head, calls, _ := bytes.Cut(g, []byte("\n"))
		if bytes.Contains(head, []byte("IO wait")) && bytes.Contains(calls, []byte("poll.(*FD).Write")) {
			return true
		}
	}
	return false
}

// The kernel's buffers between a frozen server and a client fill up.
func TestCloseInterruptsBlockedWrites(t *testing.T) {
	server := redistest.Start(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Timeout: time.Minute})
		sub, h := subscribe(t, d)
		server.Pause()
		defer server.Resume()
		long := string(make([]byte, 16<<20))
		done := make(chan error, 1)
		go func() { done <- sub.Subscribe(long) }()
		require.Eventually(t, writes, 10*time.Second, 10*time.Millisecond)
		soon(t, "Close", func() { require.NoError(t, sub.Close()) })
		<-done
		h.expect(t, "lost: driver is closed")
	})
}

func TestSubscribeWhileDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		_, err := open(drivers.Config{Network: "tcp",
			Addr: l.Addr().String()}).(drivers.Subscriber).Subscribe(t.Context(), make(heard).listener())
		require.ErrorContains(t, err, "refused")
	})
}

package all_test

import (
	"context"
	"crypto/tls"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

// ignored is a Listener that does nothing.
var ignored = drivers.Listener{
	Subscribed: func(string) {}, Message: func(_, _ string) {}, Lost: func(error) {},
}

// TestCredentialsFunction changes the password of a user. Every connection that is made after that, for commands and
// for messages, must ask for it again.
func TestCredentialsFunction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		server := redistest.Start(t)
		server.User(t, "locker", "on", ">first", "+@all", "~*")
		var password atomic.Value
		password.Store("first")
		d := open(drivers.Config{
			Network: "tcp", Addr: server.Addr(), Username: "ignored", Password: "ignored",
			Credentials: func(ctx context.Context) (string, string, error) {
				_, limited := ctx.Deadline()
				assert.True(t, limited, "the call has a time limit")
				return "locker", password.Load().(string), nil
			},
		})
		subscribe := func() {
			s, err := d.(drivers.Subscriber).Subscribe(t.Context(), ignored)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
		whoami := drivers.Command{"ACL", "WHOAMI"}
		assert.Equal(t, "locker", do(t, d, whoami)[0])
		subscribe()

		server.Cmd(t, "ACL", "SETUSER", "locker", ">second", "<first")
		password.Store("second")
		subscribe()
		server.Cmd(t, "CLIENT", "KILL", "TYPE", "normal")
		_, _ = d.Do(t.Context(), whoami) // may be sent on a connection that the server has closed
		assert.Equal(t, "locker", do(t, d, whoami)[0])
	})
}

// TestCredentialsFunctionWithoutPassword connects without authentication, as an empty Password does.
func TestCredentialsFunctionWithoutPassword(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{
			Network: "tcp", Addr: server.Addr(),
			Credentials: func(context.Context) (string, string, error) { return "nobody", "", nil },
		})
		assert.Equal(t, "default", do(t, d, drivers.Command{"ACL", "WHOAMI"})[0])
	})
}

// TestCredentialsFunctionFails checks that nothing is sent without credentials, and that the driver recovers.
func TestCredentialsFunctionFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		expired := errors.New("the token service is down")
		var up atomic.Bool
		d := open(drivers.Config{
			Network: "tcp", Addr: server.Addr(),
			Credentials: func(context.Context) (string, string, error) {
				if up.Load() {
					return "", "", nil
				}
				return "u", "p", expired
			},
		})
		for _, cmds := range [][]drivers.Command{{{"PING"}}, {{"PING"}, {"PING"}}} {
			_, err := d.Do(t.Context(), cmds...)
			require.ErrorIs(t, err, expired)
			require.ErrorIs(t, err, drivers.ErrNotSent)
		}
		_, err := d.(drivers.Subscriber).Subscribe(t.Context(), ignored)
		require.ErrorIs(t, err, expired)
		up.Store(true)
		assert.Equal(t, "PONG", do(t, d, drivers.Command{"PING"})[0])
	})
}

// TestTLSOfEveryConnection makes a server ask for client certificates of another authority. Connections that are made
// after that must use the new configuration.
func TestTLSOfEveryConnection(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		server, _ := redistest.StartTLS(t, "--tls-auth-clients", "yes")
		var current atomic.Pointer[tls.Config]
		current.Store(server.Authority().TLS(t))
		d := open(drivers.Config{
			Network: "tcp", Addr: server.Addr(), TLS: &tls.Config{MinVersion: tls.VersionTLS12}, GetTLS: current.Load,
		})
		assert.Equal(t, "PONG", do(t, d, drivers.Command{"PING"})[0])

		next := redistest.NewAuthority(t)
		server.Certify(t, next, next)
		current.Store(server.Authority().TLS(t))
		server.Cmd(t, "CLIENT", "KILL", "TYPE", "normal")
		_, _ = d.Do(t.Context(), drivers.Command{"PING"}) // may be sent on a connection that the server has closed
		assert.Equal(t, "PONG", do(t, d, drivers.Command{"PING"})[0])
		s, err := d.(drivers.Subscriber).Subscribe(t.Context(), ignored)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
}

// TestNoTLSWithoutTLS checks that the copy of a Config without TLS, with which the doctor looks for plain text, is not
// encrypted.
func TestNoTLSWithoutTLS(t *testing.T) {
	t.Parallel()
	server, encrypted := redistest.StartTLS(t)
	c := drivers.Config{Network: "tcp", Addr: server.Addr(), TLS: encrypted, GetTLS: encrypted.Clone}
	for _, encrypts := range []bool{true, false} {
		conn, err := c.Dial(t.Context())
		require.NoError(t, err)
		assert.Equal(t, encrypts, reflect.TypeOf(conn) == reflect.TypeFor[*tls.Conn]())
		require.NoError(t, conn.Close())
		c.TLS = nil
	}
}

// TestConnectionsWithoutAUserAreLeft gives the password to a driver that has connected without one.
func TestConnectionsWithoutAUserAreLeft(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "pw")
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		var password atomic.Value
		password.Store("")
		d := open(drivers.Config{
			Network: "tcp", Addr: server.Addr(),
			Credentials: func(context.Context) (string, string, error) { return "", password.Load().(string), nil },
		})
		get := drivers.Command{"GET", "k"}
		assert.Equal(t, "NOAUTH", do(t, d, get)[0].(drivers.ServerError).Code())
		password.Store("pw")
		assert.Eventually(t, func() bool {
			replies, err := d.Do(t.Context(), get)
			return err == nil && replies[0] == nil
		}, 10*time.Second, 10*time.Millisecond)
	})
}

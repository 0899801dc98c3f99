package fault_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

type bench struct {
	*testing.T
	server *redistest.Server
	proxy  *fault.Proxy
}

func setUp(t *testing.T, args ...string) *bench {
	t.Parallel()
	server := redistest.Start(t, args...)
	return &bench{T: t, server: server, proxy: fault.New(t, server.Addr())}
}

// dial connects to the server through the proxy.
func (b *bench) dial(options ...redis.DialOption) redis.Conn {
	b.Helper()
	conn, err := redis.Dial("tcp", b.proxy.Addr(), options...)
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (b *bench) send(conn redis.Conn, args ...any) {
	b.Helper()
	require.NoError(b, conn.Send(args[0].(string), args[1:]...))
	require.NoError(b, conn.Flush())
}

// receive checks that the next reply is want.
func (b *bench) receive(conn redis.Conn, want any) {
	b.Helper()
	got, err := redis.ReceiveWithTimeout(conn, hangLimit)
	require.NoError(b, err)
	require.Equal(b, want, got)
}

// silent checks that the connection is open and receives nothing. It must be the last call for a connection, because
// redigo gives up a connection whose read timed out.
func (b *bench) silent(conn redis.Conn) {
	b.Helper()
	got, err := redis.ReceiveWithTimeout(conn, silence)
	var timeout net.Error
	require.ErrorAs(b, err, &timeout, "got %v", got)
	require.True(b, timeout.Timeout(), "%v", err)
}

// broken checks that the other side has closed the connection.
func (b *bench) broken(conn redis.Conn) {
	b.Helper()
	got, err := redis.ReceiveWithTimeout(conn, hangLimit)
	require.Error(b, err, "got %v", got)
	if refusal := redis.Error(""); errors.As(err, &refusal) {
		require.Fail(b, "still open", "%v", err)
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) {
		require.False(b, timeout.Timeout(), "still open")
	}
}

// counter checks the value of the key that the tests increment. It does not go through the proxy.
func (b *bench) counter(want any) {
	b.Helper()
	require.Equal(b, want, b.server.Cmd(b, "GET", "k"))
}

// raw connects without a client library, so that the test sees every frame.
func (b *bench) raw() (net.Conn, *bufio.Reader) {
	b.Helper()
	conn, err := net.Dial("tcp", b.proxy.Addr())
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	require.NoError(b, conn.SetDeadline(time.Now().Add(hangLimit)))
	return conn, bufio.NewReader(conn)
}

func (b *bench) write(conn net.Conn, args ...string) {
	b.Helper()
	frame := fmt.Sprintf("*%d\r\n", len(args))
	for _, arg := range args {
		frame += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
	}
	_, err := conn.Write([]byte(frame))
	require.NoError(b, err)
}

// until reads lines up to and including the line want.
func (b *bench) until(r *bufio.Reader, want string) {
	b.Helper()
	for {
		line, err := r.ReadString('\n')
		require.NoError(b, err, "waiting for %q", want)
		if line == want+"\r\n" {
			return
		}
	}
}

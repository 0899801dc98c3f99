package fault_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

// Exchanges tells which reply the client got, if any. A request may have been executed without a reply to the client.
func TestExchanges(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(2, fault.DropReply, "INCR"))
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(1))
	b.send(conn, "INCR", "k")
	b.proxy.WaitExecuted(t, func(r fault.Request) bool { return r.N == 2 })
	b.silent(conn)
	all := b.proxy.Exchanges()
	require.Len(t, all, 2)
	assert.Equal(t, ":1", all[0].Reply)
	assert.False(t, all[0].Answered.Before(all[0].Seen))
	assert.Empty(t, all[1].Reply)
	assert.Zero(t, all[1].Answered)
}

func TestHandleSwapsAtRunTime(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(func(fault.Request) fault.Action {
		b.proxy.Handle(nil)
		return fault.Duplicate
	})
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(1))
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(3))
}

func TestRefuseAndCut(t *testing.T) {
	b := setUp(t)
	old := b.dial()
	b.send(old, "PING")
	b.receive(old, "PONG")
	b.proxy.Refuse(true)
	refused := b.dial() // the kernel accepts the connection before the proxy can refuse it
	_ = refused.Send("PING")
	_ = refused.Flush()
	b.broken(refused)
	b.send(old, "PING")
	b.receive(old, "PONG")
	b.proxy.Cut()
	b.broken(old)
	b.proxy.Refuse(false)
	conn := b.dial()
	b.send(conn, "PING")
	b.receive(conn, "PONG")
	assert.Equal(t, 3, b.proxy.Count(nil))
}

func TestRedirect(t *testing.T) {
	b := setUp(t)
	old := b.dial()
	b.send(old, "INCR", "k")
	b.receive(old, int64(1))
	other := redistest.Start(t)
	b.proxy.Redirect(other.Addr())
	b.send(old, "INCR", "k")
	b.receive(old, int64(2))
	conn := b.dial()
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(1))
	b.counter("2")
	assert.Equal(t, "1", other.Cmd(t, "GET", "k"))
}

func TestServerGone(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.send(conn, "PING")
	b.receive(conn, "PONG")
	b.server.Kill()
	b.broken(conn)
	b.broken(b.dial())
}

// When a client has left and all its requests are answered, the connection to the server is closed, too.
func TestClientGone(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.send(conn, "PING")
	b.receive(conn, "PONG")
	known := func() bool { return strings.Contains(b.server.Cmd(t, "CLIENT", "LIST").(string), "cmd=ping") }
	require.True(t, known())
	require.NoError(t, conn.Close())
	for deadline := time.Now().Add(hangLimit); known(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "still connected")
	}
}

// The test ends while requests are held, delayed and dropped, and while clients are still connected. Nothing may hang
// or leak.
func TestCloseEndsEverything(t *testing.T) {
	b := setUp(t)
	actions := []fault.Action{
		fault.Hold, fault.HoldReply, fault.Drop, fault.DropReply, fault.Pass, fault.Delay(time.Hour),
	}
	b.proxy.Handle(func(r fault.Request) fault.Action { return actions[r.N-1] })
	for range actions {
		b.send(b.dial(), "INCR", "k")
	}
	b.proxy.Wait(t, func(r fault.Request) bool { return r.N == len(actions) })
}

func TestWaitFailsWithAList(t *testing.T) {
	b := setUp(t)
	b.proxy.SetHangLimit(silence)
	conn := b.dial()
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(1))
	tb := &recorder{TB: t}
	b.proxy.Wait(tb, fault.Named("EVAL"))
	assert.Contains(t, tb.message, "no matching request seen within")
	assert.Contains(t, tb.message, `#1 conn 1: "INCR" "k" (executed)`)
}

type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Errorf(format string, args ...any) { r.message = fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...) }

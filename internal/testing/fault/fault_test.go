package fault_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 10 * time.Second       // for events that must happen
	silence  = 150 * time.Millisecond // for events that must not happen
)

var incr = fault.Named("incr")

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
	got, err := redis.ReceiveWithTimeout(conn, patience)
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
	got, err := redis.ReceiveWithTimeout(conn, patience)
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

func TestPass(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	for i := range int64(3) {
		b.send(conn, "INCR", "k")
		b.receive(conn, i+1)
	}
	b.send(conn, "set", "text", "a\r\nb")
	b.receive(conn, "OK")
	requests := b.proxy.Requests()
	require.Len(t, requests, 4)
	assert.Equal(t, fault.Request{Conn: 1, N: 4, Args: []string{"set", "text", "a\r\nb"}}, requests[3])
	assert.Equal(t, "SET", requests[3].Name())
	assert.True(t, requests[3].Is("GET", "Set"))
	assert.Equal(t, 3, b.proxy.Count(incr))
	assert.Equal(t, 4, b.proxy.Count(nil))
	assert.Equal(t, 4, b.proxy.WaitExecuted(t, fault.Named("SET")).N)
}

func TestDrop(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(2, fault.Drop, "INCR"))
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(1))
	b.send(conn, "INCR", "k")
	b.send(conn, "PING") // this is lost as well, because its reply would be taken for the reply to INCR
	b.proxy.Wait(t, fault.Named("PING"))
	b.silent(conn)
	b.counter("1")

	other := b.dial()
	b.send(other, "INCR", "k")
	b.receive(other, int64(2))
}

func TestHold(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(func(r fault.Request) fault.Action {
		if r.Is("INCR") {
			return fault.Hold
		}
		return fault.Pass
	})
	for i, want := range []any{nil, "10"} { // the second time shows that Release does not let later requests pass
		b.send(conn, "INCR", "k")
		b.send(conn, "APPEND", "k", "0") // waits behind the INCR
		b.proxy.Wait(t, func(r fault.Request) bool { return r.N == 2*i+1 })
		time.Sleep(silence)
		b.counter(want)
		b.proxy.Release()
		b.receive(conn, []any{int64(1), int64(11)}[i])
		b.receive(conn, []any{int64(2), int64(3)}[i])
	}
	b.counter("110")
}

func TestHoldOutlivesClient(t *testing.T) {
	for name, leave := range map[string]func(*bench, redis.Conn){
		"Close": func(_ *bench, conn redis.Conn) { _ = conn.Close() },
		"Cut":   func(b *bench, conn redis.Conn) { b.proxy.Cut(); b.broken(conn) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setUp(t)
			conn := b.dial()
			b.proxy.Handle(fault.Nth(1, fault.Hold, "INCR"))
			b.send(conn, "INCR", "k")
			b.proxy.Wait(t, incr)
			leave(b, conn)
			time.Sleep(silence)
			b.counter(nil)
			b.proxy.Release()
			b.proxy.WaitExecuted(t, incr)
			b.counter("1")
		})
	}
}

func TestHoldReply(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(1, fault.HoldReply, "INCR"))
	b.send(conn, "INCR", "k")
	b.proxy.WaitExecuted(t, incr)
	b.counter("1")
	b.send(conn, "PING")
	arrived := make(chan any, 1)
	go func() {
		reply, _ := redis.ReceiveWithTimeout(conn, patience)
		arrived <- reply
	}()
	select {
	case reply := <-arrived:
		t.Fatalf("got %v before Release", reply)
	case <-time.After(silence):
	}
	b.proxy.Release()
	assert.Equal(t, int64(1), <-arrived)
	b.receive(conn, "PONG")
}

// Release must also let a request go that the handler is still deciding about, even if the handler has been replaced.
func TestReleaseWhileDeciding(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	deciding, decide := make(chan bool), make(chan bool)
	b.proxy.Handle(func(fault.Request) fault.Action {
		deciding <- true
		<-decide
		return fault.Hold
	})
	b.send(conn, "INCR", "k")
	<-deciding
	b.proxy.Handle(nil)
	b.proxy.Release()
	close(decide)
	b.receive(conn, int64(1))
}

// Release also lets a reply go that has not arrived yet, if its request has.
func TestReleaseBeforeReplyToHold(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(1, fault.HoldReply, "INCR"))
	b.server.Pause()
	b.send(conn, "INCR", "k")
	b.proxy.Wait(t, incr)
	b.proxy.Release()
	b.server.Resume()
	b.receive(conn, int64(1))
}

func TestDropReply(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(1, fault.DropReply, "INCR"))
	b.send(conn, "INCR", "k")
	b.send(conn, "INCR", "k") // this is executed, but its reply would be taken for the first one
	b.proxy.WaitExecuted(t, func(r fault.Request) bool { return r.N == 2 })
	b.silent(conn)
	b.counter("2")
}

func TestCutBefore(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(1, fault.CutBefore, "INCR"))
	b.send(conn, "INCR", "k")
	b.broken(conn)
	time.Sleep(silence)
	b.counter(nil)

	again := b.dial()
	b.send(again, "INCR", "k")
	b.receive(again, int64(1))
	assert.Equal(t, 2, b.proxy.Requests()[1].Conn)
}

func TestCutAfter(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(1, fault.CutAfter, "INCR"))
	require.NoError(t, conn.Send("PING"))
	require.NoError(t, conn.Send("INCR", "k"))
	b.send(conn, "INCR", "k") // behind the request at which the connection is cut
	b.receive(conn, "PONG")
	b.broken(conn)
	b.counter("1") // the connection is cut after the execution, so the value is there at once
	time.Sleep(silence)
	b.counter("1")
	b.proxy.WaitExecuted(t, incr)
}

func TestDuplicate(t *testing.T) {
	b := setUp(t, "--requirepass", "secret")
	conn := b.dial(redis.DialPassword("secret"), redis.DialDatabase(3))
	b.proxy.Handle(fault.Nth(1, fault.Duplicate, "INCR"))
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(1))
	b.send(conn, "GET", "k")
	b.receive(conn, []byte("2"))
	assert.Equal(t, 1, b.proxy.Count(incr))
}

func TestDelay(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(func(fault.Request) fault.Action { return fault.Delay(silence) })
	start := time.Now()
	b.send(conn, "INCR", "k")
	b.proxy.Wait(t, incr)
	value := b.server.Cmd(t, "GET", "k")
	if time.Since(start) < silence { // on a slow machine the delay may have ended
		assert.Nil(t, value)
	}
	b.receive(conn, int64(1))
	assert.GreaterOrEqual(t, time.Since(start), silence)
}

// The reply is late, but the execution is not.
func TestDelayReply(t *testing.T) {
	b := setUp(t)
	conn := b.dial()
	b.proxy.Handle(fault.Nth(1, fault.DelayReply(silence), "INCR"))
	start := time.Now()
	b.send(conn, "INCR", "k")
	b.proxy.WaitExecuted(t, incr)
	b.counter("1")
	b.receive(conn, int64(1))
	assert.GreaterOrEqual(t, time.Since(start), silence)
	b.send(conn, "INCR", "k")
	b.receive(conn, int64(2))
}

func TestCutMid(t *testing.T) {
	b := setUp(t)
	conn, r := b.raw()
	b.proxy.Handle(fault.Nth(1, fault.CutMid, "ECHO"))
	b.write(conn, "ECHO", "0123456789")
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, "$10\r\n012", string(got))
}

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

// Trickle delays both the request and the reply.
func TestTrickle(t *testing.T) {
	b := setUp(t)
	conn, r := b.raw()
	const most, rest = 7, 2 * time.Millisecond
	b.proxy.Handle(fault.Nth(1, fault.Trickle(most, rest), "ECHO"))
	text := strings.Repeat("0123456789", 20)
	start := time.Now()
	b.write(conn, "ECHO", text)
	b.proxy.WaitExecuted(t, fault.Named("ECHO"))
	assert.GreaterOrEqual(t, time.Since(start), rest*time.Duration(len(text)/most))
	b.until(r, text)
	assert.GreaterOrEqual(t, time.Since(start), 2*rest*time.Duration(len(text)/most))
	b.write(conn, "ECHO", "again")
	b.until(r, "again")
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
	for deadline := time.Now().Add(patience); known(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "still connected")
	}
}

// A push must not be taken for the reply to a request.
func TestPushIsNoReply(t *testing.T) {
	b := setUp(t)
	conn, r := b.raw()
	b.proxy.Handle(fault.Nth(1, fault.HoldReply, "BLPOP"))
	for _, line := range []string{"HELLO 3", "CLIENT TRACKING ON", "GET x", "BLPOP queue 0"} {
		b.write(conn, strings.Fields(line)...)
	}
	b.proxy.Wait(t, fault.Named("BLPOP"))
	b.proxy.WaitExecuted(t, fault.Named("GET"))
	b.server.Cmd(t, "SET", "x", "1")
	b.until(r, "invalidate")
	b.server.Cmd(t, "RPUSH", "queue", "element")
	b.proxy.WaitExecuted(t, fault.Named("BLPOP"))
	b.proxy.Release()
	b.until(r, "element")
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
	b.proxy.SetPatience(silence)
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

// raw connects without a client library, so that the test sees every frame.
func (b *bench) raw() (net.Conn, *bufio.Reader) {
	b.Helper()
	conn, err := net.Dial("tcp", b.proxy.Addr())
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	require.NoError(b, conn.SetDeadline(time.Now().Add(patience)))
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

func TestPubSub(t *testing.T) {
	for _, protocol := range []string{"2", "3"} {
		t.Run("RESP"+protocol, func(t *testing.T) {
			b := setUp(t)
			conn, r := b.raw()
			ping := "+PONG"
			if protocol == "2" {
				ping = "pong"
			} else {
				b.write(conn, "HELLO", "3")
			}
			b.write(conn, "SUBSCRIBE", "a", "b")
			b.until(r, "b")
			// Messages arrive while the PING waits for its reply. They must not be taken for that reply.
			b.proxy.Handle(fault.Nth(1, fault.Hold, "PING"))
			b.write(conn, "PING")
			b.proxy.Wait(t, fault.Named("PING"))
			b.server.Cmd(t, "PUBLISH", "a", "hello")
			b.until(r, "hello")
			b.proxy.Release()
			b.until(r, ping)
			b.proxy.WaitExecuted(t, fault.Named("PING"))

			b.proxy.Handle(fault.Nth(1, fault.CutAfter, "PING"))
			b.server.Pause()
			b.write(conn, "UNSUBSCRIBE", "a", "b")
			b.write(conn, "PING")
			b.proxy.Wait(t, func(r fault.Request) bool {
				return r.Is("PING") &&
					b.proxy.Count(fault.Named("PING")) == 2
			})
			b.server.Resume()
			b.until(r, "b")
			line, _ := r.ReadString('\n')
			if line == ":0\r\n" { // this line belongs to the reply to UNSUBSCRIBE
				line, _ = r.ReadString('\n')
			}
			assert.Empty(t, line, "the connection is cut instead of the PONG")
		})
	}
}

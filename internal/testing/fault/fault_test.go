package fault_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hangLimit = 10 * time.Second       // for events that must happen
	silence   = 150 * time.Millisecond // for events that must not happen
)

var incr = fault.Named("incr")

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
		reply, _ := redis.ReceiveWithTimeout(conn, hangLimit)
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

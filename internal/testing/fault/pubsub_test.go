package fault_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/internal/testing/fault"
)

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

package redistest

import (
	"net"
	"testing"
)

// Refuse returns the address of a server that answers each connection with text, unasked, and closes it. A Redis does so that is
// in protected mode, or has too many clients.
func Refuse(tb testing.TB, text string) (addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}()
	tb.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// Protected is what a Redis answers that is in protected mode, the end left out.
const Protected = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for " +
	"the default user. In this mode connections are only accepted from the loopback interface.\r\n"

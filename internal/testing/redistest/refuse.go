package redistest

import (
	"net"
	"testing"
)

// Refuse returns the address of a server that sends text on each connection and closes it. A Redis in protected mode,
// or with too many clients, does the same.
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

// Protected is the beginning of the answer of a Redis in protected mode.
const Protected = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is " +
	"set for " +
	"the default user. In this mode connections are only accepted from the loopback interface.\r\n"

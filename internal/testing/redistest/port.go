package redistest

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// port is one that no other Server of this machine's tests takes, in whatever process, until it is freed: clients of a
// server that was killed must not find another test's server at its address.
type port struct {
	port int
	file *os.File // locked
}

// reserve returns a port that nobody listens on at this moment. It stays below the range from which the kernel takes
// the local ports of outgoing connections: in that range any client on this machine could occupy the port of a server
// that is down for a moment between Kill and Restart. So does the port of the bus that a cluster's member has: it is
// busOffset above, for servers before Redis 7 let nobody choose it, and nobody else's either.
func reserve(tb testing.TB) port {
	tb.Helper()
	dir := filepath.Join(os.TempDir(), "redistest-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	for {
		p := port{port: 10000 + rand.IntN(busOffset)}
		var err error
		p.file, err = os.OpenFile(filepath.Join(dir, strconv.Itoa(p.port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		if syscall.Flock(int(p.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = p.file.Close()
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))); err == nil {
			_ = l.Close()
			return p
		}
		p.free()
	}
}

// free gives the port back.
func (p port) free() {
	if p.file != nil {
		_ = os.Remove(p.file.Name())
		_ = p.file.Close()
	}
}

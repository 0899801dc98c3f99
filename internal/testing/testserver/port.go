//go:build unix

package testserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Port is one that no other server of this machine's tests takes, in whatever process, until it is freed: clients of a
// server that was killed must not find another test's server at its address.
type Port struct {
	Number int
	file   *os.File // locked
}

// Ports is how many ports can be reserved. They begin at 10000.
const Ports = 10000

// Reserve returns a port that nobody listens on at this moment. It stays below the range from which the kernel takes
// the local ports of outgoing connections: in that range any client on this machine could occupy the port of a server
// that is down for a moment. So do the ports that are Ports above, which the buses of a Redis Cluster have.
func Reserve() (Port, error) {
	dir := filepath.Join(os.TempDir(), "locker-test-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Port{}, err
	}
	for {
		p := Port{Number: 10000 + rand.IntN(Ports)}
		var err error
		p.file, err = os.OpenFile(filepath.Join(dir, strconv.Itoa(p.Number)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return Port{}, err
		}
		if syscall.Flock(int(p.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = p.file.Close()
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number))); err == nil {
			_ = l.Close()
			return p, nil
		}
		p.Free()
	}
}

// Free gives the port back.
func (p Port) Free() {
	if p.file != nil {
		_ = os.Remove(p.file.Name())
		_ = p.file.Close()
	}
}

// FreeAddr returns an address of the loopback interface with a port that is reserved until tb ends.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	p, err := Reserve()
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	tb.Cleanup(p.Free)
	return fmt.Sprintf("127.0.0.1:%d", p.Number)
}

package plain_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"example.com/customdriver/plain"
	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
)

// start runs a redis-server that listens on a socket. There are always enough sockets, and no other program takes them.
func start(t testing.TB) (drivers.Config, *os.Process) {
	t.Helper()
	cfg := drivers.Config{Network: "unix", Addr: filepath.Join(t.TempDir(), "s")}
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", cfg.Addr, "--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal("install redis-server: ", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cfg, cmd.Process
}

// The suite runs a Redlock over three servers, any one of which may fail. A node is what the test can do to a server.
func TestQuorum(t *testing.T) {
	conformance.RunQuorum(t, conformance.QuorumHarness{Store: func(t testing.TB) conformance.QuorumStore {
		var s conformance.QuorumStore
		var servers []drivers.Config
		for i := range 3 {
			cfg, process := start(t)
			servers = append(servers, cfg)
			d := plain.New(cfg)
			t.Cleanup(func() { _ = d.Close() })
			ready(t, d)
			s.Nodes = append(s.Nodes, conformance.QuorumNode{
				Name: fmt.Sprint("node ", i+1), // the name in package redlock
				Locked: func(key string) bool {
					return ask(t, d, "EXISTS", redlock.DefaultPrefix+key) == int64(1)
				},
				Delete: func(key string) { ask(t, d, "DEL", redlock.DefaultPrefix+key) },
				Hang: func() func() {
					_ = process.Signal(syscall.SIGSTOP)
					return func() { _ = process.Signal(syscall.SIGCONT) }
				},
			})
		}
		s.Client = func() locker.Locker {
			l, err := open(servers)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		s.Duplicate = func() (locker.Locker,
			error) {
			return open([]drivers.Config{servers[0], servers[1], servers[0]})
		}
		return s
	}})
}

func open(servers []drivers.Config) (*locker.Client, error) {
	var ds []drivers.Driver
	for _, cfg := range servers {
		ds = append(ds, plain.New(cfg))
	}
	l, err := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		for _, d := range ds {
			_ = d.Close()
		}
	}
	return l, err
}

func ask(t testing.TB, d drivers.Driver, command ...string) drivers.Reply {
	t.Helper()
	replies, err := d.Do(t.Context(), command)
	if err != nil {
		t.Fatalf("%s: %v", command[0], err)
	}
	return replies[0]
}

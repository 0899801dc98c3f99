//go:build unix

// Package natstest starts real nats-servers with JetStream for tests. Each listens on a free port of the loopback
// interface, keeps its files in a directory of its own, and ends with its test, in whatever way the test process ends.
package natstest

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Server is one nats-server, behind a Relay that keeps its address when the server is started again. Its methods may be
// called from several goroutines; those that can fail the test only from the test's own.
type Server struct {
	testserver.Server
	tb    testing.TB
	dir   string
	extra []string
	conf  string // the path of its configuration file; empty: there is none
	ports string // where the process writes at which ports it listens
	*testserver.Relay
	faults faults
	links  []*testserver.Relay // between it and the other servers of the cluster
}

// Start runs a nats-server until the test ends. args are added to its command line.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := launch(tb, args...)
	s.await()
	return s
}

// launch is like Start, but does not wait until the server serves.
func launch(tb testing.TB, args ...string) *Server {
	tb.Helper()
	dir, err := os.MkdirTemp(inMemory(), "natstest") //nolint:usetesting // names of tests can be long
	if err != nil {
		tb.Fatalf("natstest: %v", err)
	}
	s := &Server{tb: tb, dir: dir, extra: args}
	s.Relay = testserver.NewRelay(tb, "", s.faults.connection)
	tb.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	s.run()
	return s
}

// inMemory returns a directory whose files are in memory, or nothing if there is none. A server that creates a bucket
// waits until its disk has the files, and a disk that takes the output of compilers meanwhile needs seconds for that.
func inMemory() string {
	const dir = "/dev/shm"
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return ""
	}
	return dir
}

// run starts the process.
func (s *Server) run() {
	s.tb.Helper()
	path := testserver.Build(s.tb, "github.com/nats-io/nats-server/v2")
	var err error
	if s.ports, err = os.MkdirTemp(s.dir, "ports"); err != nil {
		s.tb.Fatalf("natstest: %v", err)
	}
	args := append([]string{
		"-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", s.ports, "-js", "-sd", filepath.Join(s.dir, "store"),
		"-l", filepath.Join(s.dir, "log"),
	}, s.extra...)
	if err := s.Launch(path, s.dir, nil, args); err != nil {
		s.tb.Fatalf("natstest: %v", err)
	}
}

// await returns when the process serves JetStream.
func (s *Server) await() {
	s.tb.Helper()
	err := s.Await(func() bool {
		addr := listens(s.ports)
		if addr == "" || !serves(addr) {
			return false
		}
		s.To(addr)
		return true
	})
	if err != nil {
		s.tb.Fatalf("natstest: %v:\n%s", err, s.Log())
	}
}

// listens returns the address in the file that the server writes into dir.
func listens(dir string) string {
	files, _ := filepath.Glob(filepath.Join(dir, "*.ports"))
	if len(files) == 0 {
		return ""
	}
	text, _ := os.ReadFile(files[0])
	var ports struct {
		Nats []string `json:"nats"`
	}
	if json.Unmarshal(text, &ports) != nil || len(ports.Nats) == 0 {
		return ""
	}
	return strings.TrimPrefix(ports.Nats[0], "nats://")
}

// serves reports whether the server at addr offers JetStream.
func serves(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 4096)
	n, _ := conn.Read(buf)
	return bytes.HasPrefix(buf[:n], []byte("INFO ")) && bytes.Contains(buf[:n], []byte(`"jetstream":true`))
}

// URL returns the address as clients of NATS expect it.
func (s *Server) URL() string { return "nats://" + s.Addr() }

// Restart kills the server, and starts it again with its files.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.run()
	s.await()
}

// LoseReply lets the next request of a client reach the server, and closes the connection instead of passing the answer
// on.
func (s *Server) LoseReply() { s.Set(func() { s.faults.losing = true }) }

// LoseMessages drops the messages about stored records, which begin with subject, until restore is called.
func (s *Server) LoseMessages(subject string) (restore func()) {
	s.Set(func() { s.faults.drop = subject })
	return func() { s.Set(func() { s.faults.drop = "" }) }
}

// Log returns what the server has logged.
func (s *Server) Log() []byte {
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return log
}

// Package redistest starts real redis-servers for tests, or another server with the same protocol, which [ServerEnv]
// names.
//
// A server listens on a free port of the loopback interface and keeps its files in a directory of its own. It ends with
// its test, in whatever way the test process ends. Servers share nothing, so tests that use them can run in parallel,
// in one process or in several.
package redistest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// busOffset is the difference between the port of a cluster's bus and the port for clients. Servers before Redis 7 let
// nobody choose it.
const busOffset = testserver.Ports

// maxSocketPath is the longest path of a unix socket that every system allows.
const maxSocketPath = 100

// Server is one redis-server process. Its methods may be called from several goroutines. The methods that can fail the
// test (Start, Restart, Cmd, Keys) are an exception: only the test's own goroutine may call them, as
// [testing.T.FailNow].
type Server struct {
	testserver.Server
	tb        testing.TB
	binary    string
	dir       string
	port      int
	reserved  testserver.Port // reserves the port number
	member    bool            // the server belongs to a cluster
	config    string          // path of the configuration of a sentinel; empty: the server is no sentinel
	tls       bool
	authority *Authority // behind the certificate of a server with TLS
	extra     []string
	env       []string
	was       string // of a server that is lent: what it said when it was started
}

// Start runs a redis-server until the test ends and returns once it answers PING. args are appended to the command
// line. The server persists nothing, unless args say otherwise ("--appendonly", "yes"). Without args, or
// with those of a durable server, it may be one that an earlier test has used, if the tests of the package are run by
// [Main].
//
// If the machine does not have the server, the test fails: see [Binary].
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if shared != nil && (len(args) == 0 || slices.Equal(args, durable)) {
		return shared.lend(tb, args)
	}
	s := prepare(tb, args)
	s.launch()
	return s
}

// StartWith is Start with additions to the server's environment, as "NAME=value".
func StartWith(tb testing.TB, env []string, args ...string) *Server {
	tb.Helper()
	s := prepare(tb, args)
	s.env = env
	s.launch()
	return s
}

// prepare makes a server that ends with tb.
func prepare(tb testing.TB, args []string) *Server {
	tb.Helper()
	s := create(tb, args)
	tb.Cleanup(s.end)
	return s
}

// end ends the server for good.
func (s *Server) end() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
	s.reserved.Free()
}

func create(tb testing.TB, args []string) *Server {
	tb.Helper()
	binary := Binary(tb)
	nameOnFailure(tb, binary)
	// The directory is not tb.TempDir, which contains the name of the test. The path of a unix socket may have only about
	// a hundred bytes, and names of tests can be longer.
	dir, err := os.MkdirTemp("", "redistest")
	if err == nil && len(dir)+len("/sock") > maxSocketPath { // a long TMPDIR
		_ = os.Remove(dir)
		dir, err = os.MkdirTemp("/tmp", "redistest")
	}
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return &Server{tb: tb, binary: binary, dir: dir, extra: args}
}

// launch starts the server for the first time. Another program may take the port before redis-server binds it. The
// server then exits, and launch tries another port.
func (s *Server) launch() {
	s.tb.Helper()
	var err error
	for range 20 {
		if s.reserved, err = testserver.Reserve(); err != nil {
			break
		}
		s.port = s.reserved.Number
		if err = s.run(); !errors.Is(err, errTaken) {
			break
		}
		s.reserved.Free()
	}
	if err != nil {
		s.tb.Fatalf("redistest: redis-server does not start: %v\n%s", err, s.log())
	}
}

var errTaken = errors.New("port is taken")

// run starts the process and waits until it answers. It asks through the unix socket in the server's own directory. The
// port might belong to another server that was quicker to bind it.
func (s *Server) run() error {
	plain, secure := s.port, 0
	if s.tls {
		plain, secure = secure, plain
	}
	args := slices.Concat([]string{
		"--port", strconv.Itoa(plain), "--tls-port", strconv.Itoa(secure), "--bind", "127.0.0.1",
		"--dir", s.dir, "--logfile", filepath.Join(s.dir, "log"), "--unixsocket", s.Socket(),
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}, s.extra)
	if !s.tls {
		// A redis-server built without TLS does not know the option.
		args = slices.Delete(args, 2, 4)
	}
	if s.config != "" {
		args = append([]string{s.config, "--sentinel"}, args...)
	}
	// An old log would explain the failure of an earlier attempt.
	_ = os.Remove(filepath.Join(s.dir, "log"))
	if err := s.Launch(s.binary, s.dir, s.env, args); err != nil {
		return err
	}
	err := s.Await(func() bool {
		reply, err := s.ask("PING")
		return err == nil && reply == "PONG"
	})
	if errors.Is(err, testserver.ErrExited) && bytes.Contains(s.log(), []byte("listening")) {
		return errTaken
	}
	return err
}

// Addr returns the server's address, 127.0.0.1:port. It does not change by Kill and Restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Socket returns the path of the server's unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "sock") }

// Dir returns the server's directory, which has its log, and its data if it persists any.
func (s *Server) Dir() string { return s.dir }

// Restart kills the server if it still runs and starts it again with the same port, directory and arguments. Without
// persistence it comes back empty.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	var err error
	// Another test that looks for a free port may occupy this one for a moment.
	for deadline := time.Now().Add(testserver.StartTimeout); ; time.Sleep(20 * time.Millisecond) {
		if err = s.run(); err == nil {
			return
		}
		if !errors.Is(err, errTaken) || time.Now().After(deadline) {
			s.tb.Fatalf("redistest: redis-server does not start again: %v\n%s", err, s.log())
		}
	}
}

func (s *Server) log() []byte {
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return text
}

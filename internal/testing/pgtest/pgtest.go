// Package pgtest starts real PostgreSQL servers for tests.
//
// A server listens on a unix socket in a directory of its own, and trusts everybody who can enter it. It ends with its
// test, in whatever way the test process ends. Under root it runs as the user postgres, because it refuses root.
package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/testserver"
)

// Server is one server with its data. Its methods may be called from several goroutines. Start, Standby and Restart are
// an exception: they can fail the test, so only the test's own goroutine may call them.
type Server struct {
	tb       testing.TB
	dir      string
	settings []string
	env      []string

	mu     sync.Mutex
	proc   *child.Process // nil while the server is dead
	paused bool
}

// Start makes an empty database cluster and runs a server on it until the test ends. settings are lines of
// postgresql.conf. The server does not flush to the disk, and survives the death of its process nevertheless.
//
// If the machine does not have PostgreSQL, the test fails and says how to install it. It is not skipped, because a
// skipped test would be mistaken for a passed one.
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s := prepare(tb, settings)
	s.init()
	return s
}

// StartWithClock is like Start. The clock of the server can be moved, which needs a C compiler.
func StartWithClock(tb testing.TB, settings ...string) (*Server, *testserver.Clock) {
	tb.Helper()
	if why := testserver.NoClock(); why != "" {
		tb.Fatalf("this test moves the clock of a server: %s: install gcc (apt-get install -y gcc libc6-dev)", why)
	}
	s := prepare(tb, settings)
	c, env := testserver.NewClock(s.dir)
	s.env = env
	s.init()
	return s, c
}

// StartWithDisk is like Start. The disk of the server can be filled, which needs a C compiler.
func StartWithDisk(tb testing.TB, settings ...string) (*Server, *testserver.Disk) {
	tb.Helper()
	if why := testserver.NoDisk(); why != "" {
		tb.Fatalf("this test fills the disk of a server: %s: install gcc (apt-get install -y gcc libc6-dev)", why)
	}
	s := prepare(tb, settings)
	d, env := testserver.NewDisk(s.dir)
	s.env = env
	s.init()
	return s, d
}

func (s *Server) init() {
	s.tb.Helper()
	initdb := program(s.tb, "initdb")
	// The first test on this machine makes an empty database cluster, because that takes a second of a processor, and
	// there are many servers. Another version of PostgreSQL, and another user who runs tests, has another one.
	name := fmt.Sprintf("postgres-%d-%d/data", version(initdb), os.Getuid())
	empty := testserver.Cached(s.tb, name, func(path string) error {
		s.must(initdb, "-D", s.Data(), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync",
			"--no-instructions", "--wal-segsize=1")
		return errors.Join(exec.Command("cp", "-a", s.Data(), path).Run(), os.RemoveAll(s.Data()))
	})
	if out, err := exec.Command("cp", "-a", empty, s.Data()).CombinedOutput(); err != nil {
		s.tb.Fatalf("pgtest: %v\n%s", err, out)
	}
	s.launch()
}

// Standby makes a copy of a running server that follows it. It follows asynchronously, unless the settings of the
// server name it: its application_name is standby.
func Standby(tb testing.TB, of *Server, settings ...string) *Server {
	tb.Helper()
	s := prepare(tb, settings)
	s.must(program(tb, "pg_basebackup"), "-D", s.Data(), "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", "host="+of.dir+" user=postgres application_name=standby")
	s.launch()
	return s
}

func prepare(tb testing.TB, settings []string) *Server {
	tb.Helper()
	s := &Server{tb: tb, dir: directory(tb), settings: settings}
	tb.Cleanup(s.Kill)
	return s
}

// directory makes a directory for the files of a process, which the end of the test removes.
func directory(tb testing.TB) string {
	tb.Helper()
	// It is not tb.TempDir: the path of a unix socket may have only about a hundred bytes, and other users cannot enter
	// that directory.
	dir, err := os.MkdirTemp("/tmp", "pgtest") //nolint:usetesting // a unix socket's path must be short
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Getuid() == 0 {
		uid, gid := servant(tb)
		if err := os.Chown(dir, uid, gid); err != nil {
			tb.Fatalf("pgtest: %v", err)
		}
	}
	return dir
}

// program returns the path of one of PostgreSQL's programs. Debian has scripts in PATH that look for some of them, and
// take much longer than the programs.
func program(tb testing.TB, name string) string {
	tb.Helper()
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(paths) > 0 {
		slices.SortFunc(paths, func(a, b string) int { return version(a) - version(b) })
		return paths[len(paths)-1]
	}
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("this test needs PostgreSQL, and %s is neither in PATH nor in /usr/lib/postgresql: install it "+
			"(scripts/need-postgres.sh, or apt-get install -y postgresql), or run the tests by `make test`, which does so",
			name)
	}
	return path
}

// version returns the 15 of /usr/lib/postgresql/15/bin/initdb.
func version(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

// servant returns the ids of the user postgres.
func servant(tb testing.TB) (uid, gid int) {
	tb.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		tb.Fatalf("pgtest: PostgreSQL refuses to run as root, and there is no user postgres: %v", err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid
}

// as returns the command line that runs args as the user postgres, if this process is root.
func as(tb testing.TB, args ...string) []string {
	if os.Getuid() != 0 {
		return args
	}
	uid, gid := servant(tb)
	return append([]string{"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(gid), "--clear-groups",
		"--"}, args...)
}

// must runs a program to its end.
func (s *Server) must(args ...string) {
	s.tb.Helper()
	args = as(s.tb, args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("pgtest: %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Data returns the path of the server's data.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

func (s *Server) launch() {
	s.tb.Helper()
	if err := s.run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		s.tb.Fatalf("pgtest: the server does not start: %v\n%s", err, log)
	}
}

// run starts the process and waits until it accepts connections.
func (s *Server) run() error {
	args := []string{
		program(s.tb, "postgres"), "-D", s.Data(), "-c", "listen_addresses=", "-c", "unix_socket_directories=" + s.dir,
		"-c", "fsync=off", "-c", "logging_collector=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB",
		"-c", "dynamic_shared_memory_type=mmap", // a server that is killed leaves only its files
	}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	// The shell sends what the server logs to a file.
	args = append([]string{"/bin/sh", "-c", `exec "$@" >>"$0" 2>&1`, filepath.Join(s.dir, "log")}, args...)
	args = as(s.tb, args...)
	p, err := child.Spawn(args[0], s.dir, s.env, args[1:])
	if err != nil {
		return err
	}
	if err := ready(s.dir, p); err != nil {
		return err
	}
	s.mu.Lock()
	s.proc, s.paused = p, false
	s.mu.Unlock()
	return nil
}

// ready waits until a process accepts connections on its socket in dir.
func ready(dir string, p *child.Process) error {
	for deadline := time.Now().Add(testserver.StartTimeout); ; time.Sleep(5 * time.Millisecond) {
		if accepts(dir) {
			return nil
		}
		if p.Exited() {
			return errors.New("it exited")
		}
		if time.Now().After(deadline) {
			p.Kill()
			return fmt.Errorf("no answer for %v", testserver.StartTimeout)
		}
	}
}

// accepts reports whether a server lets a client in, or asks for a password. A server that starts answers with an error
// of the code 57P03. (pg_isready does the same, as a process each time.)
func accepts(dir string) bool {
	conn, err := net.Dial("unix", filepath.Join(dir, socket))
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	const startup = "\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00" // version 3.0 of the protocol
	if _, err := io.WriteString(conn, "\x00\x00\x00"+string(rune(4+len(startup)))+startup); err != nil {
		return false
	}
	answer := make([]byte, 1024)
	n, err := conn.Read(answer)
	return err == nil && !bytes.Contains(answer[:n], []byte("57P03"))
}

const socket = ".s.PGSQL.5432"

// URL returns the URL of the database postgres for a user.
func (s *Server) URL(user string) string { return URLs(user, s) }

// URLs returns the URL of the database postgres for a user, on whichever of the servers answers.
func URLs(user string, servers ...*Server) string {
	dirs := make([]string, len(servers))
	for i, s := range servers {
		dirs[i] = s.dir
	}
	return "postgres://" + user + "@/postgres?host=" + url.QueryEscape(strings.Join(dirs, ","))
}

// Socket returns the path of the server's unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, socket) }

// Pause freezes the server (SIGSTOP), with all its processes. The kernel still accepts connections and bytes for it,
// and the server executes what was sent meanwhile after Resume.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP, true) }

// Resume continues a paused server (SIGCONT).
func (s *Server) Resume() { s.signal(syscall.SIGCONT, false) }

func (s *Server) signal(sig syscall.Signal, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.Signal(sig)
		s.children(sig)
		s.paused = paused
	}
}

// Restart kills the server if it still runs and starts it again on its data.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.launch()
}

// Promote makes a standby the primary.
func (s *Server) Promote() {
	s.tb.Helper()
	s.must(program(s.tb, "pg_ctl"), "promote", "-w", "-D", s.Data())
}

// Log returns what the server has logged.
func (s *Server) Log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		s.tb.Errorf("pgtest: %v", err)
	}
	return string(text)
}

// Put writes a file into the server's data, which only the server may read. Settings that name it, and pg_hba.conf, are
// read after a reload.
func (s *Server) Put(name string, content []byte) {
	s.tb.Helper()
	file := filepath.Join(s.Data(), name)
	err := os.WriteFile(file, content, 0o600)
	if err == nil && os.Getuid() == 0 {
		uid, gid := servant(s.tb)
		err = os.Chown(file, uid, gid)
	}
	if err != nil {
		s.tb.Errorf("pgtest: %v", err)
	}
}

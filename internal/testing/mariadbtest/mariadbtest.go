// Package mariadbtest starts real MariaDB servers for tests.
//
// Each listens on a free port of the loopback interface, keeps its files in a directory of its own, and ends with its
// test, in whatever way the test process ends. Under root it runs as the user mysql, because it refuses root. Its own
// user root needs no password.
package mariadbtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Database is a database that each server has. It is empty.
const Database = "locker"

// Server is one server with its data. Its methods may be called from several goroutines. Those that can fail the test,
// such as Restart, are an exception: only the test's own goroutine may call them.
type Server struct {
	testserver.Server
	tb       testing.TB
	dir      string
	addr     string
	settings []string
	env      []string
}

// Start makes an empty database server and runs it until the test ends. settings are options of its command line,
// without the two dashes. The server does not flush to the disk, and survives the death of its process nevertheless.
//
// If the machine does not have MariaDB, the test fails and says how to install it. It is not skipped, because a skipped
// test would be mistaken for a passed one.
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s := prepare(tb, settings...)
	s.launch()
	return s
}

// StartWithClock is like Start. The clock of the server can be moved, which needs a C compiler.
func StartWithClock(tb testing.TB, settings ...string) (*Server, *testserver.Clock) {
	tb.Helper()
	if why := testserver.NoClock(); why != "" {
		tb.Fatalf("this test moves the clock of a server: %s: install gcc (apt-get install -y gcc libc6-dev)", why)
	}
	s := prepare(tb, settings...)
	c, env := testserver.NewClock(s.dir)
	s.env = slices.Concat(env, []string{"CLOCKSHIFT_GETTIME=1"})
	s.launch()
	return s, c
}

// StartTLS is like Start. Connections may use TLS, with a certificate and its key, as PEM. Those of clients are checked
// by the authority.
func StartTLS(tb testing.TB, authority, cert, key []byte, settings ...string) *Server {
	tb.Helper()
	s := prepare(tb, append([]string{"ssl-ca=ca.pem", "ssl-cert=cert.pem", "ssl-key=key.pem"}, settings...)...)
	for name, content := range map[string][]byte{"ca.pem": authority, "cert.pem": cert, "key.pem": key} {
		s.put(filepath.Join("data", name), content) // where the server looks for them
	}
	s.launch()
	return s
}

// prepare makes a server that does not run yet.
func prepare(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	// It is not tb.TempDir: the path of a unix socket may have only about a hundred bytes, and other users cannot enter
	// that directory.
	dir, err := os.MkdirTemp("/tmp", "mariadbtest") //nolint:usetesting // a unix socket's path must be short
	if err != nil {
		tb.Fatalf("mariadbtest: %v", err)
	}
	s := &Server{tb: tb, dir: dir, addr: testserver.FreeAddr(tb), settings: settings}
	tb.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	s.give(dir)
	// The first test on this machine makes an empty server, because that takes seconds of a processor. Another version,
	// and another user who runs tests, has another one.
	name := fmt.Sprintf("mariadb-%s-%d/data", version(tb), os.Getuid())
	empty := testserver.Cached(tb, name, func(path string) error {
		s.must(program(tb, "mariadb-install-db"), "--no-defaults", "--force", "--datadir="+s.data(),
			"--skip-test-db", "--auth-root-authentication-method=normal", "--innodb-log-file-size=4M")
		return errors.Join(exec.Command("cp", "-a", s.data(), path).Run(), os.RemoveAll(s.data()))
	})
	if out, err := exec.Command("cp", "-a", empty, s.data()).CombinedOutput(); err != nil {
		tb.Fatalf("mariadbtest: %v\n%s", err, out)
	}
	s.put("init.sql", []byte("CREATE DATABASE IF NOT EXISTS "+Database+";\n"))
	return s
}

// program returns the path of one of MariaDB's programs. The server may not be in the PATH of users.
func program(tb testing.TB, name string) string {
	tb.Helper()
	for _, name := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	tb.Fatalf("this test needs MariaDB, and %s is neither in PATH nor in /usr/sbin: install it "+
		"(scripts/need-mariadb.sh, or apt-get install -y mariadb-server), or run the tests by `make test`, which does so",
		name)
	return ""
}

var versionOf = sync.OnceValues(func() (string, error) {
	path, err := exec.LookPath("mariadbd")
	if err != nil {
		path = "/usr/sbin/mariadbd"
	}
	out, err := exec.Command(path, "--no-defaults", "--version").Output()
	return string(out), err
})

// version returns the version of the server, such as 10.11.14-MariaDB.
func version(tb testing.TB) string {
	tb.Helper()
	program(tb, "mariadbd")
	out, err := versionOf()
	_, after, ok := strings.Cut(out, "Ver ")
	if fields := strings.Fields(after); err == nil && ok && len(fields) > 0 {
		return strings.ReplaceAll(fields[0], "/", "_")
	}
	tb.Fatalf("mariadbtest: mariadbd --version: %v: %s", err, out)
	return ""
}

// as returns the command line that runs args as the user mysql, if this process is root.
func (s *Server) as(args ...string) []string {
	if os.Getuid() != 0 {
		return args
	}
	uid, gid := s.servant()
	return append([]string{"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(gid), "--clear-groups",
		"--"}, args...)
}

// servant returns the ids of the user mysql.
func (s *Server) servant() (uid, gid int) {
	s.tb.Helper()
	u, err := user.Lookup("mysql")
	if err != nil {
		s.tb.Fatalf("mariadbtest: MariaDB refuses to run as root, and there is no user mysql: %v", err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid
}

// give makes the user of the server the owner of a file.
func (s *Server) give(path string) {
	s.tb.Helper()
	if os.Getuid() != 0 {
		return
	}
	uid, gid := s.servant()
	if err := os.Chown(path, uid, gid); err != nil {
		s.tb.Fatalf("mariadbtest: %v", err)
	}
}

// must runs a program to its end.
func (s *Server) must(args ...string) {
	s.tb.Helper()
	args = s.as(args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("mariadbtest: %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) launch() {
	s.tb.Helper()
	s.run()
	s.await()
}

// run starts the process.
func (s *Server) run() {
	s.tb.Helper()
	_, port, _ := net.SplitHostPort(s.addr)
	args := []string{
		program(s.tb, "mariadbd"), "--no-defaults", "--datadir=" + s.data(), "--bind-address=127.0.0.1", "--port=" + port,
		"--socket=" + filepath.Join(s.dir, "socket"), "--pid-file=" + filepath.Join(s.dir, "pid"),
		"--log-error=" + s.log(), "--tmpdir=" + s.dir, "--init-file=" + filepath.Join(s.dir, "init.sql"),
		"--skip-name-resolve", "--max-connections=500", "--max-connect-errors=1000000",
		"--innodb-flush-log-at-trx-commit=2", "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M",
		"--innodb-buffer-pool-dump-at-shutdown=OFF", "--innodb-buffer-pool-load-at-startup=OFF",
		"--key-buffer-size=1M", "--aria-pagecache-buffer-size=1M",
	}
	for _, setting := range s.settings {
		args = append(args, "--"+setting)
	}
	args = s.as(args...)
	if err := s.Launch(args[0], s.dir, s.env, args[1:]); err != nil {
		s.tb.Fatalf("mariadbtest: %v", err)
	}
}

// await returns when the process accepts connections.
func (s *Server) await() {
	s.tb.Helper()
	if err := s.Await(func() bool { return serves(s.addr) }); err != nil {
		s.tb.Fatalf("mariadbtest: the server does not start: %v\n%s", err, s.Log())
	}
}

// serves reports whether a server greets its clients. One that is starting refuses connections. One that cannot take
// the connection sends an error, whose first byte is 255, in the place of the version of the protocol.
func serves(addr string) bool {
	const version = 10
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	greeting := make([]byte, 5) // a length of three bytes, the number of the packet, and its first byte
	_, err = io.ReadFull(conn, greeting)
	return err == nil && greeting[4] == version
}

// Addr returns the address, host:port, which stays the same when the server is started again.
func (s *Server) Addr() string { return s.addr }

// URL returns the URL of a database, for the user root.
func (s *Server) URL(database string) string { return "mysql://root@" + s.addr + "/" + database }

// Restart kills the server if it still runs, and starts it again on its data.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.launch()
}

func (s *Server) log() string { return filepath.Join(s.dir, "log.err") }

// Log returns what the server has logged.
func (s *Server) Log() string {
	text, _ := os.ReadFile(s.log())
	return string(bytes.TrimSpace(text))
}

// put writes a file into the directory of the server, which only the server may read.
func (s *Server) put(name string, content []byte) {
	s.tb.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		s.tb.Fatalf("mariadbtest: %v", err)
	}
	s.give(file)
}

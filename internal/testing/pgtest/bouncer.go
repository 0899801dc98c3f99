package pgtest

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/golocker/locker/internal/child"
)

// Bouncer is a PgBouncer in front of a server. Everybody who reaches it is the user postgres of the server.
type Bouncer struct{ dir string }

// NewBouncer starts a PgBouncer. It ends with the test.
func NewBouncer(tb testing.TB, s *Server) *Bouncer {
	tb.Helper()
	dir := directory(tb)
	config := "[databases]\n"
	for _, mode := range []string{"session", "transaction"} {
		config += mode + " = host=" + s.dir + " dbname=postgres user=postgres pool_mode=" + mode + "\n"
	}
	config += "[pgbouncer]\nlisten_addr =\nlisten_port = 5432\nunix_socket_dir = " + dir + "\nauth_type = any\n"
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil { //nolint:gosec // PgBouncer may run as another user
		tb.Fatalf("pgtest: %v", err)
	}
	args := as(tb, bouncer(tb), "-q", file)
	p, err := child.Spawn(args[0], dir, nil, args[1:])
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(p.Kill)
	if err := ready(dir, p); err != nil {
		tb.Fatalf("pgtest: PgBouncer does not start: %v", err)
	}
	return &Bouncer{dir}
}

// bouncer returns the path of the program. It may not be in the PATH of users.
func bouncer(tb testing.TB) string {
	tb.Helper()
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	tb.Fatal("this test needs PgBouncer: install it (scripts/need-postgres.sh, or apt-get install -y pgbouncer), or " +
		"run the tests by `make test`, which does so")
	return ""
}

// URL returns the URL of the server's database in which connections are shared between sessions, or between
// transactions.
func (b *Bouncer) URL(mode string) string {
	return "postgres://postgres@/" + mode + "?host=" + url.QueryEscape(b.dir)
}

package mysqllock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/record"
)

func TestURLs(t *testing.T) {
	configtest.Texts(t, map[string]string{
		"mysql://localhost/app":                        "",
		"mysql://u:p@h:3307/app?table=locks":           "mysql://u:[REDACTED]@h:3307/app?table=locks",
		"mysql://[::1]/app?max_conns=4&poll=100ms":     "",
		"mysqls://h/app?tls_ca_file=/ca.pem":           "mysqls://h/app?tls_ca_file=%2Fca.pem",
		"mysql://u@h/app?password_file=/pw&timeout=2s": "mysql://u@h/app?password_file=%2Fpw&timeout=2s",
	})
	configtest.Mistakes(t, map[string]string{
		"mysql://":                          "addr: address missing",
		"mysql://h":                         "database: missing: write host/database",
		"mysql://h1,h2/app":                 "addr: one address expected, not a list",
		"mysql://::1/app":                   "write an IPv6 address in brackets",
		"mysql://h:x/app":                   "the port is not a number",
		"mysql://u:p@h/app?password_file=/": "password_file: there is a password, too",
		"mysql://h/app?password_file=/p":    "username: missing, although there is a password",
		"mysql://h/app?max_conns=0":         "max_conns",
		"mysql://h/app?tables=locks":        "did you mean table?",
		"mysqls://h/app?tls_cert_file=/c":   "tls_key_file: missing",
	})
}

// The same locks by a URL, in a file, in the environment, and by connections of the program's own. A lock of one is
// held for the others.
func testFourWays(t *testing.T, s *mariadbtest.Server) {
	run(t, pool(t, s.URL(mariadbtest.Database)), "CREATE USER alice@'127.0.0.1' IDENTIFIED BY 'hunter2'",
		"GRANT SELECT, INSERT, UPDATE ON locker.* TO alice@'127.0.0.1'")
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, "hunter2\n")
	own := record.New(mysqllock.NewStore(pool(t, s.URL(mariadbtest.Database))), record.Prefix("app:"))
	defer own.Close()
	configtest.Ways{
		URL: "mysql://alice:hunter2@" + s.Addr() + "/" + mariadbtest.Database + "?prefix=app:",
		YAML: "backend: mysql\nprefix: 'app:'\nmysql:\n  addr: " + s.Addr() + "\n  database: " + mariadbtest.Database +
			"\n  username: alice\n  password_file: " + password + "\n",
		Env: []string{
			"LOCKER_BACKEND=mysql", "LOCKER_MYSQL_ADDR=" + s.Addr(), "LOCKER_MYSQL_DATABASE=" + mariadbtest.Database,
			"LOCKER_MYSQL_USERNAME=alice", "LOCKER_MYSQL_PASSWORD=hunter2", "LOCKER_PREFIX=app:",
		},
	}.SameLocks(t, own)
}

// A function says who the user is, for each new connection.
func testCredentials(t *testing.T, s *mariadbtest.Server) {
	admin := pool(t, s.URL(mariadbtest.Database))
	run(t, admin, "CREATE USER token@'127.0.0.1' IDENTIFIED BY 'first'",
		"GRANT SELECT, INSERT, UPDATE ON locker.* TO token@'127.0.0.1'")
	c, err := config.Parse("mysql://" + s.Addr() + "/" + mariadbtest.Database + "?prefix=" + newPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var token atomic.Pointer[string]
	give := func(s string) { token.Store(&s) }
	give("first")
	broken := errors.New("no token today")
	c.Credentials = func(context.Context) (username, password string, err error) {
		if *token.Load() == "" {
			return "", "", broken
		}
		return "token", *token.Load(), nil
	}
	l := opened(t, c)
	if err := takes(t, l); err != nil {
		t.Fatal(err)
	}
	run(t, admin, "SET PASSWORD FOR token@'127.0.0.1' = PASSWORD('second')")
	for _, step := range []struct{ token, want string }{
		{"first", "check the user and the password"}, {"", broken.Error()}, {"second", ""},
	} {
		give(step.token)
		_, _ = admin.Exec("KILL USER token") // fails if the user has no connections
		eventually(t, "a request after another token", func() error {
			err := takes(t, l)
			if err == nil && step.want == "" || err != nil && step.want != "" && strings.Contains(err.Error(), step.want) {
				return nil
			}
			return errors.Join(errors.New("expected: "+step.want), err)
		})
	}
}

// Connections are encrypted, the certificates of both sides are checked, and files are read for each connection.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, other := redistest.NewAuthority(t), redistest.NewAuthority(t)
	cert, key := ours.Issue(t, time.Hour)
	s := mariadbtest.StartTLS(t, ours.PEM(), cert, key)
	migrate(t, s)
	run(t, pool(t, s.URL(mariadbtest.Database)), "CREATE USER secure@'127.0.0.1' REQUIRE X509",
		"GRANT SELECT, INSERT, UPDATE ON locker.* TO secure@'127.0.0.1'")
	dir := t.TempDir()
	ca, certFile, keyFile := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	write(t, ca, string(other.PEM()))
	write(t, certFile, string(cert))
	write(t, keyFile, string(key))
	url := "secure@" + s.Addr() + "/" + mariadbtest.Database
	wantUnavailable(t, "without TLS", takes(t, open(t, "mysql://"+url)), "check the user and the password")
	l := open(t, "mysqls://"+url+"?tls_ca_file="+ca+"&tls_cert_file="+certFile+"&tls_key_file="+keyFile)
	wantUnavailable(t, "with another authority", takes(t, l), "certificate signed by unknown authority")
	write(t, ca, string(ours.PEM()))
	if err := takes(t, l); err != nil {
		t.Errorf("with the server's authority: %v", err)
	}
	named := open(t, "mysqls://"+url+"?tls_ca_file="+ca+"&tls_server_name=elsewhere")
	wantUnavailable(t, "with another name", takes(t, named), "certificate is valid for")
}

// The page has the statement for administrators who do not call Migrate.
func TestThePageHasTheStatement(t *testing.T) {
	page, err := os.ReadFile("../../docs/backends/mysql.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), mysqllock.MigrationSQL()) {
		t.Errorf("docs/backends/mysql.md lacks the statement:\n%s", mysqllock.MigrationSQL())
	}
}

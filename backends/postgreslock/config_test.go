package postgreslock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	configtest.Texts(t, map[string]string{
		"postgres://localhost/app":                            "",
		"postgresql://u:p@h1:5432,h2/app?sslmode=require":     "postgres://u:[REDACTED]@h1:5432,h2/app?sslmode=require",
		"postgres://[::1]:5432/app":                           "",
		"postgres:///app?host=/run/postgresql,/tmp":           "postgres:///app?host=%2Frun%2Fpostgresql%2C%2Ftmp",
		"postgres:///app?host=/run/postgresql&ttl=10s":        "postgres:///app?host=%2Frun%2Fpostgresql&ttl=10s",
		"postgres://h/app?schema=locks&pool_max_conns=4":      "postgres://h/app?pool_max_conns=4&schema=locks",
		"postgres://h/app?default_query_exec_mode=exec":       "",
		"postgres://h/app?timeout=2s&application_name=worker": "postgres://h/app?application_name=worker&timeout=2s",
	})
	configtest.Mistakes(t, map[string]string{
		"postgres://h/app?sslmode=on":                      "disable, allow, prefer",
		"postgres://h/app?target_session_attrs=standby":    "read-write, primary, any",
		"postgres://h/app?default_query_exec_mode=quick":   "cache_statement",
		"postgres://h/app?schema=a.b":                      "letters, digits and underscores",
		"postgres://u:p@h/app?password_file=/run/password": "remove one of them",
		"postgres://h/app?sslmod=require":                  "did you mean sslmode",
		"postgres://h/app?advisory=true":                   `unknown parameter "advisory"`,
		"postgres://h/app?pool_max_conns=0":                "pool_max_conns",
		"postgres://::1/app":                               "an IPv6 address in brackets",
		"postgres://[::1/app":                              "an IPv6 address in brackets",
		"postgres://h:x/app":                               "the port is not a number from 1 to 65535",
		"postgres://h1:5432,h2:99999/app":                  "number 2: the port is not a number",
		"postgres://h1,,h2/app":                            "number 2: address missing",
		"postgres://h1;h2/app":                             "write h1,h2",
	})
}

// open opens what a URL describes, until the end of the test.
func open(t testing.TB, url string) *config.Opened {
	t.Helper()
	c, err := config.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return opened(t, c)
}

func opened(t testing.TB, c *config.Config) *config.Opened {
	t.Helper()
	l, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, "Close", l.Close()) })
	return l
}

// passwords makes a server ask the user app for a password, over its socket, and trust everybody else. It returns the
// URL for app.
func passwords(t *testing.T, s *pgtest.Server, password string) (url string) {
	t.Helper()
	p := pool(t, s.URL("postgres"))
	run(t, p, "CREATE ROLE app LOGIN SUPERUSER")
	changePassword(t, s, password)
	s.Put("pg_hba.conf", []byte("local all app scram-sha-256\nlocal all all trust\n"))
	run(t, p, "SELECT pg_reload_conf()")
	url = s.URL("app")
	eventually(t, "the server asks for a password", func() bool { return connects(t, url) != nil })
	return url
}

func changePassword(t *testing.T, s *pgtest.Server, password string) {
	t.Helper()
	run(t, pool(t, s.URL("postgres")), "ALTER ROLE app PASSWORD '"+password+"'")
}

// connects returns the error of a new connection.
func connects(t *testing.T, url string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		must(t, "Close", conn.Close(t.Context()))
	}
	return err
}

// expel ends the connections of the user app.
func expel(t *testing.T, s *pgtest.Server) {
	t.Helper()
	const all = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'app'"
	run(t, pool(t, s.URL("postgres")), all)
}

// write replaces a file.
func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// takes takes a lock and releases it.
func takes(t *testing.T, l locker.Locker) error {
	t.Helper()
	lease, err := l.TryLock(t.Context(), "taken")
	if err != nil {
		return err
	}
	return lease.Unlock(t.Context())
}

// Whatever a server does to a Client, the Client has locks again when the server lets it.
func TestNoStateIsFinal(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "\ufeffone\r\n")
	l := open(t, passwords(t, s, "one")+"&password_file="+file)
	works := func(after string) {
		t.Helper()
		var err error
		eventually(t, "locks after "+after, func() bool { err = takes(t, l); return err == nil })
	}
	refused := func(when, text string) { // connections that the server has closed are noticed one by one
		t.Helper()
		eventually(t, "TryLock "+when+" says "+text, func() bool {
			err := takes(t, l)
			wantErr(t, "TryLock "+when, err, locker.ErrUnavailable)
			return err != nil && strings.Contains(err.Error(), text)
		})
	}
	works("the beginning")
	held := lock(t, l, "held", locker.TTL(time.Hour))
	granted := waiting(t, l, "held", nil)

	expel(t, s)
	works("the end of all connections")
	s.Kill()
	refused("without a server", "failed to connect")
	s.Restart()
	works("a restart")

	admin := pool(t, s.URL("postgres"))
	run(t, admin, "ALTER ROLE app NOLOGIN")
	expel(t, s)
	refused("of a user who may not log in", "may log in")
	run(t, admin, "ALTER ROLE app LOGIN")
	works("the user may log in again")

	write(t, file, "") // somebody replaces it
	expel(t, s)
	works("a password file that is empty for a moment")
	changePassword(t, s, "two")
	expel(t, s)
	refused("with an old password", "check the password")
	write(t, file, "two")
	works("the password file has followed")
	run(t, admin, "ALTER ROLE app RENAME TO former")
	expel(t, s)
	run(t, admin, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'former'")
	refused("of a user who was deleted", "check the password")
	run(t, admin, "ALTER ROLE former RENAME TO app")
	changePassword(t, s, "two") // the new name may have made it void
	works("the user was made again")

	must(t, "Verify", locker.Verify(t.Context(), held))
	must(t, "Unlock", held.Unlock(t.Context()))
	must(t, "Unlock by the waiter", (<-granted).Unlock(t.Context()))
}

// A function says who the user is, for each new connection.
func TestCredentials(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	c, err := config.Parse(strings.Replace(passwords(t, s, "first"), "app@", "", 1))
	if err != nil {
		t.Fatal(err)
	}
	token, failure := atomic.Pointer[string]{}, atomic.Pointer[error]{}
	give := func(s string) { token.Store(&s) }
	give("first")
	c.Credentials = func(context.Context) (username, password string, err error) {
		if err := failure.Load(); err != nil {
			return "", "", *err
		}
		return "app", *token.Load(), nil
	}
	l := opened(t, c)
	must(t, "TryLock", takes(t, l))
	changePassword(t, s, "second")
	expel(t, s)
	eventually(t, "the old token is refused", func() bool {
		err := takes(t, l)
		return err != nil && strings.Contains(err.Error(), "check the password")
	})
	give("second")
	must(t, "TryLock with a new token", takes(t, l))
	broken := errors.New("no token today")
	failure.Store(&broken)
	expel(t, s)
	eventually(t, "the error of the function is returned", func() bool { return errors.Is(takes(t, l), broken) })
	wantErr(t, "TryLock without credentials", takes(t, l), locker.ErrUnavailable)
	failure.Store(nil)
	must(t, "TryLock with credentials again", takes(t, l))

	c.Sections["postgres"].(*postgreslock.Config).Username = "app"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "function for credentials") {
		t.Errorf("a function and a user name: got %v, want an error", err)
	}
}

// Authorities, certificates and keys are replaced in their files while the program runs.
func TestCertificatesAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	for n, mode := range []string{"verify-full", "verify-ca"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testCertificates(t, mode, "127.77."+strconv.Itoa(os.Getpid()%250)+"."+strconv.Itoa(n+1))
		})
	}
}

// testCertificates has a server that listens at a host. TLS is for TCP only.
func testCertificates(t *testing.T, mode, host string) {
	s := migrated(t, "listen_addresses="+host)
	endpoint := testserver.NewRelay(t, host+":5432", func() (requests, replies testserver.Side) {
		return testserver.Side{Read: testserver.Chunks()}, testserver.Side{Read: testserver.Chunks()}
	})
	p := pool(t, s.URL("postgres"))
	run(t, p, "CREATE ROLE app LOGIN SUPERUSER")
	dir := t.TempDir()
	name := func(file string) string { return filepath.Join(dir, file) }
	serve := func(a *redistest.Authority) {
		cert, key := a.Issue(t, time.Hour)
		s.Put("server.crt", cert)
		s.Put("server.key", key)
		s.Put("ca.crt", a.PEM())
		run(t, p, "SELECT pg_reload_conf()")
	}
	first, second := redistest.NewAuthority(t), redistest.NewAuthority(t)
	use := func(a *redistest.Authority) {
		cert, key := a.Issue(t, time.Hour)
		write(t, name("ca"), string(a.PEM()))
		write(t, name("cert"), string(cert))
		write(t, name("key"), string(key))
	}
	s.Put("pg_hba.conf", []byte("local all all trust\nhostssl all all all trust clientcert=verify-ca\n"))
	run(t, p, "ALTER SYSTEM SET ssl = on")
	run(t, p, "ALTER SYSTEM SET ssl_ca_file = 'ca.crt'")
	serve(first)
	use(first)
	l := open(t, "postgres://app@"+endpoint.Addr()+"/postgres?sslmode="+mode+"&sslrootcert="+name("ca")+"&sslcert="+
		name("cert")+"&sslkey="+name("key"))
	works := func(when string) {
		t.Helper()
		expel(t, s)
		eventually(t, "locks "+when, func() bool { return takes(t, l) == nil })
	}
	works("at the beginning")
	write(t, name("ca"), "")
	write(t, name("key"), "")
	works("while the files are half written")
	use(second)
	serve(second)
	// The server reads its files when it gets the signal.
	eventually(t, "the server has a new authority", func() bool { expel(t, s); return takes(t, l) == nil })
	works("with a new authority")
	use(first)
	expel(t, s)
	eventually(t, "an authority that is not the server's is refused", func() bool {
		expel(t, s)
		return takes(t, l) != nil
	})
	use(second)
	works("with the server's authority again")
}

// The same locks by a URL, by a file, and by the environment.
func testConfiguration(t *testing.T, s *pgtest.Server) {
	dir := filepath.Dir(s.Socket())
	configtest.Ways{
		URL:  "postgres://postgres@/postgres?host=" + dir,
		YAML: "backend: postgres\npostgres: {host: " + dir + ", database: postgres, username: postgres}\n",
		Env: []string{
			"LOCKER_BACKEND=postgres", "LOCKER_POSTGRES_HOST=" + dir, "LOCKER_POSTGRES_DATABASE=postgres",
			"LOCKER_POSTGRES_USERNAME=postgres",
		},
	}.SameLocks(t, client(t, s.URL("postgres"), postgreslock.Prefix("lock:")))
}

package postgres_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/pgtest"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://localhost/app":                            "postgres://localhost/app",
		"postgresql://u:p@h1:5432,h2/app?sslmode=require":     "postgres://u:[REDACTED]@h1:5432,h2/app?sslmode=require",
		"postgres:///app?host=/run/postgresql&ttl=10s":        "postgres:///app?host=%2Frun%2Fpostgresql&ttl=10s",
		"postgres://h/app?schema=locks&pool_max_conns=4":      "postgres://h/app?pool_max_conns=4&schema=locks",
		"postgres://h/app?default_query_exec_mode=exec":       "postgres://h/app?default_query_exec_mode=exec",
		"postgres://h/app?timeout=2s&application_name=worker": "postgres://h/app?application_name=worker&timeout=2s",
		"postgres://h/app?advisory=true":                      "postgres://h/app?advisory=true",
	} {
		c, err := config.Parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := c.String(); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
	for url, want := range map[string]string{
		"postgres://h/app?sslmode=on":                      "disable, allow, prefer",
		"postgres://h/app?target_session_attrs=standby":    "read-write, primary, any",
		"postgres://h/app?default_query_exec_mode=quick":   "cache_statement",
		"postgres://h/app?schema=a.b":                      "letters, digits and underscores",
		"postgres://u:p@h/app?password_file=/run/password": "remove one of them",
		"postgres://h/app?sslmod=require":                  "did you mean sslmode",
		"postgres://h/app?pool_max_conns=0":                "pool_max_conns",
	} {
		if _, err := config.Parse(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that says %q", url, err, want)
		}
	}
}

// The same locks by a URL, by a file, and by the environment.
func testConfiguration(t *testing.T, s *pgtest.Server) {
	dir := filepath.Dir(s.Socket())
	file := filepath.Join(t.TempDir(), "locker.yaml")
	text := "backend: postgres\npostgres: {host: " + dir + ", database: postgres, username: postgres}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(c *config.Config, err error) locker.Locker {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { must(t, "Close", l.Close()) })
		return l
	}
	lease := lock(t, open(config.Parse("postgres://postgres@/postgres?host="+dir)), "configured")
	wantHeld(t, open(config.Load(file)), "configured", "of a lock that another configuration has")
	c := new(config.Config)
	wantHeld(t, open(c, c.Overlay([]string{
		"LOCKER_BACKEND=postgres", "LOCKER_POSTGRES_HOST=" + dir, "LOCKER_POSTGRES_DATABASE=postgres",
		"LOCKER_POSTGRES_USERNAME=postgres",
	})), "configured", "of a lock that another configuration has")
	wantHeld(t, client(t, s.URL("postgres"), postgres.Prefix("lock:")), "configured", "of a lock that a URL has")
	must(t, "Unlock", lease.Unlock(t.Context()))

	// Advisory locks, by a URL, by a file, and by the environment.
	must(t, "WriteFile", os.WriteFile(file, []byte(strings.Replace(text, "{", "{advisory: true, ", 1)), 0o600))
	lease = lock(t, open(config.Parse("postgres://postgres@/postgres?advisory=true&host="+dir)), "advisory")
	wantHeld(t, open(config.Load(file)), "advisory", "of a lock that another configuration has")
	wantHeld(t, open(c, c.Overlay([]string{"LOCKER_POSTGRES_ADVISORY=true"})), "advisory",
		"of a lock that another configuration has")
	wantHeld(t, advisory(t, s.URL("postgres")), "advisory", "of a lock that a URL has")
	must(t, "Unlock", lease.Unlock(t.Context()))
}

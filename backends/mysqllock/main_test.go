package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/internal/testing/testserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		testserver.RemoveLibraries()
		os.Exit(code)
	}))
}

// migrated starts a server that has the table.
func migrated(t testing.TB, settings ...string) *mariadbtest.Server {
	t.Helper()
	s := mariadbtest.Start(t, settings...)
	migrate(t, s)
	return s
}

// migrate makes the table. It also has a column that says when a row was written, which a Store does not know.
func migrate(t testing.TB, s *mariadbtest.Server) {
	t.Helper()
	db := pool(t, s.URL(mariadbtest.Database))
	if err := mysqllock.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	run(t, db, "ALTER TABLE "+mysqllock.DefaultTable+
		" ADD written TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)")
}

// configured returns the settings of a URL.
func configured(t testing.TB, url string) *mysqllock.Config {
	t.Helper()
	c, err := config.Parse(url)
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.Sections["mysql"].(*mysqllock.Config)
}

// pool returns the connections of a configuration, until the end of the test.
func pool(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := configured(t, url).Pool()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// raw returns connections as a program makes them by itself, with parameters of the driver.
func raw(t testing.TB, addr, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@tcp("+addr+")/"+mariadbtest.Database+params)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func run(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
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
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// takes takes a lock and releases it.
func takes(t testing.TB, l locker.Locker) error {
	t.Helper()
	lease, err := l.TryLock(t.Context(), "taken")
	if err != nil {
		return err
	}
	return lease.Unlock(context.WithoutCancel(t.Context()))
}

// wantUnavailable checks that err is that of a store that is unavailable, and says what to do.
func wantUnavailable(t testing.TB, when string, err error, text string) {
	t.Helper()
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, expected ErrUnavailable and %q", when, err, text)
	}
}

// eventually waits until ok returns nil.
func eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// sets numbers the sets of locks of tests that share a server.
var sets atomic.Int64

func newPrefix() string { return fmt.Sprintf("%d:", sets.Add(1)) }

// newTable makes a table of its own for a test that needs names that no other test has.
func newTable(t testing.TB, db *sql.DB) (name string) {
	t.Helper()
	table := fmt.Sprint("records", sets.Add(1))
	if err := mysqllock.Migrate(t.Context(), db, mysqllock.Table(table)); err != nil {
		t.Fatal(err)
	}
	return table
}

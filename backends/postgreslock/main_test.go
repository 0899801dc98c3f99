package postgreslock_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/testserver"
)

// TestMain runs the tests, or is a process that some of them stop or kill.
func TestMain(m *testing.M) {
	if url := os.Getenv(workerEnv); url != "" {
		workers, _ := strconv.Atoi(os.Getenv(workersEnv))
		playWorker(url, os.Getenv(careEnv), workers)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		testserver.RemoveLibraries()
		os.Exit(code)
	}))
}

// prefixes numbers the stores of tests that share a server.
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("%d:", prefixes.Add(1)) }

// migrated starts a server with the tables of locks.
func migrated(t testing.TB, settings ...string) *pgtest.Server {
	t.Helper()
	s := pgtest.Start(t, settings...)
	migrate(t, s)
	return s
}

func migrate(t testing.TB, s *pgtest.Server) {
	t.Helper()
	if _, err := postgreslock.Migrate(t.Context(), pool(t, s.URL("postgres"))); err != nil {
		t.Fatal(err)
	}
}

// pool connects to a server until the end of the test.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// run executes a statement.
func run(t testing.TB, p *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	for {
		_, err := p.Exec(context.WithoutCancel(t.Context()), sql, args...)
		if err != nil && strings.Contains(err.Error(), "tuple concurrently updated") {
			continue // another test changes rights of the same functions
		}
		if err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		return
	}
}

// texts returns the first column of a query.
func texts(t testing.TB, p *pgxpool.Pool, sql string, args ...any) (all []string) {
	t.Helper()
	rows, err := p.Query(context.WithoutCancel(t.Context()), sql, args...)
	if err != nil {
		t.Errorf("%s: %v", sql, err)
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Errorf("%s: %v", sql, err)
	}
	return all
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// world is a database behind PgBouncer, and the locks of its migrations.
type world struct {
	*testing.T
	tool    string
	bouncer string // the URL of the database, behind PgBouncer
	locks   string // the URL of the locks; empty: those of the tool
	pool    *pgxpool.Pool
}

func newWorld(t *testing.T, tool string) *world {
	t.Helper()
	server := pgtest.Start(t)
	w := &world{T: t, tool: tool, pool: connect(t, server.URL("postgres"))}
	w.bouncer = pgtest.NewBouncer(t, server).URL("transaction")
	if _, err := w.pool.Exec(t.Context(), "CREATE TABLE ran (version int)"); err != nil {
		t.Fatal(err)
	}
	return w
}

// startTwo starts two instances. They have not begun to migrate.
func (w *world) startTwo(marked bool) (first, second *instance.Process) {
	w.Helper()
	args := []string{w.tool, w.bouncer + "&default_query_exec_mode=simple_protocol", w.locks, fmt.Sprint(marked)}
	first, second = instance.Start(w.T, args...), instance.Start(w.T, args...)
	first.Says("ready")
	second.Says("ready")
	return first, second
}

// ran returns how often each migration has run.
func (w *world) ran() string {
	w.Helper()
	const query = "SELECT version || ': ' || count(*) FROM ran GROUP BY version ORDER BY version"
	rows, err := w.pool.Query(context.WithoutCancel(w.Context()), query)
	if err != nil {
		w.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.Fatal(err)
	}
	return strings.Join(all, ", ")
}

// mustHaveRun fails the test unless each migration has run so often.
func (w *world) mustHaveRun(want string) {
	w.Helper()
	if got := w.ran(); got != want {
		w.Errorf("the migrations have run so often: %s; want %s", got, want)
	}
}

// onStores runs f with each tool and each store of locks.
func onStores(t *testing.T, f func(w *world, s storeurl.Server)) {
	for tool := range tools {
		for store, start := range adapters.Servers() {
			t.Run(fmt.Sprintf("%s, locks on %s", tool, store), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, tool)
				url, s := start(t)
				w.locks = url
				f(w, s)
			})
		}
	}
}

func testEachMigrationRunsOnce(w *world) {
	w.Helper()
	first, second := w.startTwo(false)
	first.GoOn()
	first.Says("runs 1")
	second.GoOn()
	second.Says("asks")
	first.GoOn()
	first.Says("done")
	second.GoOn() // if it runs the first migration, too
	second.Says("done")
	w.mustHaveRun("1: 1, 2: 1")
}

func TestEachMigrationRunsOnce(t *testing.T) {
	onStores(t, func(w *world, _ storeurl.Server) { testEachMigrationRunsOnce(w) })
}

// The locks may be in the database that is migrated, behind the same PgBouncer.
func TestLocksBehindTheSamePgBouncer(t *testing.T) {
	for tool := range tools {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tool)
			w.locks = w.bouncer + "&default_query_exec_mode=exec"
			adapters.Migrate(t, w.locks)
			testEachMigrationRunsOnce(w)
		})
	}
}

// The tools' own locks belong to a connection, which PgBouncer gives to others between two transactions.
func TestTheToolsOwnLocksDoNotWorkBehindPgBouncer(t *testing.T) {
	for tool := range tools {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			first, second := newWorld(t, tool).startTwo(false)
			first.GoOn()
			first.Says("runs 1")
			second.GoOn()
			second.Says("runs 1") // although the first instance has not finished it
		})
	}
}

// goose runs a migration again whose process was killed. golang-migrate leaves that to people.
func TestAKilledMigration(t *testing.T) {
	onStores(t, func(w *world, _ storeurl.Server) {
		first, second := w.startTwo(true)
		first.GoOn()
		first.Says("runs 1")
		second.GoOn()
		second.Says("asks")
		first.Kill()
		if w.tool == "golang-migrate" {
			if text := second.Says("error: "); !strings.HasPrefix(text, "Dirty database version 1.") {
				w.Errorf("the second instance has ended with %s", text)
			}
			w.mustHaveRun("")
			return
		}
		second.Says("runs 1")
		second.GoOn()
		second.Says("done")
		w.mustHaveRun("1: 1, 2: 1")
	})
}

// An outage of the locks that takes longer than the TTL stops the migrations after the one that runs, or in it.
func TestAnOutageStopsMigrations(t *testing.T) {
	onStores(t, func(w *world, s storeurl.Server) {
		first, second := w.startTwo(true)
		first.GoOn()
		first.Says("runs 1")
		s.Kill()
		first.Says("ended: lock lost: expired")
		first.GoOn()
		if text := first.Says("error: "); !strings.Contains(text, "lock lost") {
			w.Errorf("the first instance has ended with %s", text)
		}
		s.Restart()
		done := map[string]string{"goose": "", "golang-migrate": "1: 1"}[w.tool]
		w.mustHaveRun(done)
		second.GoOn()
		if done == "" {
			second.Says("runs 1")
			second.GoOn()
		}
		second.Says("done")
		w.mustHaveRun("1: 1, 2: 1")
	})
}

package fences_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// The server has closed an idle connection, and the driver does not look. Calls of a *sql.DB hide that, too.
func TestClosedConnectionIsReplaced(t *testing.T) {
	d := postgres(t)
	fences := fence.SQL{Dialect: d.dialect}
	direct := d.open(t, fences)
	db := d.openRelayed(t, "postgres")
	var id int
	must(t, db.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&id))
	_, err := direct.ExecContext(t.Context(), fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", id))
	must(t, err)
	must(t, fences.InTx(t.Context(), db, hold(5), pay(nothing)))
	balanceIs(t, direct, 1)
}

// Numbers of rows may be as large as the database has them.
func TestLargeNumbersOfRows(t *testing.T) {
	for _, d := range []*database{postgres(t), mariadb(t), sqlite(t)} {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t, fence.SQL{Dialect: d.dialect})
			fences := fence.SQL{Dialect: d.dialect, Table: "numbered", Resource: "id", Rows: true}
			for _, statement := range []string{
				"DROP TABLE IF EXISTS numbered", "CREATE TABLE numbered (id bigint PRIMARY KEY, token bigint)",
				"INSERT INTO numbered VALUES (9007199254740993, 0), (9007199254740992, 0)",
			} {
				_, err := db.ExecContext(t.Context(), statement)
				must(t, err)
			}
			for i, row := range []string{"9007199254740992", "9007199254740993"} {
				h := fence.Hold{Resource: row, Token: uint64(5 - i)}
				must(t, fences.InTx(t.Context(), db, []fence.Hold{h}, func(context.Context, *sql.Tx) error { return nil }))
			}
		})
	}
}

// The table has transactions, whatever the server's default is.
func TestTableHasTransactions(t *testing.T) {
	d := ofMariaDB(t, "MariaDB", "default-storage-engine=MyISAM")
	db := d.open(t, fence.SQL{Dialect: d.dialect})
	var engine string
	must(t, db.QueryRowContext(t.Context(),
		"SELECT engine FROM information_schema.tables WHERE table_name = 'fence'").Scan(&engine))
	if engine != "InnoDB" {
		t.Error(engine)
	}
}

// SQLite without a write-ahead log: readers keep writers from committing.
func TestReaderKeepsSQLiteFromCommitting(t *testing.T) {
	d := sqlite(t)
	d.source = "file:" + filepath.Join(t.TempDir(), "db")
	fences := fence.SQL{Dialect: d.dialect}
	db := d.open(t, fences)
	reading := func() (end func()) {
		tx, err := db.BeginTx(t.Context(), nil)
		must(t, err)
		_, err = read(t.Context(), tx)
		must(t, err)
		return func() { must(t, tx.Rollback()) }
	}
	end := reading()
	if err := fences.Enter(t.Context(), db, hold(5)...); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("entered beside a reader: %v", err)
	}
	end()
	tries := 0
	must(t, fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		if tries++; tries == 1 {
			end = reading()
			time.AfterFunc(30*time.Millisecond, end)
		}
		return write(ctx, tx, n+1)
	}))
	balanceIs(t, db, 1)
	must(t, fences.InTx(t.Context(), db, hold(5), pay(nothing)))
	if tries < 2 {
		t.Error("the reader kept nobody from committing")
	}
}

// Drivers send arguments in different ways, also by way of a PgBouncer.
func TestWaysToSendStatements(t *testing.T) {
	pg, maria := pgtest.Start(t), mariadb(t)
	url, bouncer := pg.URL("postgres"), pgtest.NewBouncer(t, pg).URL("transaction")
	const mode = "&default_query_exec_mode="
	for name, d := range map[string]database{
		"pgx, exec":            {driver: "pgx", source: url + mode + "exec", dialect: fence.PostgreSQL},
		"pgx, simple protocol": {driver: "pgx", source: url + mode + "simple_protocol", dialect: fence.PostgreSQL},
		"pgx, PgBouncer":       {driver: "pgx", source: bouncer + mode + "exec", dialect: fence.PostgreSQL},
		"pq":                   {driver: "postgres", source: url, dialect: fence.PostgreSQL},
		"interpolated":         {driver: "mysql", source: maria.source + "?interpolateParams=true", dialect: fence.MySQL},
	} {
		t.Run(name, func(t *testing.T) {
			fences := fence.SQL{Dialect: d.dialect}
			db := d.open(t, fences)
			must(t, fences.InTx(t.Context(), db, hold(5), pay(nothing)))
			is(t, fences.InTx(t.Context(), db, hold(4), pay(nothing)), fence.ErrStale)
			is(t, fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, _ *sql.Tx) error {
				return fences.Enter(ctx, db, hold(6)...)
			}), fence.ErrStale)
			fences.Table, fences.Resource, fences.Rows = "account", "id", true
			must(t, fences.InTx(t.Context(), db, []fence.Hold{{Resource: "42", Token: 5}}, pay(nothing)))
			balanceIs(t, db, 2)
		})
	}
}

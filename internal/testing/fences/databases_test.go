package fences_test

import (
	"bufio"
	"bytes"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

// database is a database server, and how a test reaches it.
type database struct {
	name      string
	driver    string
	source    string
	relayed   string // the source by way of relay
	relay     *relay // nil if the database is no server
	dialect   fence.Dialect
	isolation []sql.IsolationLevel
}

// each runs the test on every database, with each of the levels of isolation that programs use there.
func each(t *testing.T, test func(t *testing.T, d *database, fences fence.SQL)) {
	for _, start := range []func(t *testing.T) *database{postgres, mariadb, snapshots, sqlite} {
		d := start(t)
		for _, level := range d.isolation {
			t.Run(d.name+"/"+level.String(), func(t *testing.T) {
				test(t, d, fence.SQL{Dialect: d.dialect, Isolation: level})
			})
		}
	}
}

// refuses reports whether the database rolls back a transaction that changes what was changed since it was read.
func (d *database) refuses(level sql.IsolationLevel) bool {
	return level != sql.LevelReadCommitted && d.name != "MariaDB"
}

func postgres(t *testing.T) *database {
	s := pgtest.Start(t)
	r := newRelay(t, s.Socket())
	return &database{
		"PostgreSQL", "pgx", s.URL("postgres"), "postgres://postgres@" + r.Addr() + "/postgres?sslmode=disable", r,
		fence.PostgreSQL, []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable},
	}
}

func mariadb(t *testing.T) *database {
	return ofMariaDB(t, "MariaDB", "innodb-snapshot-isolation=OFF", sql.LevelRepeatableRead, sql.LevelReadCommitted)
}

// snapshots is a MariaDB that refuses to change what was changed since the snapshot.
func snapshots(t *testing.T) *database {
	return ofMariaDB(t, "MariaDB with snapshot isolation", "innodb-snapshot-isolation=ON", sql.LevelRepeatableRead)
}

func ofMariaDB(t *testing.T, name, setting string, isolation ...sql.IsolationLevel) *database {
	s := mariadbtest.Start(t, setting)
	r := newRelay(t, s.Addr())
	source := func(addr string) string { return "root@tcp(" + addr + ")/" + mariadbtest.Database }
	return &database{name, "mysql", source(s.Addr()), source(r.Addr()), r, fence.MySQL, isolation}
}

func sqlite(t *testing.T) *database {
	pragmas := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(wal)", "synchronous(off)"}}
	source := "file:" + filepath.Join(t.TempDir(), "db") + "?" + pragmas.Encode()
	return &database{"SQLite", "sqlite", source, source, nil, fence.SQLite, []sql.IsolationLevel{sql.LevelDefault}}
}

// relay stands between programs and a server. What it does to a request that commits is what a pause of the program
// does between its last statement and the COMMIT, and what a network does.
type relay struct {
	*testserver.Relay
	commits func(request []byte) bool
	lose    func() bool          // whether the answer to the next COMMIT is lost
	late    func() time.Duration // how late it arrives
}

func newRelay(t *testing.T, server string) *relay { return newRelayOf(t, server, isCommit) }

func isCommit(request []byte) bool {
	return bytes.HasSuffix(bytes.ToLower(bytes.TrimRight(request, "\x00")), []byte("commit"))
}

func newRelayOf(t *testing.T, server string, commits func([]byte) bool) *relay {
	r := &relay{
		commits: commits, lose: func() bool { return false }, late: func() time.Duration { return 0 },
	}
	r.Relay = testserver.NewRelay(t, server, r.connection)
	return r
}

func (r *relay) connection() (requests, replies testserver.Side) {
	lost := false
	read := testserver.Chunks()
	requests.Read = func(from *bufio.Reader) ([]byte, error) {
		b, err := read(from)
		if r.commits(b) {
			var late time.Duration
			r.Set(func() { lost, late = r.lose(), r.late() })
			time.Sleep(late)
		}
		return b, err
	}
	replies.Read = testserver.Chunks()
	replies.Decide = func([]byte) testserver.Action {
		if lost {
			return testserver.Cut
		}
		return testserver.Pass
	}
	return requests, replies
}

// openRelayed opens the database by way of the relay, with a driver.
func (d *database) openRelayed(t testing.TB, driver string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, d.relayed)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// open opens the database, and makes the table of fences and one account with a balance of 0.
func (d *database) open(t testing.TB, fences fence.SQL) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, d.source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, statement := range []string{
		"DROP TABLE IF EXISTS fence", "DROP TABLE IF EXISTS account", fences.Create(),
		"CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL, token bigint)",
		"INSERT INTO account VALUES (42, 0, NULL)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}

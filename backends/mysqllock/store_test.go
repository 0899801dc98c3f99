package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/record"
)

// What is documented: a read and a write, or only the write if this client has released the lock last.
func testRoundTrips(t *testing.T, s *mariadbtest.Server) {
	relay := mariadbtest.NewRelay(t, s)
	url := relay.URL(mariadbtest.Database) + "?prefix=" + newPrefix()
	first, second := open(t, url), open(t, url)
	for _, step := range []struct {
		when string
		l    locker.Locker
		want map[string]int
	}{
		{"the first lock", first, map[string]int{"SELECT": 2, "INSERT": 1, "UPDATE": 1}},
		{"a lock after a lock of the same client", first, map[string]int{"UPDATE": 2}},
		{"a lock after a lock of another client", second, map[string]int{"SELECT": 1, "UPDATE": 2}},
	} {
		relay.Sent()
		if err := takes(t, step.l); err != nil {
			t.Fatal(err)
		}
		seen := relay.Sent()
		delete(seen, "SET") // with each connection
		delete(seen, "SHOW")
		if !maps.Equal(seen, step.want) {
			t.Errorf("%s: %v, expected %v", step.when, seen, step.want)
		}
	}
}

// Processes that look once take the lock of a holder that has crashed, by the server's clock, whatever the time zones
// of their sessions. Each answer tells the time.
func testServerClock(t *testing.T, s *mariadbtest.Server) {
	const ttl, skew = 300 * time.Millisecond, 200 * time.Millisecond
	prefix := newPrefix()
	dbs := []*sql.DB{
		pool(t, s.URL(mariadbtest.Database)), raw(t, s.Addr(), "?time_zone=%27%2B09%3A00%27"),
		raw(t, s.Addr(), "?time_zone=%27-07%3A00%27&parseTime=true&interpolateParams=true"),
	}
	try := func(n int) (backend.Grant, error) {
		b := record.NewBackend(mysqllock.NewStore(dbs[n%len(dbs)]), record.Prefix(prefix), record.ClockSkew(skew))
		defer b.Close()
		return b.Acquire(t.Context(), backend.Request{Key: "k", Token: backend.NewToken(), TTL: ttl})
	}
	for n := range 2 * len(dbs) { // each takes the lock of the one before, which has crashed
		start := time.Now()
		var held *locker.HeldError
		for {
			_, err := try(n)
			if err == nil {
				break
			}
			if !errors.As(err, &held) || held.Seen != 0 || held.Remaining > ttl+2*skew {
				t.Fatalf("%#v", err)
			}
		}
		if took := time.Since(start); n > 0 && (held == nil || took > time.Minute) {
			t.Errorf("after %v: %v", took, held)
		}
	}
	var text string
	err := dbs[0].QueryRow("SELECT record FROM locker_records WHERE name = ?", record.NameOf(prefix+"k")).Scan(&text)
	if err != nil || !strings.Contains(text, `"clock":"utc"`) {
		t.Errorf("%v, the record is %s", err, text)
	}
}

// Without it, a lock would be granted although another statement on the connection, or its end, takes it back.
func testAutocommit(t *testing.T, s *mariadbtest.Server) {
	l := record.New(mysqllock.NewStore(raw(t, s.Addr(), "?autocommit=0")))
	defer l.Close()
	wantUnavailable(t, "TryLock without autocommit", takes(t, l), "autocommit is off")
}

// In a table to which somebody has added a column of numbers, the answer to an INSERT has the number of the row. It is
// no time, so the lock is written again, by an UPDATE.
func testNumbersOfRowsAreNoTimes(t *testing.T, s *mariadbtest.Server) {
	db := raw(t, s.Addr(), "")
	db.SetMaxOpenConns(1) // and so one session, which counts
	run(t, db, "CREATE TABLE numbered (id BIGINT NOT NULL AUTO_INCREMENT UNIQUE, name VARBINARY(255) NOT NULL "+
		"PRIMARY KEY, version VARBINARY(32) NOT NULL, record BLOB NOT NULL) ENGINE=InnoDB")
	b := record.NewBackend(mysqllock.NewStore(db, mysqllock.Table("numbered")))
	req := backend.Request{Key: "k", Token: backend.NewToken(), TTL: 10 * time.Second}
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	var name string
	var updates int
	if err := db.QueryRow("SHOW SESSION STATUS LIKE 'Com_update'").Scan(&name, &updates); err != nil || updates != 1 {
		t.Errorf("%d updates, %v; want 1", updates, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// A version that is rolled back later must not be seen, whatever the isolation level.
func testNothingUncommittedIsRead(t *testing.T, s *mariadbtest.Server) {
	db := raw(t, s.Addr(), "?tx_isolation=%27READ-UNCOMMITTED%27")
	store := mysqllock.NewStore(db)
	version, err := store.Create(t.Context(), "dirty", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE locker_records SET version = 'other' WHERE version = ?", version); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, seen, err := store.Get(ctx, "dirty"); err == nil && seen != version {
		t.Errorf("Get has read the version %q, which is not committed", seen)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, seen, err := store.Get(t.Context(), "dirty"); err != nil || seen != version {
		t.Errorf("Get: %q, %v, expected the version %q", seen, err, version)
	}
}

// A row that was deleted and made again has another version: a late request for the former one must not match it.
func testVersionsDoNotComeBack(t *testing.T, s *mariadbtest.Server) {
	const name = "versions"
	db := pool(t, s.URL(mariadbtest.Database))
	store := mysqllock.NewStore(db)
	former, err := store.Create(t.Context(), name, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("DELETE FROM locker_records WHERE name = ?", name); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(t.Context(), name, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Replace(t.Context(), name, former, []byte("{}")); !errors.Is(err, record.ErrConflict) {
		t.Errorf("Replace of a version before a deletion: %v, expected a conflict", err)
	}
}

func testMissingTable(t *testing.T, s *mariadbtest.Server) {
	run(t, pool(t, s.URL(mariadbtest.Database)), "CREATE DATABASE fresh")
	l := open(t, s.URL("fresh"))
	err := takes(t, l)
	statement := strings.TrimSuffix(mysqllock.MigrationSQL(), ";\n")
	wantUnavailable(t, "TryLock without a table", err, statement)
	db := pool(t, s.URL("fresh"))
	run(t, db, statement)
	if err := mysqllock.Migrate(t.Context(), db); err != nil {
		t.Errorf("Migrate of a table that exists: %v", err)
	}
	if err := takes(t, l); err != nil {
		t.Error(err)
	}
	var engine string
	err = db.QueryRow("SELECT engine FROM information_schema.tables WHERE table_schema = 'fresh'").Scan(&engine)
	if err != nil || engine != "InnoDB" {
		t.Errorf("the engine is %q, %v", engine, err)
	}
}

func testTables(t *testing.T, s *mariadbtest.Server) {
	db := pool(t, s.URL(mariadbtest.Database))
	var stores []*mysqllock.Store
	for _, name := range []string{"", "a `b` \"c\""} {
		if err := mysqllock.Migrate(t.Context(), db, mysqllock.Table(name)); err != nil {
			t.Fatal(err)
		}
		stores = append(stores, mysqllock.NewStore(db, mysqllock.Table(name)))
	}
	for _, store := range stores {
		if _, err := store.Create(t.Context(), "tables", []byte("{}")); err != nil {
			t.Error(err)
		}
	}
	run(t, db, "CREATE TABLE another (name INT)")
	_, err := mysqllock.NewStore(db, mysqllock.Table("another")).Create(t.Context(), "k", []byte("{}"))
	if err == nil || !strings.Contains(err.Error(), "not one of locks") {
		t.Errorf("Create in another table: %v", err)
	}
}

// The statement of the page deletes the records of locks that nobody has had for two days.
func testOldRecordsAreDeleted(t *testing.T, s *mariadbtest.Server) {
	page, err := os.ReadFile("../../docs/backends/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statement, _ := strings.Cut(string(page), "```sql\n")
	statement, _, _ = strings.Cut(statement, "```")
	db := pool(t, s.URL(mariadbtest.Database))
	store := mysqllock.NewStore(db, mysqllock.Table("old"))
	if err := mysqllock.Migrate(t.Context(), db, mysqllock.Table("old")); err != nil {
		t.Fatal(err)
	}
	day := func(ago int) int64 { return time.Now().AddDate(0, 0, -ago).UnixMicro() }
	for name, text := range map[string]string{
		"unused": `"state":"free","last":` + fmt.Sprint(day(3)), "yesterday": `"state":"free","last":` + fmt.Sprint(day(1)),
		"ahead": `"state":"free","last":` + fmt.Sprint(day(-9)),
		"held":  `"state":"held","owner":"o","length_ms":1000,"token":1,"last":` + fmt.Sprint(day(3)),
	} {
		if _, err := store.Create(t.Context(), name, []byte(`{"locker":1,"nonce":"n",`+text+`}`)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, db, strings.Replace(statement, mysqllock.DefaultTable, "old", 1))
	for name, want := range map[string]bool{"unused": false, "yesterday": true, "ahead": true, "held": true} {
		if _, version, err := store.Get(t.Context(), name); err != nil || (version != "") != want {
			t.Errorf("%s: there is a record: %v, %v; want %v", name, version != "", err, want)
		}
	}
	l := record.New(store)
	defer func() { _ = l.Close() }()
	lease, err := l.TryLock(t.Context(), "unused")
	if err != nil || int64(lease.Fence()) <= day(3) {
		t.Errorf("after the deletion: %v, %v", lease, err)
	}
}

// The rights that are documented are enough.
func testRights(t *testing.T, s *mariadbtest.Server) {
	db := pool(t, s.URL(mariadbtest.Database))
	run(t, db, "CREATE USER careful@'127.0.0.1'", "CREATE USER nobody@'127.0.0.1'",
		"GRANT SELECT, INSERT, UPDATE ON locker.locker_records TO careful@'127.0.0.1'",
		"GRANT SELECT ON locker.locker_records TO nobody@'127.0.0.1'")
	url := "@" + s.Addr() + "/" + mariadbtest.Database + "?prefix=" + newPrefix()
	if err := takes(t, open(t, "mysql://careful"+url)); err != nil {
		t.Error(err)
	}
	wantUnavailable(t, "TryLock of a user who may only read", takes(t, open(t, "mysql://nobody"+url)),
		"SELECT, INSERT and UPDATE")
}

// Package sql connects for callers that wait for a connection, and has no deadline. Such an attempt must not keep its
// place for ever.
func testCallersThatWaitForAConnection(t *testing.T, s *mariadbtest.Server) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and nobody greets
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	relay := mariadbtest.NewRelay(t, s)
	db := pool(t, relay.URL(mariadbtest.Database)+"?max_conns=1&timeout=1s")
	store := mysqllock.NewStore(db)
	get := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, _, err := store.Get(ctx, "k")
		return err
	}
	relay.To(silent.Addr().String())
	var first sync.WaitGroup
	first.Go(func() { _ = get(300 * time.Millisecond) }) // it connects by itself
	eventually(t, "the first call connects", func() error {
		if db.Stats().OpenConnections == 0 {
			return errors.New("it does not yet")
		}
		return nil
	})
	if err := get(600 * time.Millisecond); err == nil {
		t.Error("Get from nobody has succeeded")
	}
	first.Wait()
	relay.To(s.Addr())
	eventually(t, "Get from the server", func() error { return get(time.Second) })
}

func testWrongPassword(t *testing.T, s *mariadbtest.Server) {
	root := "mysql://root@" + s.Addr() + "/"
	for url, want := range map[string]string{
		strings.Replace(root, "@", ":wrong@", 1) + mariadbtest.Database: "check the user and the password",
		root + "missing":                     "name a database that exists",
		"mysqls://root@" + s.Addr() + "/x":   "does not support TLS",
		"mysql://root@" + unused(t) + "/app": "connection refused",
	} {
		wantUnavailable(t, url, takes(t, open(t, url)), want)
	}
}

// unused returns an address at which nobody listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A server becomes a replica, and its name points to its successor. Connections that are left refuse reads, too, which
// could be stale, and are replaced.
func testDemotedServer(t *testing.T, successor *mariadbtest.Server) {
	old := migrated(t)
	for _, s := range []*mariadbtest.Server{old, successor} {
		db := pool(t, s.URL(mariadbtest.Database))
		run(t, db, "CREATE USER app@'127.0.0.1'", "GRANT SELECT, INSERT, UPDATE ON locker.* TO app@'127.0.0.1'")
	}
	relay := mariadbtest.NewRelay(t, old)
	l := open(t, "mysql://app@"+relay.Addr()+"/"+mariadbtest.Database+"?max_conns=1&prefix="+newPrefix())
	lease, err := l.TryLock(t.Context(), "k", locker.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	run(t, pool(t, old.URL(mariadbtest.Database)), "SET GLOBAL read_only = ON")
	wantUnavailable(t, "Verify on a replica", locker.Verify(t.Context(), lease), "name the primary")
	wantUnavailable(t, "TryLock on a replica", takes(t, l), "name the primary")
	relay.To(successor.Addr())
	eventually(t, "TryLock on the successor", func() error { return takes(t, l) })
	if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("Unlock on a successor that lacks the lock: %v", err)
	}
}

// A user who may write on a server that is read only, such as root, gets no lock there, whenever it becomes read only,
// and the reads of such a server prove nothing.
func testPrivilegedUsersOfAReplica(t *testing.T, _ *mariadbtest.Server) {
	s := migrated(t)
	db := pool(t, s.URL(mariadbtest.Database))
	for _, params := range []string{"", "?interpolateParams=true"} {
		own := raw(t, s.Addr(), params)
		store := mysqllock.NewStore(own, mysqllock.Table(newTable(t, db)))
		version, err := store.Create(t.Context(), "k", []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			run(t, db, "SET GLOBAL read_only = ON")
			for what, call := range map[string]func() error{
				"Get":            func() error { _, _, err := store.Get(t.Context(), "k"); return err },
				"Get of nothing": func() error { _, _, err := store.Get(t.Context(), "l"); return err },
				"Create":         func() error { _, err := store.Create(t.Context(), "l", []byte("{}")); return err },
				"Replace": func() error {
					_, err := store.Replace(t.Context(), "k", version, []byte("{}"))
					return err
				},
				"Replace of a wrong text": func() error {
					_, err := store.Replace(t.Context(), "k", "no", []byte("{}"))
					return err
				},
			} {
				err := call()
				if err == nil || errors.Is(err, record.ErrConflict) || !strings.Contains(err.Error(), "name the primary") {
					t.Errorf("%s on a server that is read only: %v", what, err)
				}
			}
			run(t, db, "SET GLOBAL read_only = OFF")
			if version, err = store.Replace(t.Context(), "k", version, []byte("{}")); err != nil {
				t.Error(err)
			}
		}
		if _, seen, err := store.Get(t.Context(), "l"); err != nil || seen != "" {
			t.Errorf("what was refused: %q, %v", seen, err)
		}
	}
}

// A server does not notice that a request was given up that waits for a row. Its session ends soon nevertheless, so
// that those who wait for a lock do not use up the connections of the server while somebody's transaction is open.
func testSessionsThatWaitForARowEnd(t *testing.T, s *mariadbtest.Server) {
	db := pool(t, s.URL(mariadbtest.Database))
	table := newTable(t, db)
	if _, err := mysqllock.NewStore(db, mysqllock.Table(table)).Create(t.Context(), "k", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	name := strings.Fields(mysqllock.MigrationSQL(mysqllock.Table(table)))[5]
	tx, err := raw(t, s.Addr(), "").BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE " + name + " SET version = 'other'"); err != nil {
		t.Fatal(err)
	}
	store := mysqllock.NewStore(pool(t, s.URL(mariadbtest.Database)), mysqllock.Table(table))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, err := store.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get with a short context: %v", err)
	}
	eventually(t, "the session has ended", func() error { // by default, it waits for 50 seconds
		var n int
		err := db.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE ? AND id <> CONNECTION_ID()",
			"SELECT%"+name+"%FOR UPDATE").Scan(&n)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d sessions wait", n)
		}
		return err
	})
	_, _, err = store.Get(t.Context(), "k")
	if err == nil || !strings.Contains(err.Error(), "look for a transaction that is not committed") {
		t.Errorf("Get while a transaction has the row: %v", err)
	}
}

// If the network has forgotten the connections, that costs one request, and not one for each connection.
func testForgottenConnectionsCostOneRequest(t *testing.T, s *mariadbtest.Server) {
	const many = 6
	relay := mariadbtest.NewRelay(t, s)
	l := open(t, relay.URL(mariadbtest.Database)+"?timeout=20s&prefix="+newPrefix())
	try := func(key string, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := l.TryLock(ctx, key, locker.TTL(time.Hour))
		return err
	}
	resume := relay.Hang()
	done := make(chan error, many)
	for i := range many {
		go func() { done <- try(fmt.Sprint("warm", i), time.Minute) }()
	}
	for relay.Connections() < many {
		<-time.After(time.Millisecond)
	}
	resume()
	for range many {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	relay.Strand()
	if err := try("first", 200*time.Millisecond); err == nil {
		t.Fatal("a request on a connection that is lost was answered")
	}
	if err := try("second", 20*time.Second); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

// A caller whose context ends soon, or that waits while others are answered, costs no connections of others.
func testCallersThatLeaveCostNoConnections(t *testing.T, _ *mariadbtest.Server) {
	const many = 6
	s := migrated(t)
	direct, relay, prefix := pool(t, s.URL(mariadbtest.Database)), mariadbtest.NewRelay(t, s), newPrefix()
	l := open(t, relay.URL(mariadbtest.Database)+"?timeout=1m&prefix="+prefix)
	warm := func() (sessions []string) {
		t.Helper()
		done, resume := make(chan error, many), relay.Hang()
		for i := range many {
			go func() {
				lease, err := l.TryLock(t.Context(), fmt.Sprint("warm", i))
				if err == nil {
					err = lease.Unlock(t.Context())
				}
				done <- err
			}()
		}
		for relay.Connections() < many {
			<-time.After(time.Millisecond)
		}
		resume()
		for range many {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		found, err := direct.Query("SELECT id FROM information_schema.processlist " +
			"WHERE user = 'root' AND id <> CONNECTION_ID()")
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		for found.Next() {
			var id string
			if err := found.Scan(&id); err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, id)
		}
		return sessions
	}
	if err := takes(t, l); err != nil {
		t.Fatal(err)
	}
	before := warm()
	stay := func(what string) {
		t.Helper()
		after := warm()
		n := 0
		for _, id := range before {
			if slices.Contains(after, id) {
				n++
			}
		}
		if n < many-1 {
			t.Errorf("%s: %d of %d sessions have stayed", what, n, len(before))
		}
		before = after
	}

	resume := relay.Hang()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.TryLock(short, "short"); err == nil {
		t.Error("a request that hangs was answered")
	}
	resume()
	stay("a short context")

	lease, err := l.TryLock(t.Context(), "row")
	if err == nil {
		err = lease.Unlock(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	tx, err := direct.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("UPDATE locker_records SET version = 'other' WHERE name = ?",
		record.NameOf(prefix+"row")); err != nil {
		t.Fatal(err)
	}
	ctx := &expiring{t.Context(), make(chan struct{})}
	waits := make(chan error, 1)
	go func() {
		_, err := l.TryLock(ctx, "row")
		waits <- err
	}()
	eventually(t, "the request waits for the row", func() error {
		var n int
		err := direct.QueryRow("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'").Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("no")
		}
		return err
	})
	if err := takes(t, l); err != nil {
		t.Fatal(err)
	}
	close(ctx.done)
	if err := <-waits; err == nil {
		t.Error("a request that waits for a row was answered")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	stay("a wait for a row")
}

// expiring is a context whose deadline comes when done is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e *expiring) Done() <-chan struct{} { return e.done }

func (e *expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Whatever a server does to a Client, the Client has locks again when the server lets it, and the lock that it holds.
func TestNoStateIsFinal(t *testing.T) {
	t.Parallel()
	s := migrated(t, "autocommit=0") // a default that connections of a configuration do not depend on
	admin := pool(t, s.URL(mariadbtest.Database))
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "one\n")
	run(t, admin, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'one'",
		"GRANT SELECT, INSERT, UPDATE ON locker.* TO app@'127.0.0.1'")
	l := open(t, "mysql://app@"+s.Addr()+"/"+mariadbtest.Database+"?password_file="+file)
	works := func(after string) {
		t.Helper()
		eventually(t, "locks after "+after, func() error { return takes(t, l) })
	}
	held, err := l.TryLock(t.Context(), "held", locker.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}

	s.Kill()
	wantUnavailable(t, "TryLock without a server", takes(t, l), "connection refused")
	s.Restart()
	works("a restart")

	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := l.TryLock(ctx, "taken"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryLock while the server hangs: %v, expected that its context has ended", err)
	}
	s.Resume()
	works("a pause")

	run(t, admin, "SET PASSWORD FOR app@'127.0.0.1' = PASSWORD('two')")
	_, _ = admin.Exec("KILL USER app") // fails if the user has no connections
	eventually(t, "the old password is refused", func() error {
		if err := takes(t, l); err == nil || !strings.Contains(err.Error(), "check the user and the password") {
			return errors.Join(errors.New("it is not"), err)
		}
		return nil
	})
	write(t, file, "two\n")
	works("the password file has followed")

	if err := locker.Verify(t.Context(), held); err != nil {
		t.Errorf("Verify: %v", err)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

// write replaces a file.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

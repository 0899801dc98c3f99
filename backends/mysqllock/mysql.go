// Package mysqllock keeps locks in a table of MySQL or MariaDB: a row for each, which [package record]
// replaces on the condition that its version is still the one that was read. It takes no locks of the server, such as
// those of GET_LOCK, which end with their connection.
//
//	l := record.New(mysqllock.NewStore(db), record.Prefix("lock:"))
//
// [Migrate] makes the table. Programs that are configured by a URL, such as mysql://user:password@host/database,
// import this package and use package config.
//
// [package record]: https://pkg.go.dev/github.com/golocker/locker/record
package mysqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/golocker/locker/record"
)

// DefaultTable is the name of the table, unless [Table] says otherwise.
const DefaultTable = "locker_records"

// Option changes what [NewStore] builds.
type Option func(*Store)

// Table sets the name of the table, in the database of the connections. Empty means DefaultTable.
func Table(name string) Option {
	return func(s *Store) {
		if name != "" {
			s.table = quoted(name)
		}
	}
}

// Store implements [record.Store]. It is safe for concurrent use.
type Store struct {
	db      *sql.DB
	table   string       // with its quotes
	allowed atomic.Bool  // the sessions are as they have to be
	leave   func()       // closes the connections that no request uses; nil if they are the caller's
	answers atomic.Int64 // how many requests were answered
}

// NewStore returns the Store of the rows of a table. The connections of db stay the caller's. On a Galera cluster,
// wsrep_sync_wait has to be 7. Without innodb_lock_wait_timeout=2 and lock_wait_timeout=2, which are parameters of the
// driver, too, sessions of requests that were given up go on for 50 seconds while a transaction has locked a row, and
// may use up the connections of the server. The parameter interpolateParams saves a round trip for each request.
//
// It sends nothing. The first request finds out whether the sessions commit each statement, and on Galera whether
// they wait for other nodes. If not, requests fail.
func NewStore(db *sql.DB, opts ...Option) *Store {
	s := &Store{db: db, table: quoted(DefaultTable)}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

func quoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// sql returns a statement about the table.
func (s *Store) sql(statement string) string { return strings.Replace(statement, "@table", s.table, 1) }

// Skew is by how much the clocks of a server and of its successor may differ, unless [record.ClockSkew] says otherwise,
// and by how much the clock of a server may be set while a lock is held.
const Skew = time.Second

// ServerClock implements [record.ServerClock].
func (s *Store) ServerClock() (resolution, skew time.Duration) { return time.Microsecond, Skew }

// micros is the time of the server when the statement has begun, in microseconds since 1970, whatever the time zone.
const micros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// telling is a condition that holds, and makes micros the id of the last row that the statement has inserted. So the
// answer to a write has it.
const telling = "LAST_INSERT_ID(" + micros + ") > 0"

// unfit is an expression that is 0 if the server may hold locks, and the number of an error otherwise. A server may
// become a replica at any time, so each statement has the expression.
//
// A server that is read only refuses the statements of most users, but not those of one who has the right to write
// there nevertheless: such a replica would grant locks beside its primary. MySQL's super_read_only switches read_only
// on, too.
//
// A binary log of statements would have the replicas execute the texts, and what unfit is there, where read_only is on:
// they would miss all writes, and once one is the primary, it would grant the locks again. The formats ROW and MIXED
// log the rows of a statement that has such variables.
const unfit = "CASE WHEN CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') THEN 1290 " +
	"WHEN CAST(@@global.log_bin AS CHAR) NOT IN ('0', 'OFF') AND @@session.binlog_format = 'STATEMENT' THEN 1598 " +
	"ELSE 0 END"

// refusal returns the error for a value of unfit, or nil. The number is the one with which the server answers others: a
// user who may not write, and a session whose isolation level needs the rows in the log.
func refusal(unfit uint16) error {
	switch unfit {
	case 0:
		return nil
	case logsStatements:
		return &client.MySQLError{Number: unfit, Message: "The binary log has statements, which replicas would skip"}
	}
	return &client.MySQLError{Number: unfit, Message: "The server is running with the option read_only"}
}

// Get implements [record.Store]. It locks the row for the moment, although it changes nothing. So it reads what was
// committed last, whatever the isolation level, and a replica that is read only refuses it. Proxies that send reads to
// replicas send it to the primary.
func (s *Store) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	err = s.use(ctx, func(c *sql.Conn) error {
		var reason uint16
		var now int64
		statement := s.sql("SELECT record, version, " + unfit + ", " + micros + " FROM @table WHERE name = ? FOR UPDATE")
		err := c.QueryRowContext(ctx, statement, []byte(name)).Scan(&text, &version, &reason, &now)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return s.fit(ctx, c)
		case err == nil:
			record.Tell(ctx, time.UnixMicro(now))
			return refusal(reason)
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return text, version, nil
}

// fit returns an error if the server may not hold locks.
func (s *Store) fit(ctx context.Context, c *sql.Conn) error {
	var reason uint16
	var now int64
	if err := c.QueryRowContext(ctx, "SELECT "+unfit+", "+micros).Scan(&reason, &now); err != nil {
		return err
	}
	record.Tell(ctx, time.UnixMicro(now))
	return refusal(reason)
}

// Create implements [record.Store].
func (s *Store) Create(ctx context.Context, name string, text []byte) (version string, err error) {
	version = rand.Text()
	err = s.use(ctx, func(c *sql.Conn) error {
		statement := s.sql("INSERT INTO @table (name, version, record) SELECT ?, ?, ? FROM DUAL WHERE 0 = " + unfit +
			" AND " + telling)
		n, err := rows(ctx)(c.ExecContext(ctx, statement, []byte(name), version, text))
		switch {
		case number(err) == duplicateKey:
			return record.ErrConflict
		case err == nil && n == 0:
			if err = s.fit(ctx, c); err == nil { // it may hold locks by now
				err = refusal(optionPrevents)
			}
		}
		return err
	})
	return version, err
}

// Replace implements [record.Store]. The number of rows is the same with and without clientFoundRows, because the
// version is always another one.
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	newVersion = rand.Text()
	err = s.use(ctx, func(c *sql.Conn) error {
		statement := s.sql("UPDATE @table SET version = ?, record = ? WHERE name = ? AND version = ? AND 0 = " + unfit +
			" AND " + telling)
		n, err := rows(ctx)(c.ExecContext(ctx, statement, newVersion, text, []byte(name), version))
		if err != nil || n > 0 {
			return err
		}
		if err := s.fit(ctx, c); err != nil {
			return err
		}
		return record.ErrConflict
	})
	return newVersion, err
}

// earliest is a time in 2001. What is smaller is the number of a row, in a table that somebody has given such a column.
const earliest = 1e15

// rows returns a function that returns how many rows a statement has changed. It tells the time in the answer.
func rows(ctx context.Context) func(result sql.Result, err error) (int64, error) {
	return func(result sql.Result, err error) (int64, error) {
		if err != nil {
			return 0, err
		}
		if now, err := result.LastInsertId(); err == nil && now > earliest {
			record.Tell(ctx, time.UnixMicro(now))
		}
		return result.RowsAffected()
	}
}

// tries is how often a request is sent that is rolled back by a deadlock. Nodes of Galera report one if another node
// has written the row first, about once in a hundred requests for a row that all want.
const tries = 5

// silence is for how long nothing has to be answered until the network may have forgotten the connections. Callers
// whose contexts end earlier learn nothing of it, and would have those of others made again.
const silence = 100 * time.Millisecond

// use calls request with a connection. It explains errors of the server.
func (s *Store) use(ctx context.Context, request func(c *sql.Conn) error) (err error) {
	began, answers := time.Now(), s.answers.Load()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return s.explain(err)
	}
	defer func() {
		_ = c.Close()
		switch end, bounded := ctx.Deadline(); {
		case err == nil, errors.Is(err, record.ErrConflict):
			s.answers.Add(1)
		case s.leave == nil, !errors.Is(err, context.DeadlineExceeded), bounded && end.Sub(began) < silence:
		case s.answers.Load() == answers:
			// The network may have forgotten this connection, and then the idle ones, too. If others were answered, the
			// request waits for a row, perhaps.
			s.leave()
		}
	}()
	if err = s.check(ctx, c); err != nil {
		return s.explain(err)
	}
	for range tries {
		if err = request(c); number(err) != deadlock {
			break
		}
	}
	if readOnly[number(err)] {
		// The server has become a replica, perhaps. A new connection may reach its successor.
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
	}
	return s.explain(err)
}

// syncWait is the value of wsrep_sync_wait with which a node of Galera answers no request before it has applied what
// was committed on other nodes: 1 for SELECT, 2 for UPDATE and 4 for INSERT. Without it, reads would be stale, and an
// UPDATE would find an old version, and report a conflict where there is none.
const syncWait = 7

// check returns an error if statements are not committed at once, or if a node of Galera would answer before it knows
// what other nodes have answered.
func (s *Store) check(ctx context.Context, c *sql.Conn) error {
	if s.allowed.Load() {
		return nil
	}
	found, err := c.QueryContext(ctx,
		"SHOW SESSION VARIABLES WHERE Variable_name IN ('autocommit', 'wsrep_on', 'wsrep_sync_wait')")
	if err != nil {
		return err
	}
	defer found.Close()
	seen := make(map[string]string)
	for found.Next() {
		var name, value string
		if err := found.Scan(&name, &value); err != nil {
			return err
		}
		seen[strings.ToLower(name)] = value
	}
	if err := found.Err(); err != nil {
		return err
	}
	waits, _ := strconv.Atoi(seen["wsrep_sync_wait"])
	switch {
	case seen["autocommit"] != "ON":
		return errors.New("autocommit is off: switch it on, as by the parameter autocommit=1 of the driver")
	case seen["wsrep_on"] == "ON" && waits&syncWait != syncWait:
		return fmt.Errorf("this is a Galera cluster, and reads may be stale: set wsrep_sync_wait=%d, as by a parameter "+
			"of the driver", syncWait)
	}
	s.allowed.Store(true)
	return nil
}

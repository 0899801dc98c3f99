package fence

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"regexp"
	"time"

	"github.com/golocker/locker"
)

// Dialect is the SQL of a database.
type Dialect string

// The dialects. MySQL is MariaDB's, too.
const (
	PostgreSQL Dialect = "postgresql"
	MySQL      Dialect = "mysql"
	SQLite     Dialect = "sqlite"
)

const usualIdle = 10 * time.Second

// SQL keeps the fences of resources in a database, through database/sql and any driver. Only Dialect is required. The
// table is [SQL.Create]'s, or one of the program, whose rows are the resources. A SQL may be copied and used by several
// goroutines.
type SQL struct {
	Dialect Dialect

	Table    string // "fence" if empty; may be "schema.table"
	Resource string // the column that names the resource; "resource" if empty
	Token    string // the column of the token, an integer of 64 bits, 0 or NULL at first; "token" if empty

	// Rows says that the rows of Table are the program's: who enters a resource without a row gets [sql.ErrNoRows].
	// Otherwise, entering makes the row.
	Rows bool

	// Isolation is that of the transactions of InTx; the database's default if zero.
	Isolation sql.IsolationLevel

	// Idle ends a transaction of InTx that does nothing for so long, as one whose process was stopped: it keeps what it
	// has written from the next holder. 10 s if zero, at least 1 s in MySQL, without limit if negative. A limit of the
	// session that is shorter stays. SQLite has none: who is stopped in a transaction keeps all writers out.
	Idle time.Duration
}

// Create returns the statement that makes the table, if it does not exist. It belongs in a migration: PostgreSQL may
// refuse one of two processes that execute it at the same time.
func (s SQL) Create() string {
	table, resource, token := s.names()
	kind, engine := "text", ""
	if s.Dialect == MySQL {
		kind, engine = "varbinary(512)", " ENGINE=InnoDB"
	}
	return "CREATE TABLE IF NOT EXISTS " + table + " (" + resource + " " + kind + " NOT NULL PRIMARY KEY, " +
		token + " bigint NOT NULL)" + engine
}

// InTx runs do in a transaction that is committed only if nobody with a greater token has entered one of the resources
// since. It enters them, begins the transaction, calls do, checks them, and commits, all on one connection of db. So
// what do reads is not older than the last write of the former holder, and stays as it is until the commit. Only what
// do does by tx is protected.
//
// do is called up to eight times, after the resources were entered again, if the database has rolled the
// transaction back because of another one (a serialization failure, a deadlock). So it must do nothing that cannot be
// repeated, return the errors of tx, and not end tx. If it returns an error or panics, the transaction is rolled back.
//
// Errors match [ErrStale], [ErrNotEntered], [ErrNoToken] or [ErrUnknown], locker.ErrInvalid for arguments that are
// wrong, or are those of do and of the database. Nothing was committed unless the error matches ErrUnknown. Then the
// answer to COMMIT was lost, or the transaction had ended before the check: by tx.Commit, or in MySQL by a deadlock
// that do has ignored, or a statement that commits, after which each statement is committed at once. A COMMIT that do
// executes as a statement of PostgreSQL is not noticed.
func (s SQL) InTx(
	ctx context.Context, db *sql.DB, holds []Hold, do func(ctx context.Context, tx *sql.Tx) error,
) error {
	connect := func(ctx context.Context) (Conn, error) {
		conn, err := db.Conn(ctx)
		return &ofSQL{statements: conn, conn: conn}, err
	}
	return s.Run(ctx, connect, holds, func(ctx context.Context, conn Conn) error { return do(ctx, conn.(*ofSQL).tx) })
}

// Enter raises the tokens of the resources, so that nobody with a smaller token passes Check any more. It returns
// [ErrStale] if a resource has seen a greater one. An equal one is that of the same holder.
//
// Use InTx if you can. Call Enter before the transaction that reads begins, and not on a replica: otherwise the
// transaction may read what was there before the last write of the former holder, which nothing notices.
func (s SQL) Enter(ctx context.Context, db *sql.DB, holds ...Hold) error {
	return s.EnterOn(ctx, &ofSQL{statements: db}, holds...)
}

// Check returns nil if the resources have been entered with these tokens, and by nobody since, and keeps others from
// entering until tx has ended. It returns [ErrStale] or [ErrNotEntered] otherwise: roll tx back.
//
// Use InTx if you can. Make Check the last statement before the commit, in the transaction that writes. Nothing notices
// a Check in another transaction, or one that comes early and keeps the next holder waiting.
func (s SQL) Check(ctx context.Context, tx *sql.Tx, holds ...Hold) error {
	return s.CheckOn(ctx, &ofSQL{statements: tx}, holds...)
}

var name = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

func (s SQL) valid(holds []Hold) ([]Hold, error) {
	switch s.Dialect {
	case PostgreSQL, MySQL, SQLite:
	default:
		return nil, fmt.Errorf("fence: the dialect %q is not PostgreSQL, MySQL or SQLite: %w", s.Dialect, locker.ErrInvalid)
	}
	table, resource, token := s.names()
	for _, n := range []string{table, resource, token} {
		if !name.MatchString(n) {
			return nil, fmt.Errorf("fence: %q is no name of a table or column: %w", n, locker.ErrInvalid)
		}
	}
	for _, h := range holds {
		if h.Token > math.MaxInt64 {
			return nil, fmt.Errorf("fence: %q: the token %d is greater than databases have numbers: %w",
				h.Resource, h.Token, locker.ErrInvalid)
		}
	}
	return sorted(holds)
}

func (s SQL) names() (table, resource, token string) {
	return cmp.Or(s.Table, "fence"), cmp.Or(s.Resource, "resource"), cmp.Or(s.Token, "token")
}

func (s SQL) enter(ctx context.Context, conn Conn, h Hold) error {
	table, resource, token := s.names()
	var raise string
	args := []any{h.Resource, int64(h.Token)}
	greater := map[Dialect]string{PostgreSQL: "greatest", MySQL: "greatest", SQLite: "max"}[s.Dialect]
	switch {
	case s.Dialect == MySQL && s.Rows:
		raise = "UPDATE " + table + " SET " + token + " = greatest(coalesce(" + token + ", 0), ?) WHERE " + resource + " = ?"
		args = []any{args[1], args[0]}
	case s.Dialect == MySQL:
		raise = "INSERT INTO " + table + " (" + resource + ", " + token + ") VALUES (?, ?) ON DUPLICATE KEY UPDATE " +
			token + " = greatest(" + token + ", ?)"
		args = append(args, args[1])
	case s.Rows:
		raise = "UPDATE " + table + " SET " + token + " = " + greater + "(coalesce(" + token + ", 0), $2) WHERE " +
			resource + " = $1 RETURNING " + token
	default:
		raise = "INSERT INTO " + table + " AS f (" + resource + ", " + token + ") VALUES ($1, $2) ON CONFLICT (" +
			resource + ") DO UPDATE SET " + token + " = " + greater + "(f." + token + ", excluded." + token +
			") RETURNING " + token
	}
	if s.Dialect == MySQL { // has no RETURNING
		if err := conn.Exec(ctx, raise, args...); err != nil {
			return err
		}
		raise, args = "SELECT "+token+" FROM "+table+" WHERE "+resource+" = ?", []any{h.Resource}
	}
	seen, err := conn.Tokens(ctx, raise, args...)
	switch {
	case err != nil:
		return fmt.Errorf("fence: entering %q: %w", h.Resource, err)
	case len(seen) == 0:
		return fmt.Errorf("fence: entering %q: %w", h.Resource, sql.ErrNoRows)
	}
	return h.compareRows(ctx, seen)
}

func (s SQL) check(ctx context.Context, conn Conn, holds []Hold) error {
	table, resource, token := s.names()
	// A locking read sees the token as it is, whatever the snapshot of the transaction, and nobody enters until the
	// commit. A database without one takes its lock by a write.
	look := "SELECT " + token + " FROM " + table + " WHERE " + resource + " = $1 FOR UPDATE"
	switch s.Dialect {
	case MySQL:
		look = "SELECT " + token + " FROM " + table + " WHERE " + resource + " = ? FOR UPDATE"
	case SQLite:
		look = "UPDATE " + table + " SET " + token + " = " + token + " WHERE " + resource + " = $1 RETURNING " + token
	}
	for _, h := range holds {
		seen, err := conn.Tokens(ctx, look, h.Resource)
		if err != nil {
			return fmt.Errorf("fence: checking %q: %w", h.Resource, err)
		}
		if err := h.compareRows(ctx, seen); err != nil {
			return err
		}
	}
	return nil
}

// compareRows compares the token of the hold with those of the rows of its resource.
func (h Hold) compareRows(ctx context.Context, seen []int64) error {
	if len(seen) > 1 {
		return fmt.Errorf("fence: %q has %d rows, and must have one: %w", h.Resource, len(seen), locker.ErrInvalid)
	}
	return h.compare(ctx, uint64(max(0, append(seen, 0)[0])))
}

func (s SQL) idle() time.Duration { return cmp.Or(s.Idle, usualIdle) }

// limitSession returns what limits how long the server of MySQL waits for the session's next statement, and what puts
// the former limit back.
func (s SQL) limitSession() (limit, back string) {
	if s.Dialect != MySQL || s.Idle < 0 {
		return "", ""
	}
	return "SET @fence_wait_timeout = @@SESSION.wait_timeout, " +
			fmt.Sprintf("SESSION wait_timeout = least(@@SESSION.wait_timeout, %d)", max(1, int(s.idle().Seconds()))),
		"SET SESSION wait_timeout = @fence_wait_timeout"
}

// first returns the first statement of the transaction: PostgreSQL gets a limit of how long it may do nothing. MySQL
// gets a savepoint, which the transaction has for as long as it lasts.
func (s SQL) first() string {
	switch {
	case s.Dialect == MySQL:
		return "SAVEPOINT fence"
	case s.Dialect != PostgreSQL || s.Idle < 0:
		return ""
	}
	const name = "'idle_in_transaction_session_timeout'"
	return fmt.Sprintf("SELECT set_config("+name+", '%dms', true) "+
		"WHERE current_setting("+name+")::interval NOT BETWEEN '1ms' AND '%[1]dms'",
		min(max(1, s.idle().Milliseconds()), math.MaxInt32))
}

package fence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"
)

const tries = 8 // of a transaction that the database rolls back

// Conn is a connection to a database by another package than database/sql: postgreslock.Fences uses those of pgx. Its
// methods are called one after the other. From Begin to Commit or Rollback, statements are part of a transaction, and
// fail with [sql.ErrTxDone] if somebody else has ended it.
type Conn interface {
	// Exec executes a statement without a result.
	Exec(ctx context.Context, statement string, args ...any) error

	// Tokens executes a statement, and returns the numbers in the first column of its rows. NULL is 0.
	Tokens(ctx context.Context, statement string, args ...any) ([]int64, error)

	// Begin begins a transaction, whose isolation is the database's default if level is 0.
	Begin(ctx context.Context, level sql.IsolationLevel) error

	// Commit ends the transaction. An error leaves open whether it was committed, unless the database says that it was
	// rolled back.
	Commit(ctx context.Context) error

	// Rollback undoes the transaction, if it has not ended.
	Rollback()

	// Close gives the connection back. If the session is not as it was, err is not nil, and nobody is to use it again.
	Close(err error)
}

// Run is [SQL.InTx] for another package than database/sql. It calls connect for each try, and do in the transaction of
// the connection.
func (s SQL) Run(
	ctx context.Context, connect func(context.Context) (Conn, error), holds []Hold, do func(context.Context, Conn) error,
) error {
	holds, err := s.valid(holds)
	if err != nil {
		return err
	}
	return again(ctx, func() error { return s.run(ctx, connect, holds, do) })
}

// EnterOn is [SQL.Enter] on a connection that has no transaction.
func (s SQL) EnterOn(ctx context.Context, conn Conn, holds ...Hold) error {
	holds, err := s.valid(holds)
	if err != nil {
		return err
	}
	for _, h := range holds {
		if err := again(ctx, func() error { return s.enter(ctx, conn, h) }); err != nil {
			return err
		}
	}
	return nil
}

// CheckOn is [SQL.Check] in the transaction of a connection.
func (s SQL) CheckOn(ctx context.Context, conn Conn, holds ...Hold) error {
	holds, err := s.valid(holds)
	if err != nil {
		return err
	}
	return s.check(ctx, conn, holds)
}

// again calls do until the database does not roll back what it does, with pauses that part those who meet. A connection
// that the server has closed is replaced, as a *sql.DB does.
func again(ctx context.Context, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		repeat := rolledBack(err) || errors.Is(err, driver.ErrBadConn)
		if !repeat || errors.Is(err, ErrUnknown) || try == tries || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(time.Millisecond << try)):
		}
	}
}

func (s SQL) run(
	ctx context.Context, connect func(context.Context) (Conn, error), holds []Hold, do func(context.Context, Conn) error,
) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	var broken error
	defer func() { conn.Close(broken) }()
	for _, h := range holds {
		if err := s.enter(ctx, conn, h); err != nil {
			return err
		}
	}
	if limit, back := s.limitSession(); limit != "" {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			broken = conn.Exec(ctx, back)
		}()
		if err := conn.Exec(ctx, limit); err != nil {
			return err
		}
	}
	if err := conn.Begin(ctx, s.Isolation); err != nil {
		return err
	}
	defer conn.Rollback()
	if first := s.first(); first != "" {
		if err := conn.Exec(ctx, first); err != nil {
			return err
		}
	}
	if err := do(ctx, conn); err != nil {
		return err
	}
	if s.Dialect == MySQL { // the savepoint is gone if the transaction has ended: what came later was committed at once
		if err := conn.Exec(ctx, "RELEASE SAVEPOINT fence"); err != nil {
			return ended(ctx, err)
		}
	}
	if err := s.check(ctx, conn, holds); err != nil {
		return ended(ctx, err)
	}
	if ctx.Err() != nil { // Commit would say so, and its other errors are those of the server
		return ctx.Err()
	}
	if err := conn.Commit(ctx); err != nil && !rolledBack(err) {
		return fmt.Errorf("fence: %w: %w", ErrUnknown, err)
	} else if err != nil {
		return err
	}
	return nil
}

// ended adds to an error that the transaction had ended before the check.
func ended(ctx context.Context, err error) error {
	if ctx.Err() == nil && (errors.Is(err, sql.ErrTxDone) || noSavepoint.MatchString(err.Error())) {
		return fmt.Errorf("fence: %w: it ended before the check: %w", ErrUnknown, err)
	}
	return err
}

var noSavepoint = regexp.MustCompile(`^Error 1305\b`)

// What MySQL says of a transaction that it has rolled back: a deadlock, and a record that was changed since the
// snapshot. SQLite says that the database was changed since, or is locked.
var theirs = regexp.MustCompile(`\bError (1213|1020)\b|database (table )?is locked`)

// rolledBack reports whether the database has rolled the transaction back because of others. Drivers have no type in
// common, but those of PostgreSQL have a method, and the others a text.
func rolledBack(err error) bool {
	if state := (interface{ SQLState() string })(nil); errors.As(err, &state) {
		return state.SQLState() == "40001" || state.SQLState() == "40P01"
	}
	return err != nil && theirs.MatchString(err.Error())
}

// ofSQL is a connection of database/sql, or what else sends statements: a *sql.DB, in which each is a transaction of
// its own, or a *sql.Tx.
type ofSQL struct {
	statements
	conn *sql.Conn
	tx   *sql.Tx
}

type statements interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (c *ofSQL) Exec(ctx context.Context, statement string, args ...any) error {
	_, err := c.ExecContext(ctx, statement, args...)
	return err
}

func (c *ofSQL) Tokens(ctx context.Context, statement string, args ...any) (tokens []int64, err error) {
	rows, err := c.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var token sql.NullInt64
		if err := rows.Scan(&token); err != nil {
			return nil, err
		}
		tokens = append(tokens, token.Int64)
	}
	return tokens, rows.Err()
}

func (c *ofSQL) Begin(ctx context.Context, level sql.IsolationLevel) (err error) {
	if c.tx, err = c.conn.BeginTx(ctx, &sql.TxOptions{Isolation: level}); err == nil {
		c.statements = c.tx
	}
	return err
}

func (c *ofSQL) Commit(context.Context) error { return c.tx.Commit() }

func (c *ofSQL) Rollback() {
	_ = c.tx.Rollback()
	c.statements = c.conn
}

func (c *ofSQL) Close(err error) {
	if err != nil {
		_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = c.conn.Close()
}

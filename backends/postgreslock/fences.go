package postgreslock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker/fence"
)

// Fences is [fence.SQL] for programs that use pgx without database/sql. The Dialect makes no difference, so the zero
// value can be used. The locks may be in any store that issues tokens: if they are in the same database, [InTx] needs
// no table of fences. docs/fencing.md says which to use when.
//
//	err := postgreslock.Fences{}.InTx(ctx, pool, fence.Of(lease), func(ctx context.Context, tx pgx.Tx) error {
//		… // read and write
//	})
type Fences fence.SQL

func (f Fences) sql() fence.SQL {
	f.Dialect = fence.PostgreSQL
	return fence.SQL(f)
}

// Create is [fence.SQL.Create].
func (f Fences) Create() string { return f.sql().Create() }

// InTx is [fence.SQL.InTx].
func (f Fences) InTx(
	ctx context.Context, pool *pgxpool.Pool, holds []fence.Hold, do func(ctx context.Context, tx pgx.Tx) error,
) error {
	connect := func(ctx context.Context) (fence.Conn, error) {
		conn, err := pool.Acquire(ctx)
		return &fenceConn{sender: conn, conn: conn}, err
	}
	return f.sql().Run(ctx, connect, holds, func(ctx context.Context, conn fence.Conn) error {
		return do(ctx, conn.(*fenceConn).tx)
	})
}

// Enter is [fence.SQL.Enter].
func (f Fences) Enter(ctx context.Context, pool *pgxpool.Pool, holds ...fence.Hold) error {
	return f.sql().EnterOn(ctx, &fenceConn{sender: pool}, holds...)
}

// Check is [fence.SQL.Check].
func (f Fences) Check(ctx context.Context, tx pgx.Tx, holds ...fence.Hold) error {
	return f.sql().CheckOn(ctx, &fenceConn{sender: tx}, holds...)
}

// fenceConn is a connection of a pool, or what else sends statements.
type fenceConn struct {
	sender
	conn *pgxpool.Conn
	tx   pgx.Tx
}

type sender interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (c *fenceConn) Exec(ctx context.Context, statement string, args ...any) error {
	_, err := c.sender.Exec(ctx, statement, args...)
	return done(err)
}

func (c *fenceConn) Tokens(ctx context.Context, statement string, args ...any) ([]int64, error) {
	rows, err := c.Query(ctx, statement, args...)
	if err != nil {
		return nil, done(err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (n int64, err error) {
		var token sql.NullInt64
		err = row.Scan(&token)
		return token.Int64, err
	})
}

// done says in the words of database/sql that a transaction has ended.
func done(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("%w: %w", sql.ErrTxDone, err)
	}
	return err
}

func (c *fenceConn) Begin(ctx context.Context, level sql.IsolationLevel) (err error) {
	var opts pgx.TxOptions
	if level != sql.LevelDefault {
		opts.IsoLevel = pgx.TxIsoLevel(strings.ToLower(level.String()))
	}
	if c.tx, err = c.conn.BeginTx(ctx, opts); err == nil {
		c.sender = c.tx
	}
	return err
}

func (c *fenceConn) Commit(ctx context.Context) error { return c.tx.Commit(ctx) }

// Rollback closes the connection if the server does not answer.
func (c *fenceConn) Rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.tx.Rollback(ctx)
	c.sender = c.conn
}

// Close has nothing to give up: limits in PostgreSQL end with the transaction.
func (c *fenceConn) Close(error) { c.conn.Release() }

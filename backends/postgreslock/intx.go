package postgreslock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// InTx lets tx be committed only while nobody else has been granted the lock of lease. It is the strongest form of
// fencing: the resource itself refuses a holder that was stopped, and needs no column for tokens.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := postgreslock.InTx(ctx, tx, lease); err != nil {
//			return err
//		}
//		…
//	})
//
// A nil error means that lease has its lock, and that nobody is granted the lock before tx has ended, even if the lease
// ends meanwhile. This holds because tx has a share of the lock's row until then, and a grant to another owner needs
// the whole row. Renewals go on. If the lock is released during tx, the next owner gets it when tx has ended.
//
// So a transaction keeps others out for as long as it is open. If its process is stopped, the server ends a
// transaction that was idle for the TTL of the lease: InTx sets idle_in_transaction_session_timeout for tx, unless it
// is shorter already. It cannot end a transaction that was prepared (PREPARE TRANSACTION), nor one whose process was
// stopped in the middle of a batch: docs/backends/postgres.md says what does.
//
// tx must be in the database of the lease. Call InTx early in tx, and not after a savepoint: rolling back to the
// savepoint would end the protection. With the isolation levels repeatable read and serializable, begin tx when the
// lock has been acquired. tx may belong to any user that has the rights that docs/backends/postgres.md lists.
//
// Errors are those of [locker.Verify]: they match locker.ErrLost if the lock is not held any more. tx should be rolled
// back then. The error matches errors.ErrUnsupported if lease is not of this package. InTx works with a lease behind
// middleware, and with a locker.AllLease.
func InTx(ctx context.Context, tx pgx.Tx, lease locker.Lease) error {
	return inTx(ctx, lease, func(ctx context.Context, sql string, args ...any) (string, error) {
		return text(tx.QueryRow(ctx, sql, args...))
	})
}

// InSQLTx is [InTx] for a transaction of package database/sql, whose driver is that of pgx or of pq.
func InSQLTx(ctx context.Context, tx *sql.Tx, lease locker.Lease) error {
	return inTx(ctx, lease, func(ctx context.Context, sql string, args ...any) (string, error) {
		return text(tx.QueryRowContext(ctx, sql, args...))
	})
}

func inTx(ctx context.Context, lease locker.Lease, query query) error {
	err := locker.Bind(ctx, lease, &transaction{query: query})
	if errors.Is(err, errors.ErrUnsupported) {
		return &locker.Error{Op: "verify", Key: lease.Key(), Err: errNotOurs}
	}
	return err
}

var errNotOurs = fmt.Errorf("the lock is not in PostgreSQL: %w", errors.ErrUnsupported)

type query func(ctx context.Context, sql string, args ...any) (string, error)

// transaction is what InTx binds to the lock, whose row is known to the backend. The parts of a locker.AllLease use it
// at the same time.
type transaction struct {
	mu    sync.Mutex
	query query
}

func (tx *transaction) verify(ctx context.Context, b *store, req backend.Request) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	was, err := tx.query(ctx, b.sql.inTx, b.name(req.Key), req.Token, int64(req.Fence),
		max(1, req.TTL.Milliseconds()))
	if err != nil {
		return unavailable(err)
	}
	return notHeld(was)
}

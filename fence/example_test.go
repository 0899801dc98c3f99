package fence_test

import (
	"context"
	"database/sql"

	"github.com/golocker/locker"
	"github.com/golocker/locker/fence"
)

var (
	ctx = context.Background()
	l   locker.Locker // such as config.Open returns
	db  *sql.DB       // with any driver of PostgreSQL
)

// What is read stays true until the commit, and a holder that is late commits nothing.
func ExampleSQL_InTx() {
	fences := fence.SQL{Dialect: fence.PostgreSQL}
	err := locker.Do(ctx, l, "account:42", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		return fences.InTx(ctx, db, fence.Of(lease), func(ctx context.Context, tx *sql.Tx) error {
			var balance int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 42").Scan(&balance); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE account SET balance = $1 WHERE id = 42", balance+10)
			return err
		})
	})
	if err != nil {
		return // see the errors of InTx
	}
}

package fences_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/golocker/locker/fence"
)

// What a function has written is committed if the transaction ends before the check, which the error has to say.
func TestFunctionsTransactionHasEnded(t *testing.T) {
	end := func(statement string) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			_, _ = tx.ExecContext(ctx, statement) // perhaps an error, which the function ignores
			return nil
		}
	}
	commit := func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }
	for _, c := range []struct {
		name string
		d    *database
		end  func(context.Context, *sql.Tx) error
	}{
		{"committed by the function", postgres(t), commit},
		{"committed by the function", mariadb(t), commit},
		{"committed by the function", sqlite(t), commit},
		{"statement that commits", mariadb(t), end("CREATE TABLE IF NOT EXISTS other (id integer)")},
		{"statement that rolls back", sqlite(t), end("INSERT OR ROLLBACK INTO account VALUES (42, 0, NULL)")},
	} {
		t.Run(c.d.name+", "+c.name, func(t *testing.T) {
			fences := fence.SQL{Dialect: c.d.dialect}
			db := c.d.open(t, fences)
			is(t, fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx, 7))
				must(t, c.end(ctx, tx))
				_ = write(ctx, tx, 8)
				return nil
			}), fence.ErrUnknown)
			must(t, fences.InTx(t.Context(), db, hold(6), pay(nothing)))
		})
	}
}

// MySQL rolls the whole transaction back at a deadlock, and commits at once what a function does after it.
func TestFunctionIgnoresADeadlock(t *testing.T) {
	d := mariadb(t)
	fences := fence.SQL{Dialect: d.dialect}
	db := d.open(t, fences)
	execute := func(tx interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}, statement string,
	) error {
		_, err := tx.ExecContext(t.Context(), statement)
		return err
	}
	must(t, execute(db, "INSERT INTO account VALUES (43, 0, NULL)"))
	other, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	for range 10 { // the transaction that has changed less is rolled back
		must(t, execute(other, "INSERT INTO account SELECT max(id) + 1, 0, NULL FROM account"))
	}
	must(t, execute(other, "UPDATE account SET balance = 1 WHERE id = 43"))
	waits := make(chan error, 1)
	is(t, fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
		must(t, write(ctx, tx, 7))
		go func() { waits <- execute(other, "UPDATE account SET balance = 1 WHERE id = 42") }()
		if execute(tx, "UPDATE account SET balance = 2 WHERE id = 43") == nil {
			t.Error("there was no deadlock")
		}
		must(t, <-waits)
		must(t, other.Commit())
		return execute(tx, "UPDATE account SET balance = 2 WHERE id = 43")
	}), fence.ErrUnknown)
}

// A function may add to the errors of its transaction.
func TestRepeatedIfTheFunctionJoinsErrors(t *testing.T) {
	for _, d := range []*database{postgres(t), snapshots(t), sqlite(t)} {
		t.Run(d.name, func(t *testing.T) {
			fences := fence.SQL{Dialect: d.dialect, Isolation: d.isolation[len(d.isolation)-1]}
			db := d.open(t, fences)
			tries := 0
			paying := pay(func() {
				if tries++; tries == 1 {
					_, err := db.ExecContext(t.Context(), "UPDATE account SET balance = balance + 10 WHERE id = 42")
					must(t, err)
				}
			})
			must(t, fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
				if err := paying(ctx, tx); err != nil {
					return errors.Join(errors.New("not paid"), err)
				}
				return nil
			}))
			balanceIs(t, db, 11)
		})
	}
}

// A token is in one row. Without a unique key, MySQL would add a row for each entry.
func TestResourceHasOneRow(t *testing.T) {
	for _, d := range []*database{postgres(t), mariadb(t), sqlite(t)} {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t, fence.SQL{Dialect: d.dialect})
			fences := fence.SQL{Dialect: d.dialect, Table: "account", Resource: "balance", Rows: true}
			zero := []fence.Hold{{Resource: "0", Token: 5}}
			must(t, fences.InTx(t.Context(), db, zero, func(context.Context, *sql.Tx) error { return nil }))
			_, err := db.ExecContext(t.Context(), "INSERT INTO account VALUES (43, 0, 6)")
			must(t, err)
			if err := fences.Enter(t.Context(), db, zero...); err == nil {
				t.Error("entered two rows")
			}
			if d.dialect != fence.MySQL {
				return
			}
			_, err = db.ExecContext(t.Context(), "ALTER TABLE fence DROP PRIMARY KEY")
			must(t, err)
			fences = fence.SQL{Dialect: d.dialect}
			must(t, fences.Enter(t.Context(), db, hold(5)...))
			if err := fences.Enter(t.Context(), db, hold(6)...); err == nil {
				t.Error("entered without a key")
			}
		})
	}
}

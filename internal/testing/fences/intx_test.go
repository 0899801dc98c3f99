package fences_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/fence"
)

const account = "account:42"

func hold(token uint64) []fence.Hold { return []fence.Hold{{Resource: account, Token: token}} }

// read returns the balance of the account, by a connection or in a transaction.
func read(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
},
) (n int, err error) {
	return n, q.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 42").Scan(&n)
}

func write(ctx context.Context, tx *sql.Tx, n int) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE account SET balance = %d WHERE id = 42", n))
	return err
}

// pay adds one to the balance, between a read and a write that know nothing of each other.
func pay(between func()) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		between()
		return write(ctx, tx, n+1)
	}
}

func nothing() {}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func balanceIs(t testing.TB, db *sql.DB, want int) {
	t.Helper()
	if n, err := read(t.Context(), db); err != nil || n != want {
		t.Errorf("the balance is %d, %v; want %d", n, err, want)
	}
}

func TestInTx(t *testing.T) {
	each(t, func(t *testing.T, d *database, fences fence.SQL) {
		ctx := t.Context()
		t.Run("OnlyTheNewestHolderWrites", func(t *testing.T) {
			db := d.open(t, fences)
			must(t, fences.InTx(ctx, db, hold(5), pay(nothing)))
			must(t, fences.InTx(ctx, db, hold(5), pay(nothing))) // the same hold
			must(t, fences.InTx(ctx, db, hold(6), pay(nothing)))
			err := fences.InTx(ctx, db, hold(5), pay(nothing))
			is(t, err, fence.ErrStale)
			stale := new(fence.StaleError)
			if !errors.As(err, &stale) || stale.Resource != account || stale.Token != 5 || stale.Seen != 6 || stale.Ahead {
				t.Errorf("%+v", stale)
			}
			balanceIs(t, db, 3)
		})
		t.Run("WhoIsPausedInTheTransactionWritesNothing", func(t *testing.T) {
			db := d.open(t, fences)
			tries := 0
			err := fences.InTx(ctx, db, hold(5), pay(func() {
				tries++
				must(t, fences.InTx(ctx, db, hold(6), pay(nothing)))
			}))
			is(t, err, fence.ErrStale)
			if tries != 1 {
				t.Errorf("the function ran %d times", tries)
			}
			balanceIs(t, db, 1)
		})
		t.Run("WhoEntersReadsWhatWasCheckedBefore", func(t *testing.T) {
			db := d.open(t, fences)
			must(t, fences.Enter(ctx, db, hold(5)...))
			tx := begin(t, db, d, fences)
			must(t, pay(nothing)(ctx, tx))
			must(t, fences.Check(ctx, tx, hold(5)...))
			var entered atomic.Bool
			seen, next := 0, make(chan error, 1)
			go func() {
				// It changes nothing that it reads, so the database sees no conflict.
				next <- fences.InTx(ctx, db, hold(6), func(ctx context.Context, tx *sql.Tx) (err error) {
					entered.Store(true)
					seen, err = read(ctx, tx)
					return err
				})
			}()
			select {
			case err := <-next:
				t.Fatalf("the next holder did not wait: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			if entered.Load() {
				t.Error("the next holder has entered before the commit")
			}
			must(t, tx.Commit())
			must(t, <-next)
			if seen != 1 {
				t.Errorf("the next holder has read %d, want 1", seen)
			}
		})
		t.Run("CheckNeedsAnEntry", func(t *testing.T) {
			db := d.open(t, fences)
			for _, entered := range []uint64{0, 4} {
				if entered > 0 {
					must(t, fences.Enter(ctx, db, hold(entered)...))
				}
				tx := begin(t, db, d, fences)
				is(t, fences.Check(ctx, tx, hold(5)...), fence.ErrNotEntered)
				must(t, tx.Rollback())
			}
		})
		t.Run("AColumnOfTheProgram", func(t *testing.T) {
			db := d.open(t, fences)
			fences := fences
			fences.Table, fences.Resource, fences.Rows = "account", "id", true
			of := func(row string, token uint64) []fence.Hold { return []fence.Hold{{Resource: row, Token: token}} }
			must(t, fences.InTx(ctx, db, of("42", 5), pay(nothing)))
			must(t, fences.InTx(ctx, db, of("42", 5), pay(nothing)))
			must(t, fences.InTx(ctx, db, of("42", 7), pay(nothing)))
			is(t, fences.InTx(ctx, db, of("42", 6), pay(nothing)), fence.ErrStale)
			is(t, fences.InTx(ctx, db, of("43", 6), pay(nothing)), sql.ErrNoRows)
			balanceIs(t, db, 3)
		})
		t.Run("TwoResourcesInAnyOrder", func(t *testing.T) {
			db := d.open(t, fences)
			two := func(a, b string, token uint64) []fence.Hold {
				return []fence.Hold{{Resource: a, Token: token}, {Resource: b, Token: token}}
			}
			done := make(chan error, 2)
			for _, holds := range [][]fence.Hold{two("a", "b", 5), two("b", "a", 5)} {
				go func() {
					var err error
					for range 30 {
						err = errors.Join(err, fences.InTx(ctx, db, holds, func(context.Context, *sql.Tx) error { return nil }))
					}
					done <- err
				}()
			}
			must(t, <-done)
			must(t, <-done)
		})
		t.Run("RepeatedWholeIfRolledBack", func(t *testing.T) {
			db := d.open(t, fences)
			tries := 0
			must(t, fences.InTx(ctx, db, hold(5), pay(func() {
				if tries++; tries > 1 {
					return
				}
				// Somebody who takes no lock.
				_, err := db.ExecContext(ctx, "UPDATE account SET balance = balance + 10 WHERE id = 42")
				must(t, err)
			})))
			if d.refuses(fences.Isolation) {
				balanceIs(t, db, 11)
			} else {
				balanceIs(t, db, 1) // nobody but holders of the lock is kept out
			}
			if repeated := tries == 2; repeated != d.refuses(fences.Isolation) {
				t.Errorf("%d tries", tries)
			}
		})
		t.Run("NothingIsCommittedAfterAnError", func(t *testing.T) {
			db := d.open(t, fences)
			failed := errors.New("failed")
			is(t, fences.InTx(ctx, db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx, 7))
				return failed
			}), failed)
			func() {
				defer func() { _ = recover() }()
				_ = fences.InTx(ctx, db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
					must(t, write(ctx, tx, 7))
					panic(failed)
				})
			}()
			canceled, cancel := context.WithCancel(ctx)
			is(t, fences.InTx(canceled, db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
				defer cancel()
				return write(ctx, tx, 7)
			}), context.Canceled)
			balanceIs(t, db, 0)
			if open := db.Stats().InUse; open != 0 {
				t.Errorf("%d connections are in use", open)
			}
		})
	})
}

// begin begins a transaction at the level of the test.
func begin(t testing.TB, db *sql.DB, d *database, fences fence.SQL) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: fences.Isolation})
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

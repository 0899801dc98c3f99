package postgreslock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/memory"
)

const payment = "UPDATE account SET balance = balance + 1"

// fenced makes a table of fences, and an account.
func fenced(t *testing.T) *pgxpool.Pool {
	t.Helper()
	p := pool(t, pgtest.Start(t).URL("postgres"))
	for _, statement := range []string{
		postgreslock.Fences{}.Create(), "CREATE TABLE account (balance bigint)", "INSERT INTO account VALUES (0)",
	} {
		mustExec(t, p, statement)
	}
	return p
}

func mustExec(t *testing.T, p *pgxpool.Pool, statement string) {
	t.Helper()
	if _, err := p.Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func of(token uint64) []fence.Hold { return []fence.Hold{{Resource: "account:42", Token: token}} }

func pay(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, payment)
	return err
}

func balance(t *testing.T, p *pgxpool.Pool) (n int) {
	t.Helper()
	if err := p.QueryRow(t.Context(), "SELECT balance FROM account").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFencesRefuseEarlierHolders(t *testing.T) {
	p, fences := fenced(t), postgreslock.Fences{}
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	lease := lock(t, l, "account:42")
	if err := fences.InTx(t.Context(), p, fence.Of(lease), pay); err != nil {
		t.Fatal(err)
	}
	token := lease.Fence()
	for name, step := range map[string]func() error{
		"entered between": func() error {
			return fences.InTx(t.Context(), p, of(token), func(ctx context.Context, tx pgx.Tx) error {
				if err := fences.Enter(ctx, p, of(token+1)...); err != nil {
					t.Error(err)
				}
				return pay(ctx, tx)
			})
		},
		"entered before": func() error { return fences.InTx(t.Context(), p, of(token-1), pay) },
		"alone":          func() error { return fences.Enter(t.Context(), p, of(token-1)...) },
		"checked": func() error {
			return pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
				if err := pay(t.Context(), tx); err != nil {
					return err
				}
				return fences.Check(t.Context(), tx, of(token-1)...)
			})
		},
	} {
		if err := step(); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := balance(t, p); n != 1 {
		t.Errorf("the balance is %d", n)
	}
}

// The database rolls back what others have changed since: all is repeated.
func TestFencedTransactionIsRepeated(t *testing.T) {
	p, tries := fenced(t), 0
	fences := postgreslock.Fences{Isolation: sql.LevelRepeatableRead}
	if err := fences.InTx(t.Context(), p, of(5), func(ctx context.Context, tx pgx.Tx) error {
		var level string
		if err := tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&level); err != nil || level != "repeatable read" {
			t.Errorf("%s, %v", level, err)
		}
		if tries++; tries == 1 {
			mustExec(t, p, payment)
		}
		return pay(ctx, tx)
	}); err != nil || tries != 2 {
		t.Errorf("%d tries, %v", tries, err)
	}
	if n := balance(t, p); n != 2 {
		t.Errorf("the balance is %d", n)
	}
}

func TestFencedTransactionThatEndsEarly(t *testing.T) {
	p, fences, failed := fenced(t), postgreslock.Fences{Idle: 200 * time.Millisecond}, errors.New("failed")
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range []struct {
		name    string
		do      func(ctx context.Context, tx pgx.Tx) error
		want    error
		balance int
	}{
		{"fails", func(context.Context, pgx.Tx) error { return failed }, failed, 0},
		{"commits", func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, fence.ErrUnknown, 1},
		{"is ended by the server", func(ctx context.Context, tx pgx.Tx) error {
			// This waits until the transaction, which does nothing, is over.
			mustExec(t, p, payment)
			return failed
		}, failed, 2},
		{"is cancelled", func(context.Context, pgx.Tx) error { cancel(); return nil }, context.Canceled, 2},
	} {
		err := fences.InTx(ctx, p, of(5), func(ctx context.Context, tx pgx.Tx) error {
			if err := pay(ctx, tx); err != nil {
				return err
			}
			return c.do(ctx, tx)
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := balance(t, p); n != c.balance {
			t.Errorf("%s: the balance is %d, want %d", c.name, n, c.balance)
		}
	}
	// The pool closes a broken connection in a goroutine of its own.
	eventually(t, "no connection is in use", func() bool { return p.Stat().AcquiredConns() == 0 })
}

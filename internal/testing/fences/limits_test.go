package fences_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/memory"
)

// The answer to COMMIT is lost. What was committed is found by whoever enters again.
func TestAnswerToCommitIsLost(t *testing.T) {
	for _, d := range []*database{postgres(t), mariadb(t)} {
		t.Run(d.name, func(t *testing.T) {
			fences := fence.SQL{Dialect: d.dialect}
			direct := d.open(t, fences)
			db := d.openRelayed(t, d.driver)
			lost := false
			d.relay.Set(func() { d.relay.lose = func() bool { lost = !lost; return lost } })
			runs := 0
			is(t, fences.InTx(t.Context(), db, hold(5), pay(func() { runs++ })), fence.ErrUnknown)
			if runs != 1 {
				t.Errorf("it ran %d times", runs)
			}
			must(t, fences.Enter(t.Context(), direct, hold(6)...))
			balanceIs(t, direct, 1)
			is(t, fences.InTx(t.Context(), direct, hold(5), pay(nothing)), fence.ErrStale)
		})
	}
}

// A holder that is paused in its transaction keeps the next one out for no longer than Idle, and the limits of the
// connection are what they were before.
func TestPausedHoldersTransactionEnds(t *testing.T) {
	for _, d := range []*database{postgres(t), mariadb(t)} {
		t.Run(d.name, func(t *testing.T) {
			fences := fence.SQL{Dialect: d.dialect, Idle: time.Second}
			db := d.open(t, fences)
			db.SetMaxOpenConns(2)
			limit := map[fence.Dialect]string{
				fence.PostgreSQL: "SHOW idle_in_transaction_session_timeout", fence.MySQL: "SELECT @@SESSION.wait_timeout",
			}[d.dialect]
			var before, after string
			must(t, db.QueryRowContext(t.Context(), limit).Scan(&before))
			err := fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
				must(t, write(ctx, tx, 7))
				_, err := tx.ExecContext(ctx, "SELECT token FROM fence FOR UPDATE")
				must(t, err)
				must(t, fences.Enter(ctx, db, hold(6)...)) // waits until the server has ended the transaction
				return nil
			})
			if err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%v", err)
			}
			balanceIs(t, db, 0)
			must(t, fences.InTx(t.Context(), db, hold(6), pay(nothing)))
			must(t, db.QueryRowContext(t.Context(), limit).Scan(&after))
			if before != after {
				t.Errorf("the limit is %s, and was %s", after, before)
			}
		})
	}
}

// A limit of the session that is shorter stays.
func TestShorterLimitStays(t *testing.T) {
	d := postgres(t)
	fences := fence.SQL{Dialect: d.dialect, Idle: 2 * time.Second}
	db := d.open(t, fences)
	for setting, want := range map[string]string{"0": "2s", "500ms": "500ms", "1min": "2s"} {
		_, err := db.ExecContext(t.Context(), "ALTER ROLE postgres SET idle_in_transaction_session_timeout = '"+setting+"'")
		must(t, err)
		db, err := sql.Open(d.driver, d.source)
		must(t, err)
		must(t, fences.InTx(t.Context(), db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
			var got string
			if err := tx.QueryRowContext(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s, %v; want %s", setting, got, err, want)
			}
			return nil
		}))
		must(t, db.Close())
	}
}

// A limit that is longer than the database knows is none.
func TestLongLimit(t *testing.T) {
	for _, d := range []*database{postgres(t), mariadb(t)} {
		fences := fence.SQL{Dialect: d.dialect, Idle: 365 * 24 * time.Hour}
		must(t, fences.InTx(t.Context(), d.open(t, fences), hold(5), pay(nothing)))
	}
}

// However the function ends, the connection has its limit back.
func TestLimitIsGivenBack(t *testing.T) {
	d := mariadb(t)
	fences := fence.SQL{Dialect: d.dialect, Idle: 2 * time.Second}
	db := d.open(t, fences)
	db.SetMaxOpenConns(1)
	limit := func() (s string) {
		must(t, db.QueryRowContext(t.Context(), "SELECT @@SESSION.wait_timeout").Scan(&s))
		return s
	}
	before, failed := limit(), errors.New("failed")
	for name, do := range map[string]func(context.Context, *sql.Tx, func()) error{
		"error":    func(context.Context, *sql.Tx, func()) error { return failed },
		"panic":    func(context.Context, *sql.Tx, func()) error { panic(failed) },
		"rollback": func(_ context.Context, tx *sql.Tx, _ func()) error { return tx.Rollback() },
		"cancel":   func(_ context.Context, _ *sql.Tx, cancel func()) error { cancel(); return nil },
		"query": func(ctx context.Context, tx *sql.Tx, cancel func()) error {
			time.AfterFunc(50*time.Millisecond, cancel)
			_, err := tx.ExecContext(ctx, "SELECT sleep(20)")
			return err
		},
		"rows": func(ctx context.Context, tx *sql.Tx, _ func()) error {
			_, err := tx.QueryContext(ctx, "SELECT balance FROM account") //nolint:rowserrcheck,sqlclosecheck // left open
			return errors.Join(err, failed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			func() {
				defer func() { _ = recover() }()
				if err := fences.InTx(ctx, db, hold(5), func(ctx context.Context, tx *sql.Tx) error {
					return do(ctx, tx, cancel)
				}); err == nil {
					t.Error("no error")
				}
			}()
			if after := limit(); after != before {
				t.Errorf("the limit is %s, and was %s", after, before)
			}
			must(t, fences.InTx(t.Context(), db, hold(5), pay(nothing)))
		})
	}
}

// After a change of stores, holders of the new one are told that the resource is ahead.
func TestResourceIsAheadOfTheStore(t *testing.T) {
	d := sqlite(t)
	fences := fence.SQL{Dialect: d.dialect}
	db := d.open(t, fences)
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	lease, err := l.Lock(t.Context(), account)
	must(t, err)
	must(t, fences.Enter(t.Context(), db, hold(lease.Fence()+1000)...))
	stale := new(fence.StaleError)
	if err := fences.InTx(t.Context(), db, fence.Of(lease), pay(nothing)); !errors.As(err, &stale) || !stale.Ahead {
		t.Error(err)
	}
	must(t, lease.Unlock(t.Context()))
	if err := fences.InTx(t.Context(), db, fence.Of(lease), pay(nothing)); !errors.As(err, &stale) || stale.Ahead {
		t.Error(err)
	}
}

// A holder is stopped when its token has been checked, and before its COMMIT arrives.
func TestNobodyEntersBetweenCheckAndCommit(t *testing.T) {
	for _, d := range []*database{postgres(t), mariadb(t)} {
		t.Run(d.name, func(t *testing.T) {
			fences := fence.SQL{Dialect: d.dialect}
			direct := d.open(t, fences)
			db := d.openRelayed(t, d.driver)
			checked, paid := make(chan struct{}), make(chan error, 1)
			check := sync.OnceFunc(func() { close(checked) })
			d.relay.Set(func() { d.relay.late = func() time.Duration { check(); return 300 * time.Millisecond } })
			go func() { paid <- fences.InTx(t.Context(), db, hold(5), pay(nothing)) }()
			<-checked
			must(t, fences.Enter(t.Context(), direct, hold(6)...))
			balanceIs(t, direct, 1)
			must(t, <-paid)
		})
	}
}

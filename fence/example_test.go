package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/fence"
)

var (
	ctx    = context.Background()
	l      locker.Locker  // such as config.Open returns
	db     *sql.DB        // with any driver of PostgreSQL
	client drivers.Driver // such as goredisdriver.New returns
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

// The script is executed only if nobody has entered since. It sees its own keys and arguments.
func ExampleRedis_Eval() {
	fences := fence.Redis{Driver: client}
	err := locker.Do(ctx, l, "account:42", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		holds := fence.Of(lease)
		if err := fences.Enter(ctx, holds...); err != nil {
			return err
		}
		_, err := fences.Eval(ctx, holds, `
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[1])`, []string{"{account:42}:balance", "{account:42}:entries"}, "10")
		return err
	})
	if err != nil {
		return // see the errors of Eval
	}
}

// A service that has accounts, and a client that holds the lock of one.
func ExampleHTTP() {
	fences := fence.SQL{Dialect: fence.PostgreSQL}
	gate := fence.HTTP{
		Resources: func(r *http.Request) []string { return []string{"account:" + r.PathValue("id")} },
		Enter:     func(ctx context.Context, holds ...fence.Hold) error { return fences.Enter(ctx, db, holds...) },
	}
	mux := http.NewServeMux() // behind a handler that authenticates
	mux.Handle("POST /accounts/{id}", gate.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		holds := fence.HoldsFrom(r.Context())
		err := fences.InTx(r.Context(), db, holds, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + 10 WHERE id = $1", r.PathValue("id"))
			return err
		})
		switch {
		case errors.Is(err, fence.ErrStale):
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, "", http.StatusServiceUnavailable)
		}
	})))

	sender := &http.Client{Transport: fence.Transport{}}
	err := locker.Do(ctx, l, "account:42", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		ctx = fence.WithHolds(ctx, fence.Of(lease)...)
		const url = "https://accounts.example/accounts/42"
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := sender.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusPreconditionFailed {
			return fence.ErrStale
		}
		return nil
	})
	if err != nil {
		return
	}
}

// Package adapters is for the tests of adapters that need a store, or what the adapter itself does not need: each
// directory has those of the adapter of its name. They are in a module of their own because go mod tidy writes into the
// go.sum of a program what the tests of the packages that it uses need. Tests that need no store, or one in memory, are
// beside the adapter.
package adapters

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker/backends/postgreslock"
	_ "github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// Servers is storeurl.Servers. The package registers what config.Open needs for the URLs.
func Servers() map[string]func(tb testing.TB) (url string, s storeurl.Server) {
	return storeurl.Servers(Migrate)
}

// Migrate makes the tables of locks in a PostgreSQL.
func Migrate(tb testing.TB, url string) {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	defer pool.Close()
	if _, err := postgreslock.Migrate(tb.Context(), pool); err != nil {
		tb.Fatal(err)
	}
}

package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/pressly/goose/v3"

	"github.com/golocker/locker"
)

func gooseUp(ctx context.Context, l locker.Locker, provider *goose.Provider) error {
	return locker.Do(ctx, l, "migrations", func(ctx context.Context) error {
		_, err := provider.Up(ctx)
		return err
	})
}

func migrateUp(ctx context.Context, l locker.Locker, open func(context.Context) (*migrate.Migrate, error)) error {
	return locker.Do(ctx, l, "migrations", func(ctx context.Context) error {
		m, err := open(ctx) // which writes to the database, too
		if err != nil {
			return err
		}
		defer m.Close() // gives the connection back
		if err := m.Up(); err != nil && !errors.Is(err, migrate.ErrNoChange) {
			return err
		}
		return context.Cause(ctx) // the lock may be lost in the last migration
	})
}

// unlocked is a driver whose own locks are off, and which begins no migration once ctx has ended. GracefulStop of
// golang-migrate 4.20.1 would do that, too, but with a data race.
type unlocked struct {
	database.Driver
	ctx context.Context
}

func (unlocked) Lock() error   { return nil }
func (unlocked) Unlock() error { return nil }

// SetVersion is called with dirty before a migration.
func (u unlocked) SetVersion(version int, dirty bool) error {
	if dirty && u.ctx.Err() != nil {
		return context.Cause(u.ctx)
	}
	return u.Driver.SetVersion(version, dirty)
}

// driver works behind a PgBouncer that shares connections between transactions.
func driver(ctx context.Context, db *sql.DB) (database.Driver, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	_, begun := conn.ExecContext(ctx, "BEGIN") // postgres takes and releases its own lock while it is opened
	d, err := postgres.WithConnection(ctx, conn, &postgres.Config{})
	_, ended := conn.ExecContext(ctx, "COMMIT")
	if err := errors.Join(begun, err, ended); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return unlocked{d, ctx}, nil
}

// The programs of the page are functions of this file.
func TestThePageShowsTheseRecipes(t *testing.T) {
	source, err := os.ReadFile("recipes_test.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../../docs/adapters.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for i, block := range strings.Split(string(page), "```go\nfunc ") {
		code, _, _ := strings.Cut(block, "```")
		if i == 0 || !strings.Contains(code, "Up(ctx context.Context, l locker.Locker") {
			continue
		}
		shown++
		if !strings.Contains(string(source), "\nfunc "+code) {
			t.Errorf("recipes_test.go has no\n%s", code)
		}
	}
	if shown != 2 {
		t.Errorf("the page shows %d recipes, want 2", shown)
	}
}

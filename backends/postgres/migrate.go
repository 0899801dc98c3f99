package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Beginner begins transactions: a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Migrate makes the schema, the tables and the functions that locks need, or brings older ones up to date. It returns
// how many migrations it has applied. It changes nothing that is up to date. Programs that start at the same time may
// all call it. Of opts, it uses [Schema].
//
// The user needs the right to create a schema, or all rights on an existing one. The programs that lock need fewer:
// see docs/backends/postgres.md.
func Migrate(ctx context.Context, db Beginner, opts ...Option) (applied int, err error) {
	schema := newOptions(opts).schema
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		applied, err = migrate(ctx, tx, schema)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("postgres: migrate: %w", unavailable(err))
	}
	return applied, nil
}

// prepare makes the schema and its table of versions. The advisory lock makes others wait that migrate.
const prepare = `
SELECT pg_advisory_xact_lock(4711, 4711);
DO $$ BEGIN
	IF to_regnamespace('@schema@') IS NULL THEN
		CREATE SCHEMA @schema@;
	END IF;
END $$;
CREATE TABLE IF NOT EXISTS @schema@.migrations (version int PRIMARY KEY);`

func migrate(ctx context.Context, tx pgx.Tx, schema string) (applied int, err error) {
	var encoding string
	if err := tx.QueryRow(ctx, "SHOW server_encoding").Scan(&encoding); err != nil {
		return 0, err
	}
	if encoding != "UTF8" {
		return 0, errors.New("the encoding of the database is " + encoding + ", and labels need UTF8: use another database")
	}
	var version int
	read := schemaOf("SELECT coalesce(max(version), 0) FROM @schema@.migrations", schema)
	run := func(text string) error {
		_, err := tx.Conn().PgConn().Exec(ctx, schemaOf(text, schema)).ReadAll()
		return err
	}
	if err := run(prepare); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, read).Scan(&version); err != nil {
		return 0, err
	}
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return 0, err
	}
	for i, file := range files[min(version, len(files)):] {
		text, err := migrations.ReadFile(file)
		if err != nil {
			return 0, err
		}
		record := "INSERT INTO @schema@.migrations VALUES (" + strconv.Itoa(version+i+1) + ");"
		if err := run(string(text) + record); err != nil {
			return 0, fmt.Errorf("%s: %w", strings.TrimPrefix(file, "migrations/"), err)
		}
		applied++
	}
	return applied, nil
}

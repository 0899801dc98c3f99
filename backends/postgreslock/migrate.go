package postgreslock

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
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
// The user needs the right to create a schema, or all rights on an existing one, also if everything is up to date. What
// a migration makes belongs to the owner of the tables, so another user must be able to take that role (SET ROLE). The
// programs that lock need fewer rights: see docs/backends/postgres.md. A transaction that uses the tables for longer
// than two seconds, as that of a dump, makes a migration fail, which changes nothing then.
func Migrate(ctx context.Context, db Beginner, opts ...Option) (applied int, err error) {
	o := newOptions(opts)
	if o.invalid != nil {
		return 0, fmt.Errorf("postgres: migrate: %w", o.invalid)
	}
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		applied, err = migrate(ctx, tx, o.schema)
		return err
	})
	switch {
	case code(err) == noRight:
		err = fmt.Errorf("%w: %w: migrate as the owner of the schema and of its tables, or as a user who may create one "+
			"(GRANT CREATE ON DATABASE)", locker.ErrUnavailable, err)
	case code(err) == lockTimeout:
		err = fmt.Errorf("%w: %w: a transaction uses the tables, such as that of a dump: migrate again when it has ended",
			locker.ErrUnavailable, err)
	default:
		err = unavailable(err)
	}
	if err != nil {
		return 0, fmt.Errorf("postgres: migrate: %w", err)
	}
	return applied, nil
}

// MigrationSQL returns the statements by which [Migrate] makes a new schema, as one transaction, for a database
// administrator who runs them with psql. They fail, and change nothing, if the schema has tables of locks. Of opts,
// it uses [Schema]. The only errors are about opts.
func MigrationSQL(opts ...Option) (string, error) {
	o := newOptions(opts)
	if o.invalid != nil {
		return "", fmt.Errorf("postgres: migrate: %w", o.invalid)
	}
	all, err := migrationsOf(o.schema)
	if err != nil {
		return "", err
	}
	text := "BEGIN;\n" + schemaOf(prepare, o.schema) + "\n"
	for _, m := range all {
		text += "\n-- " + m.name + "\n\n" + m.text
	}
	return text + "\nCOMMIT;\n", nil
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

// asOwner lets a migration make everything as the owner of the tables, because the functions of programs run as that
// user. A change of a table that waits for a transaction makes all requests wait behind it, so it soon gives up.
const asOwner = `
SELECT set_config('lock_timeout', '2s', true), set_config('role', pg_get_userbyid(c.relowner), true)
FROM pg_class c WHERE c.oid = '@schema@.migrations'::regclass;`

func migrate(ctx context.Context, tx pgx.Tx, schema string) (applied int, err error) {
	var encoding string
	if err := tx.QueryRow(ctx, "SHOW server_encoding").Scan(&encoding); err != nil {
		return 0, err
	}
	if encoding != "UTF8" {
		return 0, errors.New("the encoding of the database is " + encoding + ", and labels need UTF8: use another database")
	}
	run := func(text string) error {
		_, err := tx.Conn().PgConn().Exec(ctx, text).ReadAll()
		return err
	}
	if err := run(schemaOf(prepare, schema)); err != nil {
		return 0, err
	}
	var is int
	read := schemaOf("SELECT coalesce(max(version), 0) FROM @schema@.migrations", schema)
	if err := tx.QueryRow(ctx, read).Scan(&is); err != nil {
		return 0, err
	}
	all, err := migrationsOf(schema)
	if err != nil {
		return 0, err
	}
	for _, m := range all {
		if m.version <= is {
			continue
		}
		if applied == 0 {
			if err := run(schemaOf(asOwner, schema)); err != nil {
				return 0, err
			}
		}
		if err := run(m.text); err != nil {
			return 0, fmt.Errorf("%s: %w", m.name, err)
		}
		applied++
	}
	return applied, nil
}

// migration is the statements of one file of the directory migrations, and one that notes that they were executed.
type migration struct {
	version    int // the number with which the name of the file begins
	name, text string
}

// version is that of the last migration that changes what the tables mean, or what a request for a lock needs. Every
// such request says it, so that tables that mean something else refuse the program. Tables that are older have no
// function for the request.
const version = 3

func migrationsOf(schema string) (all []migration, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := migrations.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m := migration{name: strings.TrimPrefix(file, "migrations/")}
		number, _, _ := strings.Cut(m.name, "_")
		if m.version, err = strconv.Atoi(number); err != nil {
			return nil, err
		}
		record := fmt.Sprintf("INSERT INTO @schema@.migrations VALUES (%d);\n", m.version)
		m.text = schemaOf(string(text)+record, schema)
		all = append(all, m)
	}
	return all, nil
}

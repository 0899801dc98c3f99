package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/cmd/locker/internal/exit"
)

func migrateCommand(a *app) *cobra.Command {
	var printed bool
	cmd := &cobra.Command{
		Use:     "migrate",
		GroupID: groupLook,
		Short:   "Make or update the tables of locks in PostgreSQL or MySQL",
		Long: `Migrate makes the schema, the tables and the functions that locks in PostgreSQL need, or the table of MySQL.
Run it once before the first lock, and again after an update of the programs that lock. If everything is up to date, it
changes nothing. Several migrations may run at the same time.

The user needs the right to create a schema in the database, or a table in that of MySQL. The programs that lock need
fewer rights: docs/backends/postgres.md and docs/backends/mysql.md list them.

With --print it prints the statements that make a new schema, and does not connect. A database administrator can read
them, and run them with psql. Without a configuration, the schema is called locker.`,
		Example: `  locker migrate --url postgres://admin@db1/app
  locker migrate --print >locks.sql`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrate(cmd.Context(), printed) },
	}
	cmd.Flags().BoolVar(&printed, "print", false, "print the statements for a new schema, and change nothing")
	return cmd
}

func (a *app) migrate(ctx context.Context, printed bool) error {
	if printed && a.unconfigured() {
		return a.printMigration(postgreslock.DefaultSchema)
	}
	c, err := a.config()
	if err != nil {
		return err
	}
	if s, ok := c.Sections["mysql"].(*mysqllock.Config); ok && c.Backend == "mysql" {
		return a.migrateMySQL(ctx, s, printed)
	}
	s, ok := c.Sections["postgres"].(*postgreslock.Config)
	if !ok || c.Backend != "postgres" {
		return exit.With(exit.Config, fmt.Errorf("locks in %s have no tables", c.Backend),
			"name a PostgreSQL or a MySQL, as in --url postgres://user@host/database")
	}
	if printed {
		return a.printMigration(s.SchemaName())
	}
	pool, err := s.Pool(ctx)
	if err != nil {
		return exit.With(exit.Config, err, "")
	}
	defer pool.Close()
	applied, err := postgreslock.Migrate(ctx, pool, postgreslock.Schema(s.SchemaName()))
	switch {
	case err != nil:
		return exit.With(exit.Unavailable, err, "run it again when this is mended: nothing was changed")
	case a.json:
		return a.printJSON(struct {
			Schema  string `json:"schema"`
			Applied int    `json:"applied"`
		}{s.SchemaName(), applied})
	case applied == 0:
		a.note("the schema %s is up to date", s.SchemaName())
	default:
		a.note("the schema %s is ready for locks", s.SchemaName())
	}
	return nil
}

func (a *app) migrateMySQL(ctx context.Context, s *mysqllock.Config, printed bool) error {
	table := mysqllock.Table(s.Table)
	if printed {
		_, err := fmt.Fprint(a.stdout, mysqllock.MigrationSQL(table))
		return err
	}
	db, err := s.Pool()
	if err != nil {
		return exit.With(exit.Config, err, "")
	}
	defer db.Close()
	name := cmp.Or(s.Table, mysqllock.DefaultTable)
	switch err := mysqllock.Migrate(ctx, db, table); {
	case err != nil:
		return exit.With(exit.Unavailable, err, "run it again when this is mended: nothing was changed")
	case a.json:
		return a.printJSON(struct {
			Table string `json:"table"`
		}{name})
	}
	a.note("the table %s is ready for locks", name)
	return nil
}

func (a *app) printMigration(schema string) error {
	text, err := postgreslock.MigrationSQL(postgreslock.Schema(schema))
	if err == nil {
		_, err = fmt.Fprint(a.stdout, text)
	}
	return err
}

package mysqllock

import (
	"context"
	"database/sql"
)

// Migrate makes the table, unless it exists. Programs that start at the same time may all call it. Of opts, it uses
// [Table].
//
// The user needs the right to CREATE the table, also if it exists. Programs that lock need SELECT, INSERT and UPDATE.
func Migrate(ctx context.Context, db *sql.DB, opts ...Option) error {
	s := NewStore(db, opts...)
	_, err := db.ExecContext(ctx, s.statement())
	return s.explain(err)
}

// MigrationSQL returns the statement by which [Migrate] makes the table, for a database administrator who executes it.
func MigrationSQL(opts ...Option) string { return NewStore(nil, opts...).statement() + ";\n" }

// statement makes the table. Names and versions are compared as bytes, whatever the collation of the database. Other
// engines than InnoDB forget rows when the server crashes, and Galera does not replicate them.
func (s *Store) statement() string {
	return s.sql(`CREATE TABLE IF NOT EXISTS @table (
	name VARBINARY(255) NOT NULL PRIMARY KEY,
	version VARBINARY(32) NOT NULL,
	record BLOB NOT NULL
) ENGINE=InnoDB`)
}

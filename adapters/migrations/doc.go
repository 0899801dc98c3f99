// Package migrations has no code. Its tests run the recipes for goose and golang-migrate, on PostgreSQL behind
// PgBouncer. Its module names their libraries, so that no other module depends on them.
package migrations

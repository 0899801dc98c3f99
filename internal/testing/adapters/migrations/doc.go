// Package migrations has no code. Its tests run the recipes for goose and golang-migrate, on PostgreSQL behind
// PgBouncer.
package migrations

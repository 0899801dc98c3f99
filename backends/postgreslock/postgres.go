// Package postgreslock keeps locks in a PostgreSQL database, of version 13 or newer.
//
//	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
//	err = postgreslock.Migrate(ctx, pool)
//	l := postgreslock.New(pool)
//
// A lock is a row, and expires by the clock of the database. Nothing belongs to a session, so a lock survives the
// connection that acquired it. Waiters are served in the order of their arrival. What only a database can do is [InTx]:
// a transaction that can be committed only while nobody else has been granted the lock.
//
// The page docs/backends/postgres.md says what is promised, and what it depends on.
package postgreslock

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
)

const (
	// DefaultPrefix is put before every key unless [Prefix] says otherwise.
	DefaultPrefix = "lock:"

	// DefaultSchema is the schema of the tables and functions unless [Schema] says otherwise.
	DefaultSchema = "locker"

	// DefaultTimeout bounds one request unless [Timeout] says otherwise.
	DefaultTimeout = 5 * time.Second
)

// Option changes what [New] and [Migrate] do.
type Option func(*options)

type options struct {
	prefix  string
	schema  string
	timeout time.Duration
	owned   bool  // Close closes the pool
	invalid error // of an option
}

// Prefix sets what is put before every key, to keep the locks of programs apart. The default is [DefaultPrefix].
func Prefix(p string) Option { return func(o *options) { o.prefix = p } }

// Schema sets the schema of the tables and functions. The default is [DefaultSchema]. The name has up to 63 letters of
// ASCII, digits and underscores, and does not begin with a digit. With another name, Migrate and all calls for locks
// return an error that matches locker.ErrInvalid.
func Schema(name string) Option { return func(o *options) { o.schema = name } }

// Timeout bounds one request to the server, and the wait for a connection of the pool before it. A call that takes
// longer fails with locker.ErrUnavailable. Zero means the default,
// [DefaultTimeout].
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// schemaName matches names that need no quotes anywhere in the text of the functions.
var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

var errSchema = errors.New("not a name of up to 63 letters, digits and underscores")

// owned makes Close close the pool.
func owned(o *options) { o.owned = true }

func newOptions(opts []Option) options {
	o := options{prefix: DefaultPrefix, schema: DefaultSchema}
	for _, opt := range opts {
		opt(&o)
	}
	if o.timeout <= 0 {
		o.timeout = DefaultTimeout
	}
	if !schemaName.MatchString(o.schema) {
		o.invalid = fmt.Errorf("%w: schema %q: %w", locker.ErrInvalid, o.schema, errSchema)
	}
	return o
}

// New returns a Client that keeps its locks in the database of pool, in the tables that [Migrate] makes. New sends
// nothing. The first call that has to wait takes one more connection, beside those of the pool, for notifications.
// Closing the Client does not close pool.
func New(pool *pgxpool.Pool, opts ...Option) *locker.Client {
	return locker.NewClient(newBackend(pool, opts...))
}

// statements are the requests, for one schema.
type statements struct {
	acquire, acquireSome, extend, extendSome, release, releaseSome, undo, verify string
	inTx, inspect, list, listGroups, force, raiseTokens                          string
	acquireEntry, share                                                          string
}

func newStatements(schema string) statements {
	call := func(text string) string { return "SELECT * FROM " + pgx.Identifier{schema}.Sanitize() + "." + text }
	known := strconv.Itoa(version)
	return statements{
		acquire: call("acquire($1::bytea, $2::text, $3::text, $4::bigint, $5::text, $6::text, " + known + ")"),
		acquireSome: call("acquire_some($1::bytea[], $2::text[], $3::text, $4::bigint, $5::int, $6::bytea[], " +
			"$7::boolean, " + known + ", $8::int)"),
		acquireEntry: call("acquire_entry($1::bytea, $2::text, $3::text, $4::bigint, $5::text, $6::text, " + known +
			", $7::int, $8::int, $9::int, $10::text, $11::bytea[])"),
		share:       call("share($1::bytea, $2::text, $3::bigint, $4::boolean)"),
		extend:      call("extend($1::bytea, $2::text, $3::bigint, $4::boolean)"),
		extendSome:  call("extend_some($1::bytea[], $2::text[], $3::bigint[], $4::boolean[])"),
		release:     call("release($1::bytea, $2::text, $3::bigint)"),
		releaseSome: call("release_some($1::bytea[], $2::text[])"),
		undo:        call("undo($1::bytea, $2::text, $3::text, $4::bigint)"),
		verify:      call("verify($1::bytea, $2::text, $3::bigint)"),
		inTx:        call("in_tx($1::bytea, $2::text, $3::bigint, $4::bigint)"),
		inspect:     call("inspect_all($1::bytea)"),
		list:        call("list($1::bytea, $2::bytea, $3)"),
		listGroups:  call("list_groups($1::bytea, $2::bytea, $3)"),
		force:       call("force($1::bytea, $2::text)"),
		raiseTokens: call("raise_tokens($1::bigint)"),
	}
}

// microseconds rounds d up.
func microseconds(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// schemaOf replaces the placeholder of the schema in text.
func schemaOf(text, schema string) string {
	return strings.ReplaceAll(text, "@schema@", pgx.Identifier{schema}.Sanitize())
}

// Package postgres keeps locks in a PostgreSQL database, of version 13 or newer.
//
//	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
//	err = postgres.Migrate(ctx, pool)
//	l := postgres.New(pool)
//
// A lock is a row, and expires by the clock of the database. Nothing belongs to a session, so a lock survives the
// connection that acquired it. Waiters are served in the order of their arrival. What only a database can do is [InTx]:
// a transaction that can be committed only while nobody else has been granted the lock.
//
// The page docs/backends/postgres.md says what is promised, and what it depends on.
package postgres

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
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
	owned   bool // Close closes the pool
}

// Prefix sets what is put before every key, to keep the locks of programs apart. The default is [DefaultPrefix].
func Prefix(p string) Option { return func(o *options) { o.prefix = p } }

// Schema sets the schema of the tables and functions. The default is [DefaultSchema].
func Schema(name string) Option { return func(o *options) { o.schema = name } }

// Timeout bounds one request to the server, and the wait for a connection of the pool before it. A call that takes
// longer fails with locker.ErrUnavailable. Zero means the default, 5 s.
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

func newOptions(opts []Option) options {
	o := options{prefix: DefaultPrefix, schema: DefaultSchema}
	for _, opt := range opts {
		opt(&o)
	}
	if o.timeout <= 0 {
		o.timeout = DefaultTimeout
	}
	return o
}

// New returns a Client that keeps its locks in the database of pool, in the tables that [Migrate] makes. New sends
// nothing. The first call that has to wait takes one more connection, beside those of the pool, for notifications.
// Closing the Client does not close pool.
func New(pool *pgxpool.Pool, opts ...Option) *locker.Client {
	return locker.NewClient(NewBackend(pool, opts...))
}

// Backend is the store of locks behind a Client of [New]. It implements locker.Backend, locker.Queuer, locker.Verifier,
// locker.ManyAcquirer and inspect.Inspector.
type Backend struct {
	options
	pool    *pgxpool.Pool
	sql     statements
	channel string // on which the waiters of this Backend are notified

	open context.Context // ends when Close begins
	shut context.CancelFunc
	ctx  context.Context // of all requests; ends when Close has waited for long enough
	stop context.CancelFunc

	mu         sync.Mutex
	closed     bool
	background sync.WaitGroup // calls and what they have left to do; Add with mu held while closed is false, or in a call
	listening  bool
	waiting    map[string]chan struct{} // by ticket: has a value if the waiter should look
}

// NewBackend returns what [New] makes a Client of.
func NewBackend(pool *pgxpool.Pool, opts ...Option) *Backend {
	o := newOptions(opts)
	b := &Backend{
		options: o, pool: pool, sql: newStatements(o.schema), channel: "locker_" + locker.NewToken(),
		waiting: make(map[string]chan struct{}),
	}
	b.open, b.shut = context.WithCancel(context.Background())
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// closeGrace is how long Close waits for requests in progress before it interrupts them.
const closeGrace = time.Second

// Close ends the waiting calls and the background work. What an attempt has left in the store and could not be undone
// by then ends with its TTL.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.shut()
	grace := time.AfterFunc(closeGrace, b.stop)
	b.background.Wait()
	grace.Stop()
	b.stop()
	if b.owned {
		b.pool.Close()
	}
	return nil
}

// statements are the requests, for one schema.
type statements struct {
	acquire, acquireMany, extend, release, undo, verify, inTx, inspect, forceRelease string
}

func newStatements(schema string) statements {
	call := func(text string) string { return "SELECT * FROM " + pgx.Identifier{schema}.Sanitize() + "." + text }
	return statements{
		acquire:      call("acquire($1::bytea, $2::text, $3::text, $4::bigint, $5::text, $6::text)"),
		acquireMany:  call("acquire_many($1::bytea[], $2::text[], $3::text, $4::bigint)"),
		extend:       call("extend($1::bytea, $2::text, $3::bigint)"),
		release:      call("release($1::bytea, $2::text, $3::bigint)"),
		undo:         call("undo($1::bytea, $2::text, $3::text, $4::bigint)"),
		verify:       call("verify($1::bytea, $2::text, $3::bigint)"),
		inTx:         call("in_tx($1::bytea, $2::text, $3::bigint, $4::bigint)"),
		inspect:      call("inspect($1::bytea)"),
		forceRelease: call("force_release($1::bytea, $2::text)"),
	}
}

// maxName is how many bytes of a name are stored as they are. An index cannot have much longer values.
const maxName = 1024

// name returns the name of the row for a key. A long name ends with a hash instead of its rest.
func (b *Backend) name(key string) []byte {
	name := []byte(b.prefix + key)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256(name)
	return slices.Concat(name[:maxName], sum[:])
}

// microseconds rounds d up.
func microseconds(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// schemaOf replaces the placeholder of the schema in text.
func schemaOf(text, schema string) string {
	return strings.ReplaceAll(text, "@schema@", pgx.Identifier{schema}.Sanitize())
}

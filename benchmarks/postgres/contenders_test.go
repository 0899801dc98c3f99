// Package postgres_test measures locks in PostgreSQL side by side: this library, what programs write by hand with
// advisory locks, and two other libraries.
package postgres_test

import (
	"context"
	"database/sql"
	"hash/fnv"
	"testing"
	"time"

	cirello "cirello.io/pglock"
	allisson "github.com/allisson/go-pglock"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/lib/pq"

	"github.com/golocker/locker/backends/postgreslock"
)

// connections is how many connections each contender may have.
const connections = 16

// lock waits until it has the lock of key, and returns what releases it.
type lock func(ctx context.Context, key string) (unlock func() error, err error)

// contender is one way to lock. open connects to a server; done ends its connections.
type contender struct {
	name string
	open func(t *testing.T, url string) (l lock, done func())
}

// contenders are what is compared. The first one is the yardstick.
var contenders = []contender{
	{"`pg_advisory_lock` by hand", func(t *testing.T, url string) (lock, func()) {
		p := pool(t, url)
		return func(ctx context.Context, key string) (func() error, error) {
			conn, err := p.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", number(key)); err != nil {
				conn.Release()
				return nil, err
			}
			return func() error {
				defer conn.Release()
				_, err := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", number(key))
				return err
			}, nil
		}, p.Close
	}},
	{"`pg_advisory_xact_lock` by hand", func(t *testing.T, url string) (lock, func()) {
		p := pool(t, url)
		return func(ctx context.Context, key string) (func() error, error) {
			tx, err := p.Begin(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", number(key)); err != nil {
				_ = tx.Rollback(context.WithoutCancel(ctx))
				return nil, err
			}
			return func() error { return tx.Commit(context.WithoutCancel(ctx)) }, nil
		}, p.Close
	}},
	{"go-pglock", func(t *testing.T, url string) (lock, func()) {
		db := database(t, url)
		return func(ctx context.Context, key string) (func() error, error) {
			conn, err := db.Conn(ctx)
			if err != nil {
				return nil, err
			}
			l := allisson.NewLock(conn)
			if err := l.WaitAndLock(number(key)); err != nil {
				_ = conn.Close()
				return nil, err
			}
			return func() error {
				defer conn.Close()
				return l.Unlock(number(key))
			}, nil
		}, func() { _ = db.Close() }
	}},
	{"cirello.io/pglock", func(t *testing.T, url string) (lock, func()) {
		db := database(t, url)
		// A waiter sleeps for the lease duration, which is 20 s by default.
		c, err := cirello.New(db, cirello.WithLeaseDuration(time.Second), cirello.WithHeartbeatFrequency(time.Second/3))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.TryCreateTable(); err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context, key string) (func() error, error) {
			l, err := c.AcquireContext(ctx, key)
			if err != nil {
				return nil, err
			}
			return func() error { return c.ReleaseContext(context.WithoutCancel(ctx), l) }, nil
		}, func() { _ = db.Close() }
	}},
	{"locker", func(t *testing.T, url string) (lock, func()) {
		p := pool(t, url)
		if _, err := postgreslock.Migrate(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		l := postgreslock.New(p)
		return func(ctx context.Context, key string) (func() error, error) {
				lease, err := l.Lock(ctx, key)
				if err != nil {
					return nil, err
				}
				return func() error { return lease.Unlock(context.WithoutCancel(ctx)) }, nil
			}, func() {
				_ = l.Close()
				p.Close()
			}
	}},
}

func number(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int64(h.Sum64())
}

func pool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = connections
	p, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func database(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

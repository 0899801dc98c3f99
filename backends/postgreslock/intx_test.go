package postgreslock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/memory"
)

// begin begins a transaction on a connection of its own, which the end of the test rolls back.
func begin(t testing.TB, url string, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// client makes a Client with a pool of its own.
func client(t testing.TB, url string, opts ...postgreslock.Option) *locker.Client {
	t.Helper()
	c := postgreslock.New(pool(t, url), opts...)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func lock(t testing.TB, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// protected returns a lease that is about to expire, and a transaction that InTx protects. On a busy machine the lease
// may expire before that.
func protected(t testing.TB, l locker.Locker, url, key string) (locker.Lease, pgx.Tx) {
	t.Helper()
	for {
		lease, err := l.Lock(t.Context(), key, locker.TTL(500*time.Millisecond), locker.NoRenewal())
		if err != nil {
			t.Logf("Lock is tried again: %v", err)
			continue
		}
		tx := begin(t, url, pgx.ReadCommitted)
		err = postgreslock.InTx(t.Context(), tx, lease)
		if err == nil {
			return lease, tx
		}
		wantErr(t, "InTx", err, locker.ErrLost)
		err = tx.Rollback(t.Context())
		// If the lease has ended in the midst of InTx, pgx has closed the connection; and the server ends a transaction
		// that is idle for the TTL.
		if lease.Err() == nil || !tx.Conn().IsClosed() {
			must(t, "Rollback", err)
		}
	}
}

func wantHeld(t testing.TB, l locker.Locker, key, when string) {
	t.Helper()
	if lease, err := l.TryLock(t.Context(), key); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("TryLock %s: got %v, want ErrHeld", when, err)
		if err == nil {
			_ = lease.Unlock(t.Context())
		}
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func wantErr(t testing.TB, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want an error that matches %q", what, err, want)
	}
}

func testInTx(t *testing.T, s *pgtest.Server) {
	url := s.URL("postgres")
	holder, other := client(t, url), client(t, url)

	t.Run("keeps others out until the commit, beyond the TTL", func(t *testing.T) {
		t.Parallel()
		lease, tx := protected(t, holder, url, "expiry")
		next := make(chan time.Time, 1)
		go func() {
			if l, err := other.Lock(context.WithoutCancel(t.Context()), "expiry"); err == nil {
				next <- time.Now()
				_ = l.Unlock(context.WithoutCancel(t.Context()))
			}
		}()
		worked := make(chan error, 1)
		go func() { // so that the transaction is not idle meanwhile
			_, err := tx.Exec(t.Context(), "SELECT pg_sleep(3)")
			worked <- err
		}()
		run(t, pool(t, url), "SELECT pg_sleep(1)")
		wantErr(t, "the lease after its TTL", lease.Err(), locker.ErrLost)
		wantHeld(t, other, "expiry", "of an expired lock whose transaction is open")
		must(t, "the work", <-worked)
		before := time.Now()
		must(t, "Commit", tx.Commit(t.Context()))
		if at := <-next; at.Before(before) {
			t.Errorf("the next owner was granted the lock %v before the commit", before.Sub(at))
		}
	})
	t.Run("lets renewals go on", func(t *testing.T) {
		t.Parallel()
		lease := lock(t, holder, "renewal", locker.TTL(time.Minute))
		tx := begin(t, url, pgx.ReadCommitted)
		must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))
		must(t, "Extend", lease.Extend(t.Context(), locker.TTL(2*time.Minute)))
		must(t, "InTx again", postgreslock.InTx(t.Context(), tx, lease))
		must(t, "Commit", tx.Commit(t.Context()))
		must(t, "Unlock", lease.Unlock(t.Context()))
	})
	t.Run("outlasts Unlock", func(t *testing.T) {
		t.Parallel()
		lease := lock(t, holder, "unlock")
		tx := begin(t, url, pgx.ReadCommitted)
		must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))
		must(t, "Unlock", lease.Unlock(t.Context()))
		wantHeld(t, other, "unlock", "of a released lock whose transaction is open")
		must(t, "Commit", tx.Commit(t.Context()))
		must(t, "Unlock", lock(t, other, "unlock").Unlock(t.Context()))
	})
	t.Run("fails if the lock was taken over", func(t *testing.T) {
		t.Parallel()
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			key := "over " + string(level)
			lease := lock(t, holder, key)
			tx := begin(t, url, level)
			var n int // takes the snapshot
			must(t, "count", tx.QueryRow(t.Context(), "SELECT count(*) FROM locker.locks").Scan(&n))
			_, err := holder.ForceRelease(t.Context(), key, "")
			must(t, "ForceRelease", err)
			next := lock(t, other, key)
			err = postgreslock.InTx(t.Context(), tx, lease)
			if level == pgx.ReadCommitted {
				wantErr(t, "InTx", err, locker.ErrLost)
			} else if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "40001" {
				t.Errorf("InTx, %s: got %v, want a serialization failure", level, err)
			}
			must(t, "Unlock", next.Unlock(t.Context()))
		}
	})
	t.Run("does not end a lease that is newer than the snapshot", func(t *testing.T) {
		t.Parallel()
		tx := begin(t, url, pgx.RepeatableRead)
		var n int
		must(t, "count", tx.QueryRow(t.Context(), "SELECT count(*) FROM locker.locks").Scan(&n))
		lease := lock(t, holder, "newer")
		wantErr(t, "InTx", postgreslock.InTx(t.Context(), tx, lease), locker.ErrUnavailable)
		must(t, "the lease", lease.Err())
		must(t, "Unlock", lease.Unlock(t.Context()))
	})
	t.Run("fails if the lock was taken over before the snapshot", func(t *testing.T) {
		t.Parallel()
		lease := lock(t, holder, "before")
		_, err := holder.ForceRelease(t.Context(), "before", "")
		must(t, "ForceRelease", err)
		next := lock(t, other, "before")
		err = postgreslock.InTx(t.Context(), begin(t, url, pgx.Serializable), lease)
		wantErr(t, "InTx", err, locker.ErrLost)
		must(t, "Unlock", next.Unlock(t.Context()))
	})
	t.Run("bears an extension since the snapshot", func(t *testing.T) {
		t.Parallel()
		lease := lock(t, holder, "extended", locker.TTL(time.Minute))
		expire := func(in string) {
			const expires = "UPDATE locker.locks SET expires = clock_timestamp() + $1::text::interval WHERE fence = $2"
			run(t, pool(t, url), expires, in, int64(lease.Fence()))
		}
		expire("0")
		tx := begin(t, url, pgx.RepeatableRead)
		var n int
		must(t, "count", tx.QueryRow(t.Context(), "SELECT count(*) FROM locker.locks").Scan(&n))
		expire("1 minute")
		must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))
		_, err := holder.ForceRelease(t.Context(), "extended", "")
		must(t, "ForceRelease", err)
		wantHeld(t, other, "extended", "of a lock whose transaction is open")
		must(t, "Commit", tx.Commit(t.Context()))
	})
	t.Run("refuses transactions that are read only", func(t *testing.T) {
		t.Parallel()
		lease := lock(t, holder, "read only")
		tx := begin(t, url, pgx.ReadCommitted)
		_, err := tx.Exec(t.Context(), "SET TRANSACTION READ ONLY")
		must(t, "SET", err)
		err = postgreslock.InTx(t.Context(), tx, lease)
		wantErr(t, "InTx", err, locker.ErrUnavailable)
		if !strings.Contains(err.Error(), "begin another one") {
			t.Errorf("InTx: %q does not say what to do", err)
		}
		must(t, "Unlock", lease.Unlock(t.Context()))
	})
	t.Run("ends a transaction that is idle for the TTL", func(t *testing.T) {
		t.Parallel()
		_, tx := protected(t, holder, url, "idle")
		next := lock(t, other, "idle") // nobody commits
		if err := tx.Commit(t.Context()); err == nil {
			t.Error("Commit: got no error, and the next owner has the lock")
		}
		must(t, "Unlock", next.Unlock(t.Context()))
	})
	t.Run("ends a transaction that is idle after it was refused", func(t *testing.T) {
		t.Parallel()
		lease := lock(t, holder, "refused", locker.TTL(2*time.Second), locker.NoRenewal())
		const expire = "UPDATE locker.locks SET expires = clock_timestamp() WHERE fence = $1"
		run(t, pool(t, url), expire, int64(lease.Fence()))
		tx := begin(t, url, pgx.ReadCommitted)
		wantErr(t, "InTx", postgreslock.InTx(t.Context(), tx, lease), locker.ErrLost)
		eventually(t, "another owner is granted the lock", func() bool { // nobody ends the transaction
			next, err := other.TryLock(t.Context(), "refused")
			return err == nil && next.Unlock(t.Context()) == nil
		})
	})
	t.Run("works with database/sql, and with several locks", func(t *testing.T) {
		t.Parallel()
		db := stdlib.OpenDBFromPool(pool(t, url))
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
		must(t, "BeginTx", err)
		all, err := locker.LockAll(t.Context(), holder, []string{"first", "second"})
		must(t, "LockAll", err)
		must(t, "InSQLTx", postgreslock.InSQLTx(t.Context(), tx, all))
		must(t, "Unlock", all.Unlock(t.Context()))
		wantHeld(t, other, "first", "of a released lock whose transaction is open")
		wantHeld(t, other, "second", "of a released lock whose transaction is open")
		must(t, "Commit", tx.Commit())
	})
	t.Run("keeps the next caller of the Client out, too", func(t *testing.T) {
		t.Parallel()
		// local hands the lock from one caller of a Client to the other, who waits meanwhile if the machine is not too
		// slow. It reports whether the other had it within the process, before the commit.
		local := func(bind func(tx pgx.Tx, lease locker.Lease)) bool {
			const key = "same client"
			tx := begin(t, url, pgx.ReadCommitted)
			before := lock(t, other, key)
			granted := make(chan locker.Lease)
			for range 2 {
				go func() {
					l, err := holder.Lock(t.Context(), key)
					must(t, "Lock", err)
					granted <- l
				}()
			}
			eventually(t, "one of them waits in the store's queue", func() bool {
				i, err := holder.Inspect(t.Context(), key)
				return err == nil && i.Waiting == 1
			})
			must(t, "Unlock", before.Unlock(t.Context()))
			first := <-granted
			bind(tx, first)
			must(t, "Unlock", first.Unlock(t.Context()))
			select {
			case second := <-granted:
				must(t, "Commit", tx.Commit(t.Context()))
				must(t, "Unlock", second.Unlock(t.Context()))
				return second.Token() == first.Token()
			case <-time.After(200 * time.Millisecond): // in which it would have been handed over
				must(t, "Commit", tx.Commit(t.Context()))
				must(t, "Unlock", (<-granted).Unlock(t.Context()))
				return false
			}
		}
		eventually(t, "a lock is handed over within the process", func() bool {
			return local(func(tx pgx.Tx, _ locker.Lease) {
				_, err := tx.Exec(t.Context(), "SELECT 1")
				must(t, "SELECT", err)
			})
		})
		for range 5 {
			if local(func(tx pgx.Tx, lease locker.Lease) { must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease)) }) {
				t.Error("the next caller had the lock before the commit of a transaction that is bound to it")
			}
		}
	})
	t.Run("refuses leases of other backends", func(t *testing.T) {
		t.Parallel()
		m := memory.New()
		defer m.Close()
		tx := begin(t, url, pgx.ReadCommitted)
		wantErr(t, "InTx", postgreslock.InTx(t.Context(), tx, lock(t, m, "memory")), errors.ErrUnsupported)
	})
}

// A lock that was released during a transaction goes to the next owner soon after the transaction has ended.
func testHandOverAfterATransaction(t *testing.T, s *pgtest.Server) {
	const key, want, tries = "after a transaction", 500 * time.Millisecond, 5
	p := pool(t, s.URL("postgres"))
	holder, other := client(t, s.URL("postgres")), client(t, s.URL("postgres"))
	best := time.Hour
	for i := 0; i < tries && best > want; i++ {
		lease := lock(t, holder, key)
		tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))
		granted := waiting(t, other, key, nil)
		must(t, "Unlock", lease.Unlock(t.Context()))
		released := texts(t, p, "SELECT clock_timestamp()::text")[0]
		const looked = "SELECT ticket FROM locker.waiters WHERE name = $1 AND seen > $2::text::timestamptz"
		eventually(t, "the waiter has looked", func() bool {
			return len(texts(t, p, looked, []byte("lock:"+key), released)) > 0
		})
		committed := time.Now()
		must(t, "Commit", tx.Commit(t.Context()))
		next := <-granted
		best = min(best, time.Since(committed))
		must(t, "Unlock", next.Unlock(t.Context()))
	}
	if best > want {
		t.Errorf("the next owner had the lock %v after the transaction, at best of %d tries, want less than %v", best, tries,
			want)
	}
}

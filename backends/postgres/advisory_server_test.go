package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// Two names with the same hash exclude each other, and nothing worse happens.
func testAdvisoryCollision(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	schema := postgres.Schema("collide")
	_, err := postgres.Migrate(t.Context(), p, schema)
	must(t, "Migrate", err)
	run(t, p, "CREATE OR REPLACE FUNCTION collide.advisory_slot(a_name bytea) RETURNS bigint LANGUAGE sql AS "+
		"'SELECT -7::bigint'")
	one, two := advisory(t, s.URL("postgres"), schema), advisory(t, s.URL("postgres"), schema)
	first := lock(t, one, "one", locker.Label("first"))
	wantHeld(t, two, "two", "of a name that collides")
	granted := waiting(t, two, "two", nil)
	i, err := two.Inspect(t.Context(), "two")
	must(t, "Inspect", err)
	if i.State != inspect.Held || i.Label != "first" {
		t.Errorf("Inspect of a name that collides: got %+v, want the holder of the other name", i)
	}
	must(t, "Extend", first.Extend(t.Context()))
	must(t, "Unlock", first.Unlock(t.Context()))
	second := <-granted
	if second.Fence() <= first.Fence() {
		t.Errorf("got token %d after %d", second.Fence(), first.Fence())
	}
	must(t, "Unlock", second.Unlock(t.Context()))
}

// There is no lock through a proxy, whatever it shares: the server refuses it before it takes the lock.
func testAdvisoryPgBouncer(t *testing.T, s *pgtest.Server) {
	b := pgtest.NewBouncer(t, s)
	for _, mode := range []string{"session", "transaction"} {
		l := advisory(t, b.URL(mode)+"&default_query_exec_mode=exec")
		for what, acquire := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
			"Lock": l.Lock, "TryLock": l.TryLock,
		} {
			_, err := acquire(t.Context(), "bounced "+mode)
			wantErr(t, what+" through PgBouncer", err, locker.ErrUnavailable)
			if err != nil && !strings.Contains(err.Error(), "to the server itself") {
				t.Errorf("%s through PgBouncer: %q does not say what to do", what, err)
			}
		}
		must(t, "Unlock", lock(t, advisory(t, s.URL("postgres")), "bounced "+mode).Unlock(t.Context()))
	}
}

// What rows have is not granted as an advisory lock, and InTx says that it does not protect a transaction.
func testAdvisoryAndRows(t *testing.T, s *pgtest.Server) {
	rows, l := client(t, s.URL("postgres")), advisory(t, s.URL("postgres"))
	lease := lock(t, rows, "mixed", locker.Label("rows"))
	_, err := l.TryLock(t.Context(), "mixed")
	wantErr(t, "TryLock of a lock that a row has", err, locker.ErrHeld)
	var held *locker.HeldError
	if !errors.As(err, &held) || held.Label != "rows" || held.Remaining <= 0 {
		t.Errorf("TryLock of a lock that a row has: got %+v, want its label and time", held)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
	lease = lock(t, l, "mixed")
	err = postgres.InTx(t.Context(), begin(t, s.URL("postgres"), pgx.ReadCommitted), lease)
	wantErr(t, "InTx", err, errors.ErrUnsupported)
	if err != nil && !strings.Contains(err.Error(), "postgres.New") {
		t.Errorf("InTx: %q does not say what to do", err)
	}
	must(t, "Verify", locker.Verify(t.Context(), lease))
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// A connection comes back to the pool as it was, and one that was granted nothing does, too.
func testAdvisoryConnectionIsReused(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres")+"&pool_max_conns=1&idle_session_timeout=3600000")
	l := postgres.NewAdvisory(p, postgres.Prefix("reused:"))
	t.Cleanup(func() { must(t, "Close", l.Close()) })
	other := advisory(t, s.URL("postgres"), postgres.Prefix("reused:"))
	const session = "SELECT pg_backend_pid() || ' ' || current_setting('idle_session_timeout') || ' ' || " +
		"(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"
	before := texts(t, p, session)[0]
	unchanged := func(after string) {
		t.Helper()
		if now := texts(t, p, session)[0]; now != before || !strings.HasSuffix(now, " 1h 0") {
			t.Errorf("process, timeout and locks of the connection after %s: got %s, want %s", after, now, before)
		}
	}
	must(t, "Unlock", lock(t, l, "1", locker.TTL(time.Minute)).Unlock(t.Context()))
	unchanged("a release")
	must(t, "Unlock", lock(t, l, "1", locker.TTL(time.Minute), locker.MinHold(time.Minute)).Unlock(t.Context()))
	unchanged("a release that keeps the lock")
	wantHeld(t, l, "1", "of a lock that is kept")
	unchanged("an acquisition of a lock that is kept")
	lease := lock(t, other, "2")
	wantHeld(t, l, "2", "of a lock that another has")
	unchanged("an acquisition of a lock that another has")
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// An acquisition that fails after it took the lock has not got it, also if nobody closes its connection.
func testAdvisoryFailureReleases(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres")+"&pool_max_conns=1")
	_, err := postgres.Migrate(t.Context(), p, postgres.Schema("fails"))
	must(t, "Migrate", err)
	run(t, p, "DROP SEQUENCE fails.fences")
	const acquire = "SELECT fails.advisory_acquire('k', 'token', '', 60000, pg_backend_pid(), $1, false)"
	for _, waits := range []bool{false, true} {
		if _, err := p.Exec(t.Context(), acquire, waits); err == nil {
			t.Error("advisory_acquire without tokens: got no error")
		}
		const held = "SELECT 'lock' FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
		if left := texts(t, p, held); len(left) > 0 {
			t.Errorf("advisory_acquire without tokens: it has left %v", left)
		}
	}
}

// A server that is too old refuses advisory locks and says so. It is not blamed for a setting that it does not know.
func testAdvisoryOldServer(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	schema := postgres.Schema("old")
	_, err := postgres.Migrate(t.Context(), p, schema)
	must(t, "Migrate", err)
	run(t, p, "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('old.advisory_acquire'::regproc), '140000', '2000000'); "+
		"END $$")
	const advice = "PostgreSQL 14 or newer"
	_, err = advisory(t, s.URL("postgres"), schema).TryLock(t.Context(), "k")
	wantErr(t, "TryLock on an old server", err, locker.ErrUnavailable)
	if err != nil && !strings.Contains(err.Error(), advice) {
		t.Errorf("TryLock on an old server: %q does not say what to do", err)
	}
	_, err = client(t, s.URL("postgres")+"&nonsense=1").TryLock(t.Context(), "k")
	wantErr(t, "TryLock with an unknown setting", err, locker.ErrUnavailable)
	if err != nil && strings.Contains(err.Error(), advice) {
		t.Errorf("TryLock with an unknown setting: %q gives advice about something else", err)
	}
}

// Acquisitions, extensions and releases do not wait for the disk, except for tokens, which are written for 32 grants at
// a time. What waits for the disk waits for a synchronous standby, and here that is away.
func TestAdvisoryWaitsForNoDisk(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	l := advisory(t, s.URL("postgres"))
	run(t, p, "CREATE TABLE written ()")
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context())) // writes tokens
	run(t, p, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	run(t, p, "SELECT pg_reload_conf()")
	defer func() {
		run(t, p, "ALTER SYSTEM RESET synchronous_standby_names")
		run(t, p, "SELECT pg_reload_conf()")
	}()
	eventually(t, "what is written waits for the standby", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Exec(ctx, "INSERT INTO written DEFAULT VALUES")
		return err != nil
	})
	for range 10 {
		lease := lock(t, l, "k")
		must(t, "Extend", lease.Extend(t.Context()))
		must(t, "Unlock", lease.Unlock(t.Context()))
	}
}

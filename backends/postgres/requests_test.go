package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// statements counts what a pool sends, except the pings of connections that were idle.
type statements struct{ sent, prepared atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(q.SQL, "ping") {
		s.sent.Add(1)
	}
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	s.prepared.Add(1)
	return ctx
}

func (s *statements) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

// counted makes a Client that has one connection, whose statements are counted.
func counted(t *testing.T, url string) (*locker.Client, *statements) {
	t.Helper()
	settings, err := pgxpool.ParseConfig(url + "&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	var count statements
	settings.ConnConfig.Tracer = &count
	p, err := pgxpool.NewWithConfig(t.Context(), settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	l := postgres.New(p)
	t.Cleanup(func() { must(t, "Close", l.Close()) })
	return l, &count
}

// An acquisition, an extension and a release are one statement each, which is prepared once for each connection. There
// is no transaction block around them.
func testRoundTrips(t *testing.T, s *pgtest.Server) {
	l, count := counted(t, s.URL("postgres"))
	const cycles = 10
	for range cycles {
		lease := lock(t, l, "round trips")
		must(t, "Extend", lease.Extend(t.Context()))
		must(t, "Unlock", lease.Unlock(t.Context()))
	}
	if n := count.sent.Load(); n != 3*cycles {
		t.Errorf("got %d statements for %d acquisitions, extensions and releases, want %d", n, cycles, 3*cycles)
	}
	if n := count.prepared.Load(); n != 3 {
		t.Errorf("got %d statements prepared, want 3", n)
	}
}

// What a crash must not forget waits for the disk and for a synchronous standby, also if the user's commits do not.
// A release does not wait.
func testWaitsForTheDisk(t *testing.T, s *pgtest.Server) {
	const acquire = "SELECT locker.acquire('disk', 'disk token', '', 60000000, '', '')"
	for _, c := range []struct{ call, user, want string }{
		{acquire, "off", "on"},
		{acquire, "local", "on"},
		{acquire, "remote_apply", "remote_apply"},
		{"SELECT locker.acquire_many('{disk}', '{disk token}', '', 60000000)", "off", "on"},
		{"SELECT locker.extend('disk', 'disk token', 60000000)", "off", "on"},
		{"SELECT locker.force_release('disk', '')", "off", "on"},
		{"SELECT locker.release('disk', 'disk token', 60000000)", "off", "on"}, // the lock is kept
		{"SELECT locker.release('disk', 'disk token', 0)", "on", "off"},
		{"SELECT locker.undo('disk', 'disk token', '', 60000000)", "on", "off"},
	} {
		var got string
		tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		_, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = "+c.user)
		must(t, "SET", err)
		_, err = tx.Exec(t.Context(), c.call)
		must(t, c.call, err)
		must(t, "SHOW", tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got))
		if got != c.want {
			t.Errorf("%s, with synchronous_commit = %s: the commit has %s, want %s", c.call, c.user, got, c.want)
		}
		must(t, "Rollback", tx.Rollback(t.Context()))
	}
}

// A release that the server has refused is tried again.
func testRefusedRelease(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE refused LOGIN")
	run(t, admin, "GRANT USAGE ON SCHEMA locker TO refused")
	run(t, admin, "GRANT EXECUTE ON FUNCTION locker.acquire TO refused")
	l, count := counted(t, s.URL("refused"))
	lease := lock(t, l, "refused", locker.TTL(time.Hour))
	wantErr(t, "Unlock without the right", lease.Unlock(t.Context()), locker.ErrUnavailable)
	eventually(t, "the release is tried again", func() bool { return count.sent.Load() > 3 })
	run(t, admin, "GRANT EXECUTE ON FUNCTION locker.release TO refused")
	other := client(t, s.URL("postgres"))
	eventually(t, "the lock is released", func() bool {
		next, err := other.TryLock(t.Context(), "refused")
		return err == nil && next.Unlock(t.Context()) == nil
	})
}

// Close does not wait for the connections of a pool that others have.
func testCloseWithoutConnections(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres")+"&pool_max_conns=1")
	conn, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	l := postgres.New(p, postgres.Timeout(time.Hour))
	began, tried, closed := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		close(began)
		_, err := l.TryLock(context.WithoutCancel(t.Context()), "k")
		tried <- err
	}()
	<-began
	go func() { closed <- l.Close() }()
	select {
	case err := <-closed:
		must(t, "Close", err)
	case <-time.After(time.Minute):
		t.Fatal("Close has not returned within a minute")
	}
	if err := <-tried; !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrClosed) {
		t.Errorf("TryLock: got %v, want ErrUnavailable or ErrClosed", err)
	}
}

package postgreslock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/steady"
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
	l := postgreslock.New(p)
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
		{"SELECT locker.acquire_some('{disk}', '{disk token}', '', 60000000, 1, '{}', true)", "off", "on"},
		{"SELECT locker.extend('disk', 'disk token', 60000000)", "off", "on"},
		{"SELECT locker.force_release('disk', '')", "off", "on"},
		{"SELECT locker.release('disk', 'disk token', 60000000)", "off", "on"}, // the lock is kept
		{"SELECT locker.release('disk', 'disk token', 0)", "on", "off"},
		{"SELECT locker.extend_some('{disk}', '{disk token}', '{60000000}', '{f}')", "off", "on"},
		{"SELECT locker.release_some('{disk}', '{disk token}')", "on", "off"},
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
	l := postgreslock.New(p, postgreslock.Timeout(time.Hour))
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

// muted is a connection whose answers get lost once it is silent, as behind a router that has forgotten it.
type muted struct {
	net.Conn
	silent atomic.Bool
}

func (m *muted) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil || !m.silent.Load() {
			return n, err
		}
	}
}

// mutes returns a function that makes the connections silent that there are.
func mutes(settings *pgxpool.Config) (mute func()) {
	var mu sync.Mutex
	var conns []*muted
	dial := settings.ConnConfig.DialFunc
	settings.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		m := &muted{Conn: conn}
		conns = append(conns, m)
		return m, nil
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.silent.Store(true)
		}
	}
}

// A lock is extended over another connection if those of the pool are silent, although a request may take longer than
// the TTL.
func testSilentConnectionsLoseNoLock(t *testing.T, s *pgtest.Server) {
	for name, ping := range map[string]bool{"idle": true, "used": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, err := pgxpool.ParseConfig(s.URL("postgres"))
			must(t, "ParseConfig", err)
			settings.MaxConns = 1
			settings.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return ping }
			mute := mutes(settings)
			p, err := pgxpool.NewWithConfig(t.Context(), settings)
			must(t, "NewWithConfig", err)
			t.Cleanup(p.Close)
			b := postgreslock.NewBackend(p, postgreslock.Prefix(newPrefix()), postgreslock.Timeout(time.Minute))
			t.Cleanup(func() { _ = b.Close() })
			req := backend.Request{Key: "k", Token: backend.NewToken(), TTL: 12 * time.Second}
			g, err := b.Acquire(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			req.Fence, req.Private = g.Fence, g.Private
			mute()
			err = b.Extend(t.Context(), req)
			wantErr(t, "Extend over a connection that is silent", err, locker.ErrUnavailable)
			must(t, "Extend after that", b.Extend(t.Context(), req))
		})
	}
}

// An attempt whose connection is silent is undone by another connection, also if the Client is closed at once.
func testUndoneBeforeClose(t *testing.T, s *pgtest.Server) {
	settings, err := pgxpool.ParseConfig(s.URL("postgres"))
	must(t, "ParseConfig", err)
	mute := mutes(settings)
	p, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, "NewWithConfig", err)
	t.Cleanup(p.Close)
	prefix := newPrefix()
	l := postgreslock.New(p, postgreslock.Prefix(prefix))
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
	mute()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := l.TryLock(ctx, "k", locker.TTL(time.Hour)); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("TryLock: got %v, want ErrUnavailable", err)
	}
	must(t, "Close", l.Close())
	if left := texts(t, pool(t, s.URL("postgres")), leftSQL, prefix); len(left) > 0 {
		t.Errorf("Close has left %q", left)
	}
}

// Very many locks at the same time do not exhaust the server's lock table, which all of its users share. This table has
// room for some hundred entries.
func TestManyLocksSpareTheLockTable(t *testing.T) {
	t.Parallel()
	const room, keys = 1000, 1200
	s := migrated(t, "max_connections=20", "max_locks_per_transaction=10", "max_worker_processes=0",
		"autovacuum_max_workers=1")
	b := postgreslock.NewBackend(pool(t, s.URL("postgres")))
	var reqs []backend.Request
	for i := range 65 {
		reqs = append(reqs, backend.Request{Key: fmt.Sprint(i), Token: fmt.Sprint("token", i), TTL: time.Minute})
	}
	_, err := b.AcquireMany(t.Context(), reqs, backend.Choice{})
	wantErr(t, "AcquireMany of 65 locks", err, errors.ErrUnsupported)
	grants, err := b.AcquireMany(t.Context(), reqs[:64], backend.Choice{})
	must(t, "AcquireMany of 64 locks", err)
	if len(grants) != 64 {
		t.Errorf("got %d grants of 64 locks", len(grants))
	}
	must(t, "Close", b.Close())

	const full = "SELECT count(pg_advisory_xact_lock(n))::text FROM generate_series(1, $1) n"
	if _, err := pool(t, s.URL("postgres")).Exec(t.Context(), full, room); err == nil {
		t.Fatalf("the lock table has room for %d entries: this test shows nothing", room)
	}
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("many ", i)
	}
	all, err := locker.LockAll(t.Context(), client(t, s.URL("postgres")), names, locker.TTL(time.Hour))
	if err != nil {
		t.Fatalf("LockAll: %v", err)
	}
	if err := all.Unlock(t.Context()); err != nil { // which waits for a second only
		wantErr(t, "Unlock", err, locker.ErrUnavailable)
	}
	p := pool(t, s.URL("postgres"))
	eventually(t, "all locks are released", func() bool { return len(texts(t, p, leftSQL, "lock:many ")) == 0 })
}

// What happens every day is not logged as an error: operators have alerts for that.
func TestRefusalsAreNotErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	l, other := client(t, s.URL("postgres")), client(t, s.URL("postgres"))
	lease := lock(t, l, "b", locker.TTL(time.Minute), locker.Label("the owner"))
	wantHeld(t, other, "b", "of a held lock")
	_, err := locker.TryLockAll(t.Context(), other, []string{"a", "b", "c"})
	var held *locker.HeldError
	var named *locker.Error
	switch {
	case !errors.As(err, &held) || !errors.As(err, &named):
		t.Errorf("TryLockAll: got %v, want ErrHeld", err)
	case named.Key != "b" || held.Label != "the owner" || held.Remaining <= 0 || held.Remaining > time.Minute:
		t.Errorf("TryLockAll: got %v, with %+v, want the owner of b", err, held)
	}
	must(t, "Unlock of a lock that no refusal has taken", lock(t, other, "a").Unlock(t.Context()))
	granted := waiting(t, other, "b", nil)
	must(t, "Unlock", lease.Unlock(t.Context()))
	next := <-granted
	must(t, "Unlock", next.Unlock(t.Context()))
	if log := s.Log(); strings.Contains(log, "ERROR:") {
		t.Errorf("the server has logged errors:\n%s", log)
	}
}

// Locks work behind PgBouncer, whether it shares connections between sessions or between transactions.
func testPgBouncer(t *testing.T, s *pgtest.Server) {
	b := pgtest.NewBouncer(t, s)
	exec := b.URL("transaction") + "&default_query_exec_mode=exec"
	t.Run("two programs prepare the same statement on a shared connection", func(t *testing.T) {
		one, two := client(t, b.URL("transaction")), client(t, b.URL("transaction"))
		must(t, "Unlock", lock(t, one, "prepared").Unlock(t.Context()))
		_, err := two.TryLock(t.Context(), "prepared")
		wantErr(t, "TryLock", err, locker.ErrUnavailable)
		if !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
			t.Errorf("TryLock: %q does not say what to do", err)
		}
	})
	for mode, url := range map[string]string{"session": b.URL("session"), "transaction": exec} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			holder, other := client(t, url), client(t, url)
			lease := lock(t, holder, mode)
			must(t, "Extend", lease.Extend(t.Context()))
			must(t, "Verify", locker.Verify(t.Context(), lease))
			tx := begin(t, url, pgx.ReadCommitted)
			must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))
			granted := waiting(t, other, mode, nil)
			must(t, "Unlock", lease.Unlock(t.Context()))
			wantHeld(t, holder, mode, "of a released lock whose transaction is open")
			must(t, "Commit", tx.Commit(t.Context()))
			next := <-granted
			must(t, "Unlock", next.Unlock(t.Context()))
			all, err := locker.LockAll(t.Context(), other, []string{mode + " 1", mode + " 2"})
			must(t, "LockAll", err)
			steady.Unlock(t, all)
		})
	}
	t.Run("waiters are notified if sessions are not shared", func(t *testing.T) {
		t.Parallel()
		holder, other := client(t, b.URL("session")), client(t, b.URL("session"))
		var hints atomic.Int64
		eventually(t, "a waiter is notified, besides that it learns that it can be", func() bool {
			lease := lock(t, holder, "notified")
			granted := waiting(t, other, "notified", &hints)
			must(t, "Unlock", lease.Unlock(t.Context()))
			next := <-granted
			must(t, "Unlock", next.Unlock(t.Context()))
			return hints.Load() > 1
		})
	})
}

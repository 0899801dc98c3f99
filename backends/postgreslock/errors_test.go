package postgreslock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// wantText checks that err matches locker.ErrUnavailable and says something.
func wantText(t *testing.T, what string, err error, text string) {
	t.Helper()
	wantErr(t, what, err, locker.ErrUnavailable)
	if err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want an error that says %q", what, err, text)
	}
}

// Some proxies answer with errors that have no code.
func TestErrorWithoutACode(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { playProxyWithoutServers(conn) })
		}
	})
	l := client(t, "postgres://u@"+listener.Addr().String()+"/d?sslmode=disable&default_query_exec_mode=exec")
	_, err = l.Lock(t.Context(), "k")
	wantText(t, "Lock", err, "no server is available")
}

// playProxyWithoutServers accepts a login, and answers every request with an error, as pgproto3 describes them.
func playProxyWithoutServers(conn net.Conn) {
	defer conn.Close()
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	for err := error(nil); err == nil; {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		var m pgproto3.FrontendMessage
		for m, err = b.Receive(); err == nil; m, err = b.Receive() {
			if _, ok := m.(*pgproto3.Sync); ok {
				break
			}
		}
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Message: "no server is available"})
	}
}

// Amazon Aurora refuses to tell the place in its log, unless wal_level is logical.
func TestServerThatDoesNotTellThePlaceInItsLog(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, "allow_system_table_mods=on")
	p := pool(t, s.URL("postgres"))
	run(t, p, "DELETE FROM pg_proc WHERE proname = 'pg_current_wal_lsn'")
	run(t, p, `CREATE FUNCTION pg_catalog.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS $$ BEGIN
		RAISE EXCEPTION 'wal_level must be set to ''logical''' USING ERRCODE = '55000';
	END $$`)
	migrate(t, s)
	must(t, "Unlock", lock(t, client(t, s.URL("postgres")), "k").Unlock(t.Context()))
}

// A program that uses up its connections learns that this is what its locks wait for.
func testFullPool(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres")+"&pool_max_conns=1")
	l := postgreslock.New(p, postgreslock.Timeout(100*time.Millisecond))
	defer l.Close()
	err := pgx.BeginFunc(t.Context(), p, func(pgx.Tx) error {
		_, err := l.TryLock(t.Context(), "full pool")
		wantText(t, "TryLock within a transaction", err, "all 1 connections of the pool were in use")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = l.TryLock(ctx, "full pool")
		wantErr(t, "TryLock within a transaction", err, context.DeadlineExceeded)
		wantText(t, "TryLock within a transaction", err, "pool_max_conns")
		return nil
	})
	must(t, "the transaction", err)
}

// The name of a schema is part of the text of functions.
func testSchemaNames(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	for _, name := range []string{
		"", `Weird"x`, "it's", "größe", "$$", "with space", "@schema@", strings.Repeat("x", 64),
	} {
		_, err := postgreslock.Migrate(t.Context(), p, postgreslock.Schema(name))
		wantErr(t, "Migrate of the schema "+name, err, locker.ErrInvalid)
		_, err = client(t, s.URL("postgres"), postgreslock.Schema(name)).TryLock(t.Context(), "k")
		wantErr(t, "TryLock in the schema "+name, err, locker.ErrInvalid)
	}
}

// The server, the database or the user may refuse writes, and the user may have another encoding.
func testSettingsOfTheUser(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	for user, setting := range map[string]string{
		"reader": "default_transaction_read_only = on", "latin": "client_encoding = 'LATIN1'",
	} {
		run(t, admin, "CREATE ROLE "+user+" LOGIN SUPERUSER")
		run(t, admin, "ALTER ROLE "+user+" SET "+setting)
	}
	_, err := client(t, s.URL("reader")).TryLock(t.Context(), "read only")
	wantText(t, "TryLock of a user who may only read", err, "default_transaction_read_only")
	_, err = open(t, s.URL("reader")).TryLock(t.Context(), "read only")
	wantText(t, "TryLock of a user who may only read, by a URL", err, "default_transaction_read_only")
	const key, label = "encoding", "日本"
	lease := lock(t, open(t, s.URL("latin")), key, locker.Label(label))
	var held *locker.HeldError
	if _, err = client(t, s.URL("postgres")).TryLock(t.Context(), key); !errors.As(err, &held) || held.Label != label {
		t.Errorf("the label of a user with another encoding: got %v, want %s", err, label)
	}
	_, err = client(t, s.URL("latin")).TryLock(t.Context(), key)
	wantText(t, "TryLock of a user with another encoding", err, "client_encoding")
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// quitter ends the context of a call when its request is sent.
type quitter struct{ quit context.CancelFunc }

func (q *quitter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if q.quit != nil {
		q.quit()
	}
	return ctx
}

func (q *quitter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Callers that leave before the answer comes leave nothing in the tables, also if their TTL is long.
func TestCallersThatLeaveLeaveNothing(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	admin, holder := pool(t, s.URL("postgres")), client(t, s.URL("postgres"))
	held := lock(t, holder, "held")
	settings, err := pgxpool.ParseConfig(s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	q := new(quitter)
	settings.ConnConfig.Tracer = q
	for _, key := range []string{"free", "held"} {
		for call, acquire := range map[string]func(ctx context.Context, l locker.Locker) error{
			"TryLock": func(ctx context.Context, l locker.Locker) error {
				_, err := l.TryLock(ctx, key, locker.TTL(time.Hour))
				return err
			},
			"Lock": func(ctx context.Context, l locker.Locker) error {
				_, err := l.Lock(ctx, key, locker.TTL(time.Hour))
				return err
			},
			"TryLockAll": func(ctx context.Context, l locker.Locker) error {
				_, err := locker.TryLockAll(ctx, l, []string{key, key + " and another"}, locker.TTL(time.Hour))
				return err
			},
		} {
			p, err := pgxpool.NewWithConfig(t.Context(), settings)
			if err != nil {
				t.Fatal(err)
			}
			l := postgreslock.New(p)
			ctx, cancel := context.WithCancel(t.Context())
			q.quit = cancel
			if err := acquire(ctx, l); err == nil {
				t.Errorf("%s of a %s lock: got no error", call, key)
			}
			eventually(t, call+" of a "+key+" lock leaves nothing", func() bool {
				// Close waits for an answer for 300 ms, and a busy machine may need more.
				return p.Stat().AcquiredConns() == 0 &&
					len(texts(t, admin, leftSQL, "lock:free"))+len(texts(t, admin, "SELECT ticket FROM locker.waiters")) == 0
			})
			must(t, "Close", l.Close())
			p.Close()
			q.quit = nil
		}
	}
	if got := texts(t, admin, "SELECT token FROM locker.undone"); len(got) > 0 {
		t.Errorf("got %d notes of attempts that may still arrive, want none", len(got))
	}
	must(t, "Unlock", held.Unlock(t.Context()))
}

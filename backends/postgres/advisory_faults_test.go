package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// A session that got the lock at the moment when its wait was cancelled does not go back to the pool with it.
func TestAdvisoryWaitIsCancelledAtTheGrant(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	holder := advisory(t, s.URL("postgres"))
	waiter := postgres.NewAdvisory(pool(t, s.URL("postgres")+"&pool_max_conns=1"))
	t.Cleanup(func() { must(t, "Close", waiter.Close()) })
	lease := lock(t, holder, "k")
	granted := waiting(t, waiter, "k", nil)
	const waits = "SELECT s.pid::text FROM locker.advisory_sessions(locker.advisory_slot('lock:k')) s WHERE NOT s.granted"
	var pids []string
	eventually(t, "the waiter waits in the server", func() bool {
		pids = texts(t, p, waits)
		return len(pids) == 1
	})
	<-time.After(1200 * time.Millisecond) // a wait that was shorter ends with a pause anyway
	pid, _ := strconv.Atoi(pids[0])
	must(t, "SIGSTOP", syscall.Kill(pid, syscall.SIGSTOP))
	must(t, "Unlock", lease.Unlock(t.Context()))
	must(t, "SIGINT", syscall.Kill(pid, syscall.SIGINT))
	must(t, "SIGCONT", syscall.Kill(pid, syscall.SIGCONT))
	must(t, "Unlock of the waiter", (<-granted).Unlock(t.Context()))
	again := soon(t, holder, "k", "after the waiter has released it")
	must(t, "Unlock", again.Unlock(t.Context()))
}

// A token that a holder was given is not given again when a crash has taken the sequence back. The next holder may be
// that of a row: a crash ends all advisory locks, so a program may use rows from then on.
func TestAdvisoryTokensAfterACrash(t *testing.T) {
	t.Parallel()
	for next, open := range map[string]func(testing.TB, string, ...postgres.Option) *locker.Client{
		"advisory": advisory, "rows": client,
	} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			testAdvisoryTokensAfterACrash(t, open)
		})
	}
}

func testAdvisoryTokensAfterACrash(
	t *testing.T, open func(t testing.TB, url string, opts ...postgres.Option) *locker.Client,
) {
	s := migrated(t, "restart_after_crash=on", "wal_writer_delay=10s") // only commits that wait write the log
	p := pool(t, s.URL("postgres"))
	one, other := advisory(t, s.URL("postgres")), advisory(t, s.URL("postgres"))
	// The sequence writes to the log for 32 values at once. The next value is the first of them.
	for logged := false; !logged; logged = texts(t, p, "SELECT log_cnt::text FROM locker.fences")[0] == "0" {
		must(t, "Unlock", lock(t, one, "warm").Unlock(t.Context()))
	}
	run(t, p, "CHECKPOINT")
	// A transaction that has not reached the disk stands for one whose flush takes long.
	c, err := p.Acquire(t.Context())
	must(t, "a connection", err)
	_, err = c.Exec(t.Context(), "BEGIN")
	must(t, "BEGIN", err)
	var pid int
	const acquire = "SELECT pg_backend_pid() FROM " +
		"locker.advisory_acquire('other', 'token', '', 60000, pg_backend_pid(), false, false)"
	must(t, "acquire", c.QueryRow(t.Context(), acquire).Scan(&pid))
	lease := lock(t, other, "k", locker.NoRenewal(), locker.TTL(time.Hour))
	must(t, "SIGKILL", syscall.Kill(pid, syscall.SIGKILL))
	c.Release()
	lostSoon(t, lease, "the crash")
	next := soon(t, open(t, s.URL("postgres")), "k", "after the crash")
	if next.Fence() <= lease.Fence() {
		t.Errorf("token %d, after %d", next.Fence(), lease.Fence())
	}
	must(t, "Unlock", next.Unlock(t.Context()))
}

// A server that stands still while a lock is released keeps it for MinHold when it goes on, although the timeout has
// passed. Close does not wait for that server.
func TestAdvisoryMinHoldOnAStoppedServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	other := advisory(t, s.URL("postgres"))
	const timeout = time.Second
	l := postgres.NewAdvisory(pool(t, s.URL("postgres")), postgres.Timeout(timeout))
	unanswered := func(key string) (lease locker.Lease) {
		t.Helper()
		eventually(t, "the server grants", func() bool {
			var err error
			lease, err = l.TryLock(t.Context(), key, locker.TTL(time.Hour), locker.MinHold(time.Hour), locker.NoRenewal())
			return err == nil
		})
		s.Pause()
		wantErr(t, "Unlock", lease.Unlock(t.Context()), locker.ErrUnavailable)
		return lease
	}
	kept := unanswered("kept")
	unlockAgain(t, kept) // which takes three times the timeout
	s.Resume()
	eventually(t, "the lock is kept", func() bool { return isKept(t, other, "kept") })
	wantHeld(t, other, "kept", "of a lock that is kept")

	unanswered("closed")
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	select {
	case err := <-closed:
		must(t, "Close", err)
	case <-time.After(time.Minute):
		t.Error("Close has not returned within a minute")
	}
	s.Resume()
}

// A lock that the server refuses to keep is not released, and the server is asked again.
func testAdvisoryRefusedKeep(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	schema := postgres.Schema("keeps")
	_, err := postgres.Migrate(t.Context(), p, schema)
	must(t, "Migrate", err)
	run(t, p, "ALTER FUNCTION keeps.advisory_keep RENAME TO elsewhere")
	l, other := advisory(t, s.URL("postgres"), schema), advisory(t, s.URL("postgres"), schema)
	lease := lock(t, l, "k", locker.TTL(time.Hour), locker.MinHold(time.Hour))
	wantErr(t, "Unlock that is refused", lease.Unlock(t.Context()), locker.ErrUnavailable)
	unlockAgain(t, lease)
	wantHeld(t, other, "k", "of a lock that cannot be kept")
	run(t, p, "ALTER FUNCTION keeps.elsewhere RENAME TO advisory_keep")
	eventually(t, "the lock is kept", func() bool { return isKept(t, other, "k") })
	if err := lease.Unlock(t.Context()); err != nil { // nil is the answer to the attempt that keeps it
		wantErr(t, "Unlock once more", err, locker.ErrUnavailable)
	}
}

// unlockAgain repeats an Unlock that was not answered, or that was refused. It checks that these calls have left no
// goroutines: the first one has some, which go on.
func unlockAgain(t *testing.T, lease locker.Lease) {
	t.Helper()
	const label = "unlocks"
	pprof.Do(t.Context(), pprof.Labels(label, t.Name()), func(ctx context.Context) { // goroutines inherit it
		for range 3 {
			wantErr(t, "Unlock once more", lease.Unlock(ctx), locker.ErrUnavailable)
		}
	})
	var all bytes.Buffer
	eventually(t, "repeated calls of Unlock have left no goroutines", func() bool {
		all.Reset()
		must(t, "the goroutines", pprof.Lookup("goroutine").WriteTo(&all, 1))
		return !strings.Contains(all.String(), fmt.Sprintf("%q:%q", label, t.Name()))
	})
}

// A lock that the server refuses to keep for as long as its TTL is released then. The session does not go on until the
// server ends it.
func testAdvisoryNeverKept(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres")+"&pool_max_conns=1")
	schema := postgres.Schema("never")
	_, err := postgres.Migrate(t.Context(), p, schema)
	must(t, "Migrate", err)
	run(t, p, "DROP FUNCTION never.advisory_keep")
	const process = "SELECT pg_backend_pid()::text"
	before := texts(t, p, process)[0]
	l := postgres.NewAdvisory(p, schema)
	defer func() { must(t, "Close", l.Close()) }()
	lease := lock(t, l, "k", locker.TTL(5*time.Second), locker.MinHold(time.Hour))
	wantErr(t, "Unlock that is refused", lease.Unlock(t.Context()), locker.ErrUnavailable)
	eventually(t, "the connection is free", func() bool { return p.Stat().AcquiredConns() == 0 })
	if now := texts(t, p, process)[0]; now != before {
		t.Errorf("the session of the lock has ended: got process %s, want %s", now, before)
	}
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
}

// A connection that delivers nothing is given up when the time is over for which the lock is to be kept, and not only
// when the TTL is.
func testAdvisoryLostKeep(t *testing.T, s *pgtest.Server) {
	relay := pgtest.NewRelay(t, s)
	p := pool(t, relay.URL("postgres"))
	b := postgres.NewAdvisoryBackend(p, postgres.Timeout(time.Second), postgres.Prefix("lost keep:"))
	defer func() { must(t, "Close", b.Close()) }()
	hold := func(key string) (req locker.Request, lost <-chan error) {
		t.Helper()
		req = locker.Request{Key: key, Token: locker.NewToken(), TTL: time.Hour}
		g, err := b.Acquire(t.Context(), req)
		must(t, "Acquire", err)
		req.Fence, req.Private = g.Fence, g.Private
		told := make(chan error, 1)
		t.Cleanup(b.NotifyLoss(req, func(err error) { told <- err }))
		return req, told
	}
	gone := func(what string, lost <-chan error) {
		t.Helper()
		select {
		case <-lost:
		case <-time.After(time.Minute):
			t.Errorf("%s goes on for a minute, want it to end after two seconds", what)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	req, lost := hold("keep")
	resume := relay.Hang()
	req.Keep = 2 * time.Second
	wantErr(t, "Release", b.Release(over, req), locker.ErrUnavailable)
	gone("a statement that keeps the lock", lost)
	resume()

	req, lost = hold("extend")
	resume = relay.Hang()
	sent, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	wantErr(t, "Extend", b.Extend(sent, req), locker.ErrUnavailable)
	req.Keep = 2 * time.Second
	wantErr(t, "Release", b.Release(over, req), locker.ErrUnavailable)
	gone("an extension before the release", lost)
	resume()
	eventually(t, "all connections are free", func() bool { return p.Stat().AcquiredConns() == 0 })
}

// late is a tracer that lets extensions be sent when their time is over.
type late struct{ begun chan struct{} }

func (l late) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, "advisory_extend") {
		close(l.begun)
		<-ctx.Done()
	}
	return ctx
}

func (late) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// extendingLate returns a Backend whose extension of the lock of req is under way, and not sent. It is sent when its
// time is over.
func extendingLate(t *testing.T, s *pgtest.Server, prefix postgres.Option) (
	b *postgres.AdvisoryBackend, req locker.Request, extended <-chan error,
) {
	t.Helper()
	settings, err := pgxpool.ParseConfig(s.URL("postgres"))
	must(t, "the settings", err)
	tracer := late{make(chan struct{})}
	settings.ConnConfig.Tracer = tracer
	p, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, "the pool", err)
	t.Cleanup(p.Close)
	b = postgres.NewAdvisoryBackend(p, postgres.Timeout(time.Second), prefix)
	t.Cleanup(func() { must(t, "Close", b.Close()) })
	req = locker.Request{Key: "k", Token: locker.NewToken(), TTL: time.Hour}
	g, err := b.Acquire(t.Context(), req)
	must(t, "Acquire", err)
	req.Fence, req.Private = g.Fence, g.Private
	result := make(chan error, 1)
	go func() { result <- b.Extend(t.Context(), req) }()
	<-tracer.begun
	return b, req, result
}

// A release whose time is over before the statement ahead of it is sent, as in a process that stood still, ends the
// connection like any other. The lock does not stay for its TTL.
func testAdvisoryLateRelease(t *testing.T, s *pgtest.Server) {
	prefix := postgres.Prefix("late:")
	b, req, extended := extendingLate(t, s, prefix)
	lost := make(chan error, 1)
	defer b.NotifyLoss(req, func(err error) { lost <- err })()
	wantErr(t, "Release", b.Release(t.Context(), req), locker.ErrUnavailable)
	wantErr(t, "Extend", <-extended, locker.ErrUnavailable)
	select {
	case <-lost:
	case <-time.After(time.Minute):
		t.Error("the session goes on for a minute, want it to end when the time for the release does")
	}
	next := soon(t, advisory(t, s.URL("postgres"), prefix), "k", "after the release")
	must(t, "Unlock", next.Unlock(t.Context()))
}

// Close leaves a lock to its TTL, also if it ends an extension that is not sent yet: the holder may still be working.
func testAdvisoryLateClose(t *testing.T, s *pgtest.Server) {
	prefix := postgres.Prefix("late close:")
	b, _, extended := extendingLate(t, s, prefix)
	must(t, "Close", b.Close())
	wantErr(t, "Extend", <-extended, locker.ErrUnavailable)
	for range 10 { // the server would need a moment to notice the end of the connection
		wantHeld(t, advisory(t, s.URL("postgres"), prefix), "k", "after Close")
	}
}

// isKept reports whether a lock has no owner, and stays taken.
func isKept(t testing.TB, l *locker.Client, key string) bool {
	t.Helper()
	i, err := l.Inspect(t.Context(), key)
	must(t, "Inspect", err)
	return i.State == inspect.Kept
}

// A lock that was granted to a waiter that has died is free again after some seconds, whatever its TTL.
func TestAdvisoryLockOfAWaiterThatHasDied(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	holder := advisory(t, s.URL("postgres"))
	lease := lock(t, holder, "k")
	dead, err := p.Acquire(t.Context()) // which says nothing when it has the lock, and leaves its connection open
	must(t, "a connection", err)
	defer dead.Release()
	const acquire = "SELECT FROM locker.advisory_acquire('lock:k', 'token', '', 3600000, pg_backend_pid(), true, false)"
	_, err = dead.Exec(t.Context(), acquire)
	must(t, "acquire", err)
	granted := make(chan error, 1)
	go func() {
		_, err := dead.Exec(t.Context(), "SELECT locker.advisory_wait('lock:k', 60000)")
		granted <- err
	}()
	eventually(t, "the waiter waits in the server", func() bool { return waiters(t, holder, "k") == 1 })
	must(t, "Unlock", lease.Unlock(t.Context()))
	must(t, "wait", <-granted)
	next := soon(t, holder, "k", "after the waiter was granted it")
	must(t, "Unlock", next.Unlock(t.Context()))
}

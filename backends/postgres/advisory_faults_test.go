package postgres_test

import (
	"strconv"
	"syscall"
	"testing"
	"time"

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
	unanswered := func(key string) {
		t.Helper()
		var lease locker.Lease
		eventually(t, "the server grants", func() bool {
			var err error
			lease, err = l.TryLock(t.Context(), key, locker.TTL(time.Hour), locker.MinHold(time.Hour), locker.NoRenewal())
			return err == nil
		})
		s.Pause()
		wantErr(t, "Unlock", lease.Unlock(t.Context()), locker.ErrUnavailable)
	}
	unanswered("kept")
	<-time.After(3 * timeout)
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
	wantHeld(t, other, "k", "of a lock that cannot be kept")
	run(t, p, "ALTER FUNCTION keeps.elsewhere RENAME TO advisory_keep")
	eventually(t, "the lock is kept", func() bool { return isKept(t, other, "k") })
	wantErr(t, "Unlock once more", lease.Unlock(t.Context()), locker.ErrUnavailable)
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

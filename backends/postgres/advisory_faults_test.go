package postgres_test

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
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

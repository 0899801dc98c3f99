package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// waiters returns how many sessions wait for the advisory lock of a key.
func waiters(t testing.TB, l *locker.Client, key string) int {
	t.Helper()
	i, err := l.Inspect(t.Context(), key)
	must(t, "Inspect", err)
	return i.Waiting
}

// A waiter goes on when the server has been restarted.
func TestAdvisoryWaiterSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	holder, other := advisory(t, s.URL("postgres")), advisory(t, s.URL("postgres"))
	lock(t, holder, "k", locker.TTL(time.Hour), locker.NoRenewal())
	granted := waiting(t, other, "k", nil)
	s.Restart()
	next := <-granted
	must(t, "Unlock", next.Unlock(t.Context()))
}

// When all connections of a pool have locks, acquisitions fail with advice, and everything else goes on.
func testAdvisoryFullPool(t *testing.T, s *pgtest.Server) {
	l := advisory(t, s.URL("postgres")+"&pool_max_conns=2", postgres.Prefix("full:"), postgres.Timeout(3*time.Second))
	one, two := lock(t, l, "1"), lock(t, l, "2")
	for what, acquire := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
		"Lock": l.Lock, "TryLock": l.TryLock,
	} {
		_, err := acquire(t.Context(), "3")
		wantErr(t, what+" with a full pool", err, locker.ErrUnavailable)
		if err != nil && !strings.Contains(err.Error(), "raise pool_max_conns") {
			t.Errorf("%s with a full pool: %q does not say what to do", what, err)
		}
	}
	must(t, "Extend with a full pool", one.Extend(t.Context()))
	must(t, "Verify with a full pool", locker.Verify(t.Context(), two))
	must(t, "Unlock with a full pool", one.Unlock(t.Context()))
	must(t, "Unlock", lock(t, l, "3").Unlock(t.Context()))
	must(t, "Unlock", two.Unlock(t.Context()))
}

// Waiters are served in the order in which they reached the server. One whose context ends leaves its place, and no
// session.
func testAdvisoryWaiters(t *testing.T, s *pgtest.Server) {
	const key = "waiters"
	holder := advisory(t, s.URL("postgres"))
	lease := lock(t, holder, key)
	var all []<-chan locker.Lease
	wait := func() {
		t.Helper()
		n := waiters(t, holder, key)
		all = append(all, waiting(t, advisory(t, s.URL("postgres")), key, nil))
		eventually(t, "the waiter waits in the server", func() bool { return waiters(t, holder, key) > n })
	}
	wait()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	leaving := advisory(t, s.URL("postgres"))
	go func() {
		_, err := leaving.Lock(ctx, key)
		left <- err
	}()
	eventually(t, "the waiter waits in the server", func() bool { return waiters(t, holder, key) == 2 })
	wait()
	cancel()
	err := <-left
	wantErr(t, "Lock whose context ends", err, context.Canceled)
	wantErr(t, "Lock whose context ends", err, locker.ErrHeld)
	eventually(t, "the waiter has left the server", func() bool { return waiters(t, holder, key) == 2 })
	fence := lease.Fence()
	must(t, "Unlock", lease.Unlock(t.Context()))
	for i, granted := range all {
		var next locker.Lease
		select {
		case next = <-granted:
		case <-time.After(time.Minute):
			t.Fatalf("waiter %d: it does not get the lock in its turn", i)
		}
		if next.Fence() <= fence {
			t.Errorf("waiter %d: got token %d after %d", i, next.Fence(), fence)
		}
		if n := waiters(t, holder, key); n != len(all)-1-i {
			t.Errorf("waiter %d: got %d that wait behind it, want %d", i, n, len(all)-1-i)
		}
		fence = next.Fence()
		must(t, "Unlock", next.Unlock(t.Context()))
	}
}

// A waiter whose process or network is gone gets the lock for the TTL at most.
func testAdvisoryDeadWaiter(t *testing.T, s *pgtest.Server) {
	relay := pgtest.NewRelay(t, s)
	const key = "dead waiter"
	holder, dead := advisory(t, s.URL("postgres")), advisory(t, relay.URL("postgres"))
	lease := lock(t, holder, key)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = dead.Lock(ctx, key, locker.TTL(time.Second))
	}()
	eventually(t, "the waiter waits in the server", func() bool { return waiters(t, holder, key) == 1 })
	resume := relay.Hang()
	must(t, "Unlock", lease.Unlock(t.Context()))
	must(t, "Unlock", soon(t, holder, key, "behind a waiter whose network is silent").Unlock(t.Context()))
	cancel()
	<-done
	resume()
}

// A waiter whose statements are cancelled, as by statement_timeout, goes on, and asks once a second at most.
func testAdvisoryCancelledWaiter(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	holder, other := advisory(t, s.URL("postgres")), advisory(t, s.URL("postgres"))
	lease := lock(t, holder, "cancelled")
	granted := waiting(t, other, "cancelled", nil)
	const cancel = "SELECT a.query_start::text, pg_cancel_backend(a.pid) FROM pg_stat_activity a, " +
		"locker.advisory_sessions(locker.advisory_slot('lock:cancelled')) s WHERE s.pid = a.pid AND NOT s.granted"
	seen := make(map[string]bool)
	start := time.Now()
	eventually(t, "three statements have been cancelled", func() bool {
		for _, began := range texts(t, p, "SELECT query_start FROM ("+cancel+") c") {
			seen[began] = true
		}
		return len(seen) > 2
	})
	if n, most := len(seen), int(time.Since(start)/time.Second)+2; n > most {
		t.Errorf("got %d statements that wait, want %d at most", n, most)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
	next := <-granted
	must(t, "Unlock", next.Unlock(t.Context()))
}

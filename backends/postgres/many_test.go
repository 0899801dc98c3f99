package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
)

// Very many locks at the same time do not exhaust the server's lock table, which all of its users share. This table has
// room for some hundred entries.
func TestManyLocksSpareTheLockTable(t *testing.T) {
	t.Parallel()
	const room, keys = 1000, 1200
	s := migrated(t, "max_connections=20", "max_locks_per_transaction=10", "max_worker_processes=0",
		"autovacuum_max_workers=1")
	b := postgres.NewBackend(pool(t, s.URL("postgres")))
	var reqs []locker.Request
	for i := range 65 {
		reqs = append(reqs, locker.Request{Key: fmt.Sprint(i), Token: fmt.Sprint("token", i), TTL: time.Minute})
	}
	_, err := b.AcquireMany(t.Context(), reqs)
	wantErr(t, "AcquireMany of 65 locks", err, errors.ErrUnsupported)
	grants, err := b.AcquireMany(t.Context(), reqs[:64])
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

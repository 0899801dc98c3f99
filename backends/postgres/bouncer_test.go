package postgres_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/steady"
)

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
			must(t, "InTx", postgres.InTx(t.Context(), tx, lease))
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

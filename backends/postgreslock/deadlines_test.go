package postgreslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// A call whose deadline comes before the answer of a slow server costs no connection. Making another one costs the
// server more than the call, so it would become slower.
func testShortDeadlinesCostNoConnection(t *testing.T, s *pgtest.Server) {
	relay := pgtest.NewRelay(t, s)
	c, err := pgxpool.ParseConfig(relay.URL("postgres"))
	must(t, "ParseConfig", err)
	c.MaxConns = 1
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true } // as if it was idle for a second
	p, err := pgxpool.NewWithConfig(t.Context(), c)
	must(t, "NewWithConfig", err)
	t.Cleanup(p.Close)
	l := postgreslock.New(p, postgreslock.Prefix(newPrefix()), postgreslock.Timeout(time.Minute))
	t.Cleanup(func() { _ = l.Close() })
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
	for range 3 {
		resume := relay.Hang()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := l.TryLock(ctx, "k")
		cancel()
		wantErr(t, "TryLock while the server is slow", err, context.DeadlineExceeded)
		wantErr(t, "TryLock while the server is slow", err, locker.ErrUnavailable)
		resume()
		must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
	}
	if n := p.Stat().NewConnsCount(); n != 1 {
		t.Errorf("got %d connections made, want 1", n)
	}
}

package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/short"
)

// The clock of the server is set back or forward by an hour under load, while two workers keep locks, and a transaction
// is protected. Set back, no two workers have a lock at the same time. Set forward, locks end early, and later holders
// have greater tokens. InTx keeps others out in both cases. Everybody goes on, and nothing is left behind.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	for _, step := range short.Part(t, 0, []time.Duration{-time.Hour, time.Hour}) {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			testClockStep(t, step)
		})
	}
}

func testClockStep(t *testing.T, step time.Duration) {
	s, clock := pgtest.StartWithClock(t)
	migrate(t, s)
	url := s.URL("postgres")
	holder := client(t, url)
	lease := lock(t, holder, "tx", locker.TTL(time.Minute), locker.NoRenewal())
	tx := begin(t, url, pgx.ReadCommitted)
	must(t, "InTx", postgres.InTx(t.Context(), tx, lease))

	c := gather(t, url)
	c.more(30)
	c.freeze()
	p := pool(t, url)
	before := texts(t, p, "SELECT clock_timestamp()::text")[0]
	must(t, "the step", clock.Set(step, 0))
	eventually(t, "the clock has moved", func() bool {
		const moved = "SELECT 'yes' WHERE abs(extract(epoch FROM clock_timestamp() - $1::text::timestamptz)) > 1800"
		return len(texts(t, p, moved, before)) > 0
	})
	wantHeld(t, holder, "tx", "of a lock whose transaction is open, after a step of the clock")
	must(t, "Commit", tx.Commit(t.Context()))
	_ = lease.Unlock(t.Context()) // if the clock was set forward, the lock has ended
	c.more(60)
	double, backwards := c.disperse()
	if step < 0 && double > 0 {
		t.Errorf("after a step back: got %d locks that two workers had at the same time", double)
	}
	if backwards > 0 {
		t.Errorf("got %d tokens that are not greater than earlier ones of their keys", backwards)
	}
	c.nothingLeft(url)
}

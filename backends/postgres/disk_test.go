package postgres_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/short"
)

// The disk of the server gets full under load, while callers keep locks and one waits. A server that cannot store more
// rows refuses locks that need room, and releases others. A server that cannot write its log ends. Callers that get no
// lock learn that the store is unavailable. When there is room again, everybody goes on: no two callers have had a lock
// at the same time, tokens grow, and nothing is left behind.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	fills := map[string]func(t *testing.T, l locker.Locker, p *pgxpool.Pool){"base": fillTables, "pg_wal": fillLog}
	for _, directory := range short.Part(t, 0, []string{"base", "pg_wal"}) {
		t.Run(directory, func(t *testing.T) {
			t.Parallel()
			testFullDisk(t, directory, fills[directory])
		})
	}
}

func testFullDisk(t *testing.T, directory string, fill func(t *testing.T, l locker.Locker, p *pgxpool.Pool)) {
	s, disk := pgtest.StartWithDisk(t)
	migrate(t, s)
	url := s.URL("postgres")
	c := gather(t, url)
	c.more(30)
	c.keep(url)
	c.freeze()
	l := client(t, url)
	held := lock(t, l, "held", locker.TTL(time.Hour), locker.NoRenewal())
	granted := waiting(t, client(t, url), "held", nil)

	must(t, "Fill", disk.Fill(filepath.Join(s.Data(), directory)))
	fill(t, l, pool(t, url))
	if err := locker.ExtendTTL(t.Context(), held, 2*time.Hour); err != nil {
		wantErr(t, "ExtendTTL", err, locker.ErrUnavailable)
	}
	must(t, "the lease while the disk is full", held.Err())
	must(t, "Free", disk.Free())
	if directory == "pg_wal" {
		s.Restart()
	}

	c.more(60)
	eventually(t, "the lock is still held", func() bool { return locker.Verify(t.Context(), held) == nil })
	select {
	case <-granted:
		t.Error("the waiter has a lock that is held")
	default:
	}
	_ = held.Unlock(t.Context()) // it goes on in the background
	next := <-granted
	if next == nil {
		t.Fatal("the waiter was not granted the lock")
	}
	if next.Fence() <= held.Fence() {
		t.Errorf("got token %d after %d", next.Fence(), held.Fence())
	}
	_ = next.Unlock(t.Context())
	double, backwards := c.disperse()
	if double > 0 || backwards > 0 {
		t.Errorf("got %d locks that two callers had at the same time, and %d tokens that did not grow", double, backwards)
	}
	c.nothingLeft(url)
}

// fillTables acquires locks until one is refused, and releases them while there is no room.
func fillTables(t *testing.T, l locker.Locker, p *pgxpool.Pool) {
	t.Helper()
	var leases []locker.Lease
	eventually(t, "a lock is refused, for lack of room", func() bool {
		lease, err := l.TryLock(t.Context(), fmt.Sprintf("room %d", len(leases)), locker.TTL(time.Hour))
		if err == nil {
			leases = append(leases, lease)
			return false
		}
		wantErr(t, "TryLock", err, locker.ErrUnavailable)
		return strings.Contains(err.Error(), "make room on the disk of the server")
	})
	t.Logf("%d locks were granted", len(leases))
	for _, lease := range leases {
		_ = lease.Unlock(t.Context())
	}
	const left = "SELECT token FROM locker.locks WHERE starts_with(encode(name, 'escape'), 'lock:room ')"
	eventually(t, "locks are released while there is no room", func() bool { return len(texts(t, p, left)) == 0 })
}

// fillLog writes to the log of the server until there is no room.
func fillLog(t *testing.T, l locker.Locker, p *pgxpool.Pool) {
	t.Helper()
	eventually(t, "the server has ended, for lack of room", func() bool {
		_, err := p.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'filler', repeat('x', 1000000))")
		return err != nil
	})
	eventually(t, "a lock is refused", func() bool {
		lease, err := l.TryLock(t.Context(), "refused")
		if err == nil {
			_ = lease.Unlock(t.Context())
			return false
		}
		wantErr(t, "TryLock", err, locker.ErrUnavailable)
		return true
	})
}

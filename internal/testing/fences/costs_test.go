package fences_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/testserver"
)

// counter counts round trips: requests that follow a reply.
type counter struct {
	*testserver.Relay
	n       int
	waiting bool
}

func newCounter(tb testing.TB, server string) *counter {
	c := new(counter)
	c.Relay = testserver.NewRelay(tb, server, func() (requests, replies testserver.Side) {
		side := func(waiting bool) testserver.Side {
			return testserver.Side{Read: testserver.Chunks(), Decide: func([]byte) testserver.Action {
				if waiting && !c.waiting {
					c.n++
				}
				c.waiting = waiting
				return testserver.Pass
			}}
		}
		return side(true), side(false)
	})
	return c
}

func (c *counter) count() (n int) {
	c.Set(func() { n = c.n })
	return n
}

// BenchmarkCosts compares a transaction that reads and writes a row with the same one under a fence, one after the
// other, on servers that write to the disk at COMMIT. Round trips are counted by a relay, beside it.
func BenchmarkCosts(b *testing.B) {
	pg := pgtest.Start(b, "fsync=on")
	maria := mariadbtest.Start(b, "innodb-flush-log-at-trx-commit=1")
	pgTrips, mariaTrips := newCounter(b, pg.Socket()), newCounter(b, maria.Addr())
	ofMaria := func(addr string) string { return "root@tcp(" + addr + ")/" + mariadbtest.Database }
	ofPG := func(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" }
	file := "file:" + filepath.Join(b.TempDir(), "db") + "?_pragma=journal_mode(wal)&_pragma=synchronous(full)"
	for _, d := range []struct {
		database
		trips *counter
	}{
		{database{name: "PostgreSQL", driver: "pgx", source: pg.URL("postgres"), relayed: ofPG(pgTrips.Addr()),
			dialect: fence.PostgreSQL}, pgTrips},
		{database{name: "MariaDB", driver: "mysql", source: ofMaria(maria.Addr()), relayed: ofMaria(mariaTrips.Addr()),
			dialect: fence.MySQL}, mariaTrips},
		{database{name: "SQLite", driver: "sqlite", source: file, relayed: file, dialect: fence.SQLite}, nil},
	} {
		b.Run(d.name, func(b *testing.B) {
			fences := fence.SQL{Dialect: d.dialect}
			db := d.open(b, fences)
			relayed := d.openRelayed(b, d.driver)
			token, update := uint64(0), "UPDATE account SET balance = $1 WHERE id = $2"
			if d.dialect == fence.MySQL {
				update = "UPDATE account SET balance = ? WHERE id = ?"
			}
			work := func(ctx context.Context, tx *sql.Tx) error {
				n, err := read(ctx, tx)
				if err != nil {
					return err
				}
				_, err = tx.ExecContext(ctx, update, n+1, 42)
				return err
			}
			kinds := []func(db *sql.DB){
				func(db *sql.DB) {
					tx, err := db.BeginTx(b.Context(), nil)
					must(b, err)
					must(b, work(b.Context(), tx))
					must(b, tx.Commit())
				},
				func(db *sql.DB) {
					token++
					must(b, fences.InTx(b.Context(), db, hold(token), work))
				},
			}
			var took [2][]float64
			var ratios []float64
			for b.Loop() {
				for i, kind := range kinds {
					began := time.Now()
					kind(db)
					took[i] = append(took[i], float64(time.Since(began).Microseconds()))
				}
				n := len(ratios)
				ratios = append(ratios, took[1][n]/took[0][n])
			}
			for i, name := range []string{"µs-without", "µs-with"} {
				b.ReportMetric(median(took[i]), name)
			}
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(0, "ns/op")
			if d.trips == nil {
				return
			}
			for i, name := range []string{"trips-without", "trips-with"} {
				kinds[i](relayed) // prepares statements
				kinds[i](relayed) // asks whether an idle connection works
				before := d.trips.count()
				kinds[i](relayed)
				b.ReportMetric(float64(d.trips.count()-before), name)
			}
		})
	}
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

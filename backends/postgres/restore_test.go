package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// Data that are restored into a server that goes on running take no token back. A dump has the value of the sequence,
// and the row of history.
func testTokensAfterARestore(t *testing.T, s *pgtest.Server) {
	for schema, prepare := range map[string]func(t *testing.T, p *pgxpool.Pool, schema string){
		"restored": func(t *testing.T, p *pgxpool.Pool, schema string) { // with its tables
			run(t, p, "DROP SCHEMA "+schema+" CASCADE")
			_, err := postgres.Migrate(t.Context(), p, postgres.Schema(schema))
			must(t, "Migrate", err)
		},
		"refilled": func(t *testing.T, p *pgxpool.Pool, schema string) { // into tables that are there
			run(t, p, "TRUNCATE "+schema+".history")
		},
	} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			p := pool(t, s.URL("postgres"))
			_, err := postgres.Migrate(t.Context(), p, postgres.Schema(schema))
			must(t, "Migrate", err)
			l := client(t, s.URL("postgres"), postgres.Schema(schema))
			must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
			history := texts(t, p, "SELECT life FROM "+schema+".history")[0]
			value := texts(t, p, "SELECT last_value::text FROM "+schema+".fences")[0]
			last := grants(t, l)

			prepare(t, p, schema)
			run(t, p, "INSERT INTO "+schema+".history VALUES ($1)", history)
			run(t, p, "SELECT setval('"+schema+".fences', "+value+")")
			lease := lock(t, client(t, s.URL("postgres"), postgres.Schema(schema)), "k")
			if lease.Fence() <= last {
				t.Errorf("got token %d from data that were restored, after %d", lease.Fence(), last)
			}
			must(t, "Unlock", lease.Unlock(t.Context()))
		})
	}
}

// grants acquires a lock some times more, and returns the last token.
func grants(t *testing.T, l locker.Locker) (last uint64) {
	t.Helper()
	for range 10 {
		lease := lock(t, l, "k")
		last = lease.Fence()
		must(t, "Unlock", lease.Unlock(t.Context()))
	}
	return last
}

// A copy of the database, in the same server, takes no token back.
func TestTokensOfACopy(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	of := func(database string) string {
		return strings.Replace(s.URL("postgres"), "@/postgres?", "@/"+database+"?", 1)
	}
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE DATABASE original")
	p := pool(t, of("original"))
	_, err := postgres.Migrate(t.Context(), p)
	must(t, "Migrate", err)
	l := postgres.New(p)
	t.Cleanup(func() { must(t, "Close", l.Close()) })
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
	eventually(t, "nobody is connected, and the database is copied", func() bool {
		p.Reset()
		_, err := admin.Exec(t.Context(), "CREATE DATABASE copied TEMPLATE original")
		return err == nil
	})
	last := grants(t, l)
	lease := lock(t, client(t, of("copied")), "k")
	if lease.Fence() <= last {
		t.Errorf("got token %d from a copy of the database, after %d", lease.Fence(), last)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
}

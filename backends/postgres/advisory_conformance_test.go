package postgres_test

import (
	"path"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// advisoryLeftSQL lists the advisory locks that sessions have or want, and names that are kept.
const advisoryLeftSQL = `
SELECT 'lock of ' || a.pid FROM locker.advisory a, locker.advisory_sessions(a.slot) s
WHERE starts_with(encode(a.name, 'escape'), $1) UNION ALL
SELECT 'row ' || encode(name, 'escape') FROM locker.advisory
WHERE starts_with(encode(name, 'escape'), $1) AND expires > clock_timestamp() UNION ALL
SELECT 'kept ' || encode(name, 'escape') FROM locker.locks
WHERE starts_with(encode(name, 'escape'), $1) AND expires > clock_timestamp()`

// terminateSQL ends the session that has a lock, and returns when it has ended.
const terminateSQL = `
SELECT pg_terminate_backend(s.pid, 60000) FROM locker.advisory_sessions(locker.advisory_slot($1)) s WHERE s.granted`

// All properties, with -short those of a Client. VerifyProves makes the store unreachable, and expects the lock to
// survive that: a connection that is cut ends an advisory lock, which TestAdvisoryLossIsTold checks.
func testAdvisoryConformance(t *testing.T, shared *pgtest.Server) {
	run := conformance.RunBackend
	if testing.Short() {
		run = conformance.RunLocker
	}
	run(t, conformance.Harness{
		Labels: true, Verifies: true,
		Store: func(t testing.TB) conformance.Store { return advisoryStore(t, shared) },
	})
}

func advisoryStore(t testing.TB, s *pgtest.Server) conformance.Store {
	property, prefix := path.Base(t.Name()), newPrefix()
	if property == restarting {
		s = migrated(t)
	}
	direct := pool(t, s.URL("postgres"))
	relay := pgtest.NewRelay(t, s)
	store := conformance.Store{
		Open: func() locker.Backend {
			p := pool(t, relay.URL("postgres")+"&pool_max_conns=60")
			return postgres.NewAdvisoryBackend(p, postgres.Prefix(prefix))
		},
		Delete:    func(key string) { run(t, direct, terminateSQL, []byte(prefix+key)) },
		Hang:      relay.Hang,
		LoseReply: relay.LoseReply,
		Left:      func() []string { return texts(t, direct, advisoryLeftSQL, prefix) },
	}
	if property != "VerifyProves" {
		store.Down = relay.Down
	}
	if property == restarting {
		store.Restart = s.Restart
	}
	return store
}

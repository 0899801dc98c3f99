package postgres_test

import (
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// leftSQL lists what locks and waiters with a prefix have left, except the rows of locks that have expired: they are
// swept later.
const leftSQL = `
SELECT 'lock ' || encode(name, 'escape') FROM locker.locks
WHERE starts_with(encode(name, 'escape'), $1) AND expires > clock_timestamp() UNION ALL
SELECT 'waiter ' || encode(name, 'escape') FROM locker.waiters WHERE starts_with(encode(name, 'escape'), $1)`

// TestOneServer has the tests that can share a server.
func TestOneServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	for name, test := range map[string]func(*testing.T, *pgtest.Server){
		"Conformance":               testConformance,
		"Configuration":             testConfiguration,
		"InTx":                      testInTx,
		"LateCommits":               testLateCommits,
		"DocumentedRights":          testDocumentedRights,
		"MigrateAtTheSameTime":      testMigrateAtTheSameTime,
		"MigrateInAnExistingSchema": testMigrateInAnExistingSchema,
		"LateAttemptDoesNothing":    testLateAttemptDoesNothing,
		"DeadWaiter":                testDeadWaiter,
		"Sweep":                     testSweep,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// All properties. Each has a prefix of its own, and a network of its own that fails.
func testConformance(t *testing.T, s *pgtest.Server) {
	direct := pool(t, s.URL("postgres"))
	conformance.RunBackend(t, conformance.Harness{
		FIFO: true, Labels: true, Verifies: true,
		Store: func(t testing.TB) conformance.Store {
			prefix := newPrefix()
			relay := pgtest.NewRelay(t, s)
			return conformance.Store{
				Open: func() locker.Backend {
					return postgres.NewBackend(pool(t, relay.URL("postgres")), postgres.Prefix(prefix))
				},
				Delete: func(key string) {
					run(t, direct, "DELETE FROM locker.locks WHERE name = $1", []byte(prefix+key))
				},
				Hang:      relay.Hang,
				Down:      relay.Down,
				LoseReply: relay.LoseReply,
				Left:      func() []string { return texts(t, direct, leftSQL, prefix) },
			}
		},
	})
}

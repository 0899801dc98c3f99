package postgreslock_test

import (
	"path"
	"testing"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// leftSQL lists what locks, groups and waiters with a prefix have left, except the rows that have expired: they are
// swept later.
const leftSQL = `
SELECT 'lock ' || encode(name, 'escape') FROM locker.locks
WHERE starts_with(encode(name, 'escape'), $1) AND expires > clock_timestamp() UNION ALL
SELECT 'entry ' || encode(name, 'escape') FROM locker.entries
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
		"UnreleasedTables":          testUnreleasedTables,
		"Versions":                  testVersions,
		"MigrateAtTheSameTime":      testMigrateAtTheSameTime,
		"MigrateInAnExistingSchema": testMigrateInAnExistingSchema,
		"MigrateWithoutRights":      testMigrateWithoutRights,
		"MigrateAsAnotherUser":      testMigrateAsAnotherUser,
		"MigrateBesideADump":        testMigrateBesideADump,
		"Examine":                   testExamine,
		"FullPool":                  testFullPool,
		"SchemaNames":               testSchemaNames,
		"SettingsOfTheUser":         testSettingsOfTheUser,
		"HandOverAfterATransaction": testHandOverAfterATransaction,
		"ShortDeadlines":            testShortDeadlinesCostNoConnection,
		"SilentConnections":         testSilentConnectionsLoseNoLock,
		"LateAttemptDoesNothing":    testLateAttemptDoesNothing,
		"Presence":                  testPresence,
		"DeadWaiter":                testDeadWaiter,
		"Sweep":                     testSweep,
		"Turns":                     testTurns,
		"PgBouncer":                 testPgBouncer,
		"RoundTrips":                testRoundTrips,
		"FreePermit":                testFreePermit,
		"Groups":                    testGroups,
		"StepsAtTheSameTime":        testStepsAtTheSameTime,
		"WaitsForTheDisk":           testWaitsForTheDisk,
		"RefusedRelease":            testRefusedRelease,
		"TokensAfterARestore":       testTokensAfterARestore,
		"CloseWithoutConnections":   testCloseWithoutConnections,
		"UndoneBeforeClose":         testUndoneBeforeClose,

		"ExclusiveLockIsCheap":           testExclusiveLockIsCheap,
		"JoinedOutcomes":                 testJoinedOutcomes,
		"SomeLocksAtOnce":                testSomeLocksAtOnce,
		"JoinedReleaseBesideTransaction": testJoinedReleaseBesideATransaction,
		"ReleasesOfCallersThatLeave":     testReleasesOfCallersThatLeave,
		"NoRightToReleaseTogether":       testNoRightToReleaseTogether,
		"HandOversSpareStatements":       testHandOversSpareStatements,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// restarting is the property that kills the server. It has one of its own.
const restarting = "FenceSurvivesRestart"

// All properties. Each has a prefix of its own, and a network of its own that fails: the others do not notice.
func testConformance(t *testing.T, shared *pgtest.Server) {
	h := conformance.Harness{
		Store: func(t testing.TB) conformance.Store {
			s, own := shared, path.Base(t.Name()) == restarting
			if own {
				s = migrated(t)
			}
			prefix := newPrefix()
			direct := pool(t, s.URL("postgres"))
			relay := pgtest.NewRelay(t, s)
			store := conformance.Store{
				Open: func() backend.Backend {
					return postgreslock.NewBackend(pool(t, relay.URL("postgres")), postgreslock.Prefix(prefix))
				},
				Delete: func(key string) {
					for _, table := range []string{"locks", "entries"} {
						run(t, direct, "DELETE FROM locker."+table+" WHERE name = $1", []byte(prefix+key))
					}
				},
				Hang:         relay.Hang,
				Down:         relay.Down,
				LoseReply:    relay.LoseReply,
				LoseMessages: relay.Deafen,
				Left:         func() []string { return texts(t, direct, leftSQL, prefix) },
			}
			if own {
				// A crash may forget a release, and the leases of the suite last for minutes. TestCrashAfterTheAnswer
				// has tokens that survive a crash without a checkpoint.
				store.Restart = func() {
					eventually(t, "no release can be forgotten", func() bool {
						_, err := direct.Exec(t.Context(), "CHECKPOINT")
						return err == nil // connections from before an earlier restart are broken
					})
					s.Restart()
				}
			}
			return store
		},
	}
	conformance.RunBackend(t, h)
	conformance.RunSemaphore(t, h)
	conformance.RunRWLock(t, h)
}

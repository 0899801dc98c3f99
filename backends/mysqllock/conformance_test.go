package mysqllock_test

import (
	"database/sql"
	"encoding/json"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

// TestOneServer has the tests that can share a server.
func TestOneServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	for name, test := range map[string]func(*testing.T, *mariadbtest.Server){
		"Conformance":   testConformance,
		"FourWays":      testFourWays,
		"Credentials":   testCredentials,
		"RoundTrips":    testRoundTrips,
		"ServerClock":   testServerClock,
		"Autocommit":    testAutocommit,
		"Dirty":         testNothingUncommittedIsRead,
		"Numbered":      testNumbersOfRowsAreNoTimes,
		"Old":           testOldRecordsAreDeleted,
		"Versions":      testVersionsDoNotComeBack,
		"MissingTable":  testMissingTable,
		"Tables":        testTables,
		"Rights":        testRights,
		"WaitingHang":   testCallersThatWaitForAConnection,
		"WrongPassword": testWrongPassword,
		"Demoted":       testDemotedServer,
		"Privileged":    testPrivilegedUsersOfAReplica,
		"OpenChanges":   testSessionsThatWaitForARowEnd,
		"Leaving":       testCallersThatLeaveCostNoConnections,
		"Forgotten":     testForgottenConnectionsCostOneRequest,
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
func testConformance(t *testing.T, shared *mariadbtest.Server) {
	h := conformance.Harness{Store: func(t testing.TB) conformance.Store {
		s, own := shared, path.Base(t.Name()) == restarting
		if own {
			s = migrated(t)
		}
		prefix := newPrefix()
		direct := pool(t, s.URL(mariadbtest.Database))
		relay := mariadbtest.NewRelay(t, s)
		store := conformance.Store{
			Open: func() backend.Backend {
				db := pool(t, relay.URL(mariadbtest.Database))
				return record.NewBackend(mysqllock.NewStore(db), record.Prefix(prefix), record.Poll(50*time.Millisecond))
			},
			Hang:      relay.Hang,
			Down:      relay.Down,
			LoseReply: relay.LoseReply,
			Left:      func() []string { return left(t, direct, prefix) },
			Delete: func(key string) {
				if _, err := direct.Exec("DELETE FROM locker_records WHERE name = ?", record.NameOf(prefix+key)); err != nil {
					t.Error(err)
				}
			},
			Foreign: func(key string) (intact func() bool) {
				const text = "not a lock"
				_, err := direct.Exec("INSERT INTO locker_records (name, version, record) VALUES (?, 'v', ?)",
					record.NameOf(prefix+key), text)
				if err != nil {
					t.Error(err)
				}
				return func() bool {
					var seen string
					err := direct.QueryRow("SELECT record FROM locker_records WHERE name = ?", record.NameOf(prefix+key)).Scan(&seen)
					return err == nil && seen == text
				}
			},
		}
		if own {
			store.Restart = s.Restart
		}
		return store
	}}
	conformance.RunBackend(t, h)
}

// left lists the locks that are taken, and were written less than their length ago.
func left(t testing.TB, db *sql.DB, prefix string) (names []string) {
	rows, err := db.Query("SELECT name, record, TIMESTAMPDIFF(MICROSECOND, written, NOW(6)) DIV 1000 FROM locker_records "+
		"WHERE name LIKE ?", record.NameOf(prefix)+"%")
	if err != nil {
		t.Error(err)
		return nil
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var text []byte
		var age int64
		if err := rows.Scan(&name, &text, &age); err != nil {
			t.Error(err)
		}
		var lock struct {
			State  string `json:"state"`
			Length int64  `json:"length_ms"`
		}
		if err := json.Unmarshal(text, &lock); err != nil || lock.State != "free" && age < lock.Length {
			names = append(names, name)
		}
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	return names
}

// The rules of a Store, with the settings of a configuration, and with whatever a program has set for its connections.
func TestRecords(t *testing.T) {
	t.Parallel()
	server := sync.OnceValue(func() *mariadbtest.Server { return migrated(t) }) // not in the processes of the suite
	for name, connect := range map[string]func(t testing.TB, addr string) *sql.DB{
		"Configured": func(t testing.TB, addr string) *sql.DB { return pool(t, urlOf(addr)) },
		"Prepared":   func(t testing.TB, addr string) *sql.DB { return raw(t, addr, "") },
		"Others": func(t testing.TB, addr string) *sql.DB {
			return raw(t, addr, "?clientFoundRows=true&interpolateParams=true&charset=latin1&parseTime=true&"+
				"sql_mode=%27NO_BACKSLASH_ESCAPES%2CANSI_QUOTES%27&tx_isolation=%27READ-UNCOMMITTED%27")
		},
		"Serializable": func(t testing.TB, addr string) *sql.DB {
			return raw(t, addr, "?sql_safe_updates=1&tx_isolation=%27SERIALIZABLE%27")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recordtest.Run(t, func(t testing.TB, place string) (record.Store, string) {
				if place == "" {
					addr := server().Addr()
					place = addr + " " + newTable(t, pool(t, urlOf(addr)))
				}
				addr, table, _ := strings.Cut(place, " ")
				return mysqllock.NewStore(connect(t, addr), mysqllock.Table(table)), place
			})
		})
	}
}

func urlOf(addr string) string { return "mysql://root@" + addr + "/" + mariadbtest.Database }

package mysqllock_test

import (
	"net"
	"strings"
	"testing"

	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/internal/testing/mariadbtest"
)

// A replica has what its primary has acknowledged, also if the primary logs statements, or the write is refused.
// Otherwise a replica that is made the primary would grant the locks of others.
func TestReplicasHaveWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	primary := mariadbtest.Start(t, "server-id=1", "log-bin=log")
	replica := mariadbtest.Start(t, "server-id=2", "read-only=ON", "log-bin=log")
	own, copied := pool(t, primary.URL(mariadbtest.Database)), pool(t, replica.URL(mariadbtest.Database))
	run(t, own, "CREATE USER r", "GRANT REPLICATION SLAVE ON *.* TO r")
	host, port, _ := net.SplitHostPort(primary.Addr())
	run(t, copied, "CHANGE MASTER TO MASTER_HOST='"+host+"', MASTER_PORT="+port+", MASTER_USER='r', "+
		"MASTER_USE_GTID=slave_pos", "START SLAVE")
	t.Cleanup(func() { _, _ = copied.Exec("STOP SLAVE") })
	if err := mysqllock.Migrate(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	const version = "SELECT COALESCE(MAX(version), '') FROM " + mysqllock.DefaultTable + " WHERE name = ?"
	same := func(when, name, acknowledged string) {
		t.Helper()
		var position, seen string
		if err := own.QueryRow("SELECT @@gtid_binlog_pos").Scan(&position); err != nil {
			t.Fatal(err)
		}
		var late int
		if err := copied.QueryRow("SELECT MASTER_GTID_WAIT(?, 60)", position).Scan(&late); err != nil || late != 0 {
			t.Fatalf("%s: the replica has not executed what was logged: %d, %v", when, late, err)
		}
		if err := copied.QueryRow(version, name).Scan(&seen); err != nil || seen != acknowledged {
			t.Errorf("%s: the replica has the version %q, %v, and acknowledged was %q", when, seen, err, acknowledged)
		}
	}
	stores := make(map[string]*mysqllock.Store)
	for _, format := range []string{"ROW", "MIXED", "STATEMENT"} {
		stores[format] = mysqllock.NewStore(raw(t, primary.Addr(), "?binlog_format=%27"+format+"%27"))
	}
	for format, store := range stores {
		created, err := store.Create(t.Context(), format, []byte("{}"))
		if err != nil {
			created = ""
		}
		if format == "STATEMENT" {
			wantAdvice(t, "Create", err)
		} else if err != nil {
			t.Fatal(err)
		}
		same("Create with "+format, format, created)
		if created == "" {
			continue
		}
		replaced, err := store.Replace(t.Context(), format, created, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		same("Replace with "+format, format, replaced)
		// The format was changed.
		_, _, err = stores["STATEMENT"].Get(t.Context(), format)
		wantAdvice(t, "Get", err)
		_, _, err = stores["STATEMENT"].Get(t.Context(), "nothing")
		wantAdvice(t, "Get of nothing", err)
		_, err = stores["STATEMENT"].Replace(t.Context(), format, replaced, []byte("{}"))
		wantAdvice(t, "Replace", err)
		same("Replace with STATEMENT of what was written with "+format, format, replaced)
	}

	unlogged := migrated(t)
	store := mysqllock.NewStore(raw(t, unlogged.Addr(), "?binlog_format=%27STATEMENT%27"))
	if _, err := store.Create(t.Context(), "k", []byte("{}")); err != nil {
		t.Errorf("Create on a server without a binary log: %v", err)
	}
}

func wantAdvice(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "set binlog_format to ROW") {
		t.Errorf("%s of a session that logs statements: %v", what, err)
	}
}

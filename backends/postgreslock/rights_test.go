package postgreslock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/semaphore"
)

// documented returns the statements of the code blocks in SQL that the page of this backend has.
func documented(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/backends/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) != 2 {
		t.Fatalf("got %d blocks of SQL in the documentation, want one for programs and one for operators", len(blocks))
	}
	return blocks
}

// A user with exactly the rights that the documentation lists can do everything, and nothing beside it.
func testDocumentedRights(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	blocks := documented(t)
	run(t, admin, "CREATE ROLE app LOGIN")
	run(t, admin, "CREATE ROLE operator LOGIN")
	for _, statement := range strings.Split(blocks[0], ";") {
		run(t, admin, statement)
		run(t, admin, strings.ReplaceAll(statement, "app", "operator"))
	}
	run(t, admin, blocks[1])

	l := client(t, s.URL("app"))
	lease := lock(t, l, "k")
	must(t, "Extend", lease.Extend(t.Context()))
	must(t, "Verify", locker.Verify(t.Context(), lease))
	must(t, "InTx", postgreslock.InTx(t.Context(), begin(t, s.URL("app"), pgx.ReadCommitted), lease))
	wantHeld(t, client(t, s.URL("app")), "k", "of a held lock")
	must(t, "Unlock", lease.Unlock(t.Context()))
	all, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
	must(t, "LockAll", err)
	must(t, "Unlock", all.Unlock(t.Context()))
	_, err = l.Inspect(t.Context(), "k")
	must(t, "Inspect", err)
	for _, f := range l.Examine(t.Context()) {
		if f.Check == "rights" && f.Level != inspect.OK {
			t.Errorf("Examine: got %+v, want no right missing", f)
		}
	}

	lease = lock(t, l, "forced")
	_, err = l.ForceRelease(t.Context(), "forced", "")
	wantErr(t, "ForceRelease by a program", err, locker.ErrUnavailable)
	if text := "docs/backends/postgres.md"; !strings.Contains(err.Error(), text) {
		t.Errorf("ForceRelease by a program: %q does not name %s", err, text)
	}
	operator, _ := locker.As[inspect.Inspector](client(t, s.URL("operator")))
	_, err = operator.ForceRelease(t.Context(), "forced", "")
	must(t, "ForceRelease by an operator", err)
	wantErr(t, "Unlock", lease.Unlock(t.Context()), locker.ErrNotHeld)
	for user, want := range map[string]error{"app": locker.ErrUnavailable, "operator": nil} {
		var seen error
		for _, err := range client(t, s.URL(user)).List(t.Context(), "") {
			seen = err
		}
		wantErr(t, "List by "+user, seen, want)
	}
	wantErr(t, "RaiseFences by a program", l.RaiseFences(t.Context(), 1), locker.ErrUnavailable)
	must(t, "RaiseFences by an operator", client(t, s.URL("operator")).RaiseFences(t.Context(), 1))

	for _, statement := range []string{
		"SELECT * FROM locker.locks", "DELETE FROM locker.locks", "SELECT * FROM locker.waiters",
		"SELECT nextval('locker.fences')", "CREATE TABLE locker.mine ()", "SELECT locker.sweep('0')",
	} {
		if _, err := pool(t, s.URL("app")).Exec(t.Context(), statement); err == nil {
			t.Errorf("%s: got no error, want it refused to a program", statement)
		}
	}
}

// Programs that start at the same time may all migrate. A second migration changes nothing.
func testMigrateAtTheSameTime(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	l := client(t, s.URL("postgres"), postgreslock.Schema("Other_1"))
	_, err := l.TryLock(t.Context(), "k")
	wantErr(t, "TryLock without tables", err, locker.ErrUnavailable)
	if !strings.Contains(err.Error(), "locker migrate") {
		t.Errorf("TryLock without tables: %q does not say what to do", err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 8 {
		wg.Go(func() {
			applied, err := postgreslock.Migrate(t.Context(), p, postgreslock.Schema("Other_1"))
			mu.Lock()
			defer mu.Unlock()
			total += applied
			must(t, "Migrate", err)
		})
	}
	wg.Wait()
	if files, _ := filepath.Glob("migrations/*.sql"); total != len(files) {
		t.Errorf("got %d migrations applied, want %d", total, len(files))
	}
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
}

// A user who may not create schemas can migrate one of its own.
func testMigrateInAnExistingSchema(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE owner LOGIN")
	run(t, admin, "CREATE SCHEMA own AUTHORIZATION owner")
	_, err := postgreslock.Migrate(t.Context(), pool(t, s.URL("owner")), postgreslock.Schema("own"))
	must(t, "Migrate", err)
	must(t, "Unlock", lock(t, client(t, s.URL("owner"), postgreslock.Schema("own")), "k").Unlock(t.Context()))
}

// migratedTo4 makes the tables of locks as they were without groups, as a user who owns the schema.
func migratedTo4(t *testing.T, s *pgtest.Server, schema, owner string) {
	t.Helper()
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE "+owner+" LOGIN")
	run(t, admin, "CREATE SCHEMA "+schema+" AUTHORIZATION "+owner)
	text, err := postgreslock.MigrationSQL(postgreslock.Schema(schema))
	must(t, "MigrationSQL", err)
	text, _, _ = strings.Cut(text, "\n-- 0005_")
	run(t, pool(t, s.URL(owner)), text+"COMMIT")
}

// A migration by another user leaves the rights that programs have to the locks, also those that they have through
// PUBLIC, and gives them those to groups. What it makes belongs to the owner of the tables. A user who cannot take that
// role changes nothing.
func testMigrateAsAnotherUser(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE migrated_user LOGIN")
	for _, user := range []string{"postgres", "migrated_member", "migrated_stranger"} {
		schema, owner := "by_"+user, "owner_of_"+user
		migratedTo4(t, s, schema, owner)
		switch user {
		case "migrated_member":
			run(t, admin, "CREATE ROLE migrated_member LOGIN IN ROLE "+owner)
		case "migrated_stranger":
			run(t, admin, "CREATE ROLE migrated_stranger LOGIN")
			run(t, admin, "GRANT ALL ON SCHEMA "+schema+" TO migrated_stranger")
			run(t, admin, "GRANT ALL ON ALL TABLES IN SCHEMA "+schema+" TO migrated_stranger")
		}
		run(t, admin, "GRANT USAGE ON SCHEMA "+schema+" TO PUBLIC")
		run(t, admin, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "+schema+" TO PUBLIC")
		l := client(t, s.URL("migrated_user"), postgreslock.Schema(schema))
		lease := lock(t, l, "k")
		_, err := postgreslock.Migrate(t.Context(), pool(t, s.URL(user)), postgreslock.Schema(schema))
		if user == "migrated_stranger" {
			wantText(t, "Migrate by "+user, err, "owner of the schema and of its tables")
		} else {
			must(t, "Migrate by "+user, err)
			must(t, "Unlock", lock(t, semaphore.New(l, 1), "k").Unlock(t.Context()))
			others := texts(t, admin, "SELECT proname FROM pg_proc WHERE pronamespace = $1::regnamespace AND "+
				"proowner <> $2::regrole", schema, owner)
			if len(others) > 0 {
				t.Errorf("Migrate by %s: the functions %v have another owner than the tables", user, others)
			}
		}
		must(t, "Extend after a migration by "+user, lease.Extend(t.Context()))
		must(t, "Verify after a migration by "+user, locker.Verify(t.Context(), lease))
		must(t, "Unlock after a migration by "+user, lease.Unlock(t.Context()))
	}
}

// A migration gives up if a transaction uses the tables for long, as a dump does, and programs lock beside it.
func testMigrateBesideADump(t *testing.T, s *pgtest.Server) {
	migratedTo4(t, s, "dumped", "owner_of_dumped")
	owner := pool(t, s.URL("owner_of_dumped"))
	l := client(t, s.URL("owner_of_dumped"), postgreslock.Schema("dumped"))
	lease := lock(t, l, "k")
	dump := begin(t, s.URL("owner_of_dumped"), pgx.RepeatableRead)
	_, err := dump.Exec(t.Context(), "SELECT FROM dumped.waiters")
	must(t, "SELECT", err)
	_, err = postgreslock.Migrate(t.Context(), owner, postgreslock.Schema("dumped"))
	wantText(t, "Migrate beside a dump", err, "migrate again when it has ended")
	must(t, "Extend beside a dump", lease.Extend(t.Context()))
	must(t, "Unlock", lock(t, l, "other").Unlock(t.Context()))
	must(t, "Commit", dump.Commit(t.Context()))
	applied, err := postgreslock.Migrate(t.Context(), owner, postgreslock.Schema("dumped"))
	must(t, "Migrate after a dump", err)
	if applied != 1 {
		t.Errorf("got %d migrations after a dump, want the one that gave up", applied)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// A user who lacks a right to migrate is told who may, and not the rights of programs that lock. So is a DBA who runs
// the statements that MigrationSQL prints.
func testMigrateWithoutRights(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE nobody LOGIN")
	for _, schema := range []string{"of_nobody", "locker"} {
		_, err := postgreslock.Migrate(t.Context(), pool(t, s.URL("nobody")), postgreslock.Schema(schema))
		wantText(t, "Migrate of "+schema, err, "owner of the schema")
		if strings.Contains(err.Error(), "docs/backends/postgres.md lists") {
			t.Errorf("Migrate of %s: got %v, which is advice for programs that lock", schema, err)
		}
	}
	text, err := postgreslock.MigrationSQL(postgreslock.Schema("printed"))
	must(t, "MigrationSQL", err)
	run(t, admin, text)
	applied, err := postgreslock.Migrate(t.Context(), admin, postgreslock.Schema("printed"))
	must(t, "Migrate", err)
	if applied != 0 {
		t.Errorf("got %d migrations of a schema that was made by MigrationSQL, want none", applied)
	}
	must(t, "Unlock", lock(t, client(t, s.URL("postgres"), postgreslock.Schema("printed")), "k").Unlock(t.Context()))
	_, err = postgreslock.MigrationSQL(postgreslock.Schema("it's"))
	wantErr(t, "MigrationSQL of a wrong name", err, locker.ErrInvalid)
}

// Examine says what is wrong, and its advice for rights can be executed as it is.
func testExamine(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE patient LOGIN")
	findings := func(url string, opts ...postgreslock.Option) map[string]inspect.Finding {
		all := make(map[string]inspect.Finding)
		for _, f := range client(t, url, opts...).Examine(t.Context()) {
			all[f.Check] = f
		}
		return all
	}
	want := func(what string, got inspect.Finding, level inspect.Level, text string) {
		t.Helper()
		if got.Level != level || !strings.Contains(got.Text+": "+got.Fix, text) {
			t.Errorf("%s: got %+v, want %s, and %q", what, got, level, text)
		}
		if (got.Level == inspect.OK) != (got.Fix == "") {
			t.Errorf("%s: got the advice %q for something that is %s", what, got.Fix, got.Level)
		}
	}
	good := findings(s.URL("postgres"))
	want("version", good["version"], inspect.OK, "PostgreSQL 1")
	want("role", good["role"], inspect.OK, "takes writes")
	want("rights", good["rights"], inspect.OK, "may call all functions")
	want("persistence of a server without fsync", good["persistence"], inspect.Warn, "fsync = on")
	want("tables", findings(s.URL("postgres"), postgreslock.Schema("none"))["tables"], inspect.Fail, "locker migrate")
	for _, text := range []string{"may not use the schema", "may not call locker.acquire, "} {
		f := findings(s.URL("patient"))["rights"]
		want("rights", f, inspect.Fail, text)
		run(t, admin, f.Fix)
	}
	want("rights", findings(s.URL("patient"))["rights"], inspect.OK, "may call all functions")
	run(t, admin, "ALTER ROLE patient SET default_transaction_read_only = on")
	run(t, admin, "ALTER ROLE patient SET default_transaction_isolation = 'serializable'")
	bad := findings(s.URL("patient"))
	want("role", bad["role"], inspect.Fail, "switch off default_transaction_read_only")
	want("isolation", bad["isolation"], inspect.Fail, "read committed")
	want("a user who is not known", findings(s.URL("stranger"))["server"], inspect.Fail, "see whether the user exists")
	want("a server that is not there", findings("postgres://u@127.0.0.1:1/d")["server"], inspect.Fail,
		"see whether the server is up")
	want("a host that does not exist", findings("postgres://u@locker.invalid/d")["server"], inspect.Fail,
		"name of the host")
}

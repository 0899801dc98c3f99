package postgreslock_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/semaphore"
)

// unreleased is, in brief, how functions were before the first release: a grant had one token.
const unreleased = `
ALTER SEQUENCE @.fences INCREMENT 1;
INSERT INTO @.migrations VALUES (2);
CREATE FUNCTION @.acquire(
	a_name bytea, a_token text, a_label text, a_ttl bigint, a_ticket text, a_channel text,
	OUT fence bigint, OUT remaining bigint, OUT label text
) LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	fence := nextval('@.fences');
	INSERT INTO @.locks VALUES (a_name, a_token, a_label, fence, now(), now() + a_ttl * interval '1 microsecond');
END $$;
CREATE FUNCTION @.acquire_many(a_names bytea[], a_tokens text[], a_label text, a_ttl bigint)
	RETURNS bigint[] LANGUAGE sql AS 'SELECT NULL::bigint[]';
CREATE FUNCTION @.extend(a_name bytea, a_token text, a_ttl bigint) RETURNS text LANGUAGE sql AS 'SELECT ''held''';
CREATE FUNCTION @.release(a_name bytea, a_token text, a_keep bigint)
	RETURNS text LANGUAGE sql SECURITY DEFINER AS 'DELETE FROM @.locks WHERE name = a_name RETURNING ''held''';
CREATE FUNCTION @.verify(a_name bytea, a_token text, a_fence bigint) RETURNS text LANGUAGE sql AS 'SELECT ''held''';
CREATE TABLE @.advisory (slot bigint PRIMARY KEY);
CREATE FUNCTION @.advisory_slot(a_name bytea) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
GRANT USAGE ON SCHEMA @ TO veteran;
GRANT EXECUTE ON FUNCTION @.acquire, @.extend, @.release, @.verify TO veteran`

// A program refuses tables that were made before the first release, and Migrate brings them up to date while programs
// use them. Tokens go on, and so do locks and rights.
func testUnreleasedTables(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE veteran LOGIN")
	run(t, admin, "CREATE SCHEMA old")
	run(t, admin, "CREATE TABLE old.migrations (version int PRIMARY KEY)")
	tables, err := os.ReadFile("migrations/0001_tables.sql")
	must(t, "ReadFile", err)
	for _, text := range []string{string(tables), unreleased} {
		run(t, admin, strings.NewReplacer("@schema@", "old", "@", "old").Replace(text))
	}

	l := client(t, s.URL("veteran"), postgreslock.Schema("old"))
	lease, err := l.TryLock(t.Context(), "k")
	wantErr(t, "TryLock in old tables", err, locker.ErrUnavailable)
	wantText(t, "TryLock in old tables", err, "run locker migrate")
	if err == nil {
		must(t, "Unlock", lease.Unlock(t.Context()))
	}
	_, err = locker.LockAll(t.Context(), l, []string{"a", "b"})
	wantText(t, "LockAll in old tables", err, "run locker migrate")
	findings := l.Examine(t.Context())
	if !strings.Contains(fmt.Sprint(findings), "acquire, ") {
		t.Errorf("Examine: got %v, want the old functions named", findings)
	}

	const acquire = "SELECT fence::text FROM old.acquire('lock:held', 'token', '', 60000000, '', '')"
	veteran := pool(t, s.URL("veteran"))
	before := texts(t, veteran, acquire)[0]
	applied, err := postgreslock.Migrate(t.Context(), admin, postgreslock.Schema("old"))
	must(t, "Migrate", err)
	if applied != 3 {
		t.Errorf("got %d migrations of old tables, want three", applied)
	}
	if again := texts(t, veteran, acquire); len(again) != 1 || again[0] != before {
		t.Errorf("got the token %v for a lock that was held during the migration, want %s", again, before)
	}
	for _, call := range []string{
		"extend('lock:held', 'token', 60000000)", "verify('lock:held', 'token', " + before + ")",
		"release('lock:held', 'token', 0)",
	} {
		if got := texts(t, veteran, "SELECT * FROM old."+call); len(got) != 1 || got[0] != "held" {
			t.Errorf("%s by an old program: got %v, want held", call, got)
		}
	}
	lease = lock(t, l, "k")
	after := texts(t, veteran, strings.ReplaceAll(acquire, "held", "other"))
	if last, _ := strconv.ParseUint(before, 10, 64); lease.Fence() <= last+127 {
		t.Errorf("got the token %d, want one past the block of %s", lease.Fence(), before)
	}
	if want := fmt.Sprint(lease.Fence() + 128); len(after) != 1 || after[0] != want {
		t.Errorf("got the token %v for an old program, want %s", after, want)
	}
	must(t, "Extend", lease.Extend(t.Context()))
	must(t, "Unlock", lease.Unlock(t.Context()))
	lease = lock(t, semaphore.New(l, 1), "k") // with rights that the migration has given
	must(t, "Extend", lease.Extend(t.Context()))
	must(t, "Unlock", lease.Unlock(t.Context()))
	for _, f := range l.Examine(t.Context()) {
		if f.Check == "tables" || f.Check == "rights" && f.Level != inspect.OK && !strings.Contains(f.Fix, "in_tx") {
			t.Errorf("Examine after the migration: got %+v", f)
		}
	}
	if left := texts(t, admin, "SELECT proname FROM pg_proc WHERE pronamespace = 'old'::regnamespace AND "+
		"(proname LIKE 'advisory%' OR proname = 'acquire_many')"); len(left) > 0 {
		t.Errorf("%v: got functions that exclude no other programs", left)
	}
}

// Tables refuse a program that needs newer ones, and one that does not know what they mean. The errors say what to do.
func testVersions(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	for version, want := range map[int]string{postgreslock.Version + 1: "LKOLD", postgreslock.Version: "", 1: "",
		0: "LKNEW"} {
		for _, call := range []string{
			"acquire('versions', 't', '', 1, '', '', %d)",
			"acquire_some('{versions}', '{t}', '', 1, 1, '{}', false, %d)",
		} {
			_, err := p.Exec(t.Context(), "SELECT locker."+fmt.Sprintf(call, version))
			if got := postgreslock.Code(err); got != want {
				t.Errorf("%s with version %d: got the error %v, want %q", call, version, err, want)
			}
		}
	}
	run(t, p, "CREATE SCHEMA newer")
	run(t, p, `CREATE FUNCTION newer.acquire(bytea, text, text, bigint, text, text, int,
		OUT fence bigint, OUT remaining bigint, OUT label text) LANGUAGE plpgsql AS
		'BEGIN RAISE EXCEPTION ''newer'' USING ERRCODE = ''LKNEW''; END'`)
	_, err := client(t, s.URL("postgres"), postgreslock.Schema("newer")).TryLock(t.Context(), "k")
	wantErr(t, "TryLock in newer tables", err, locker.ErrUnavailable)
	wantText(t, "TryLock in newer tables", err, "use the release of the program that ran locker migrate")
}

package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/memory"
)

// blocks returns the statements of each SQL block of a page.
func blocks(t *testing.T, page string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	must(t, "read", err)
	for _, block := range strings.Split(string(text), "```sql\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		var statements []string
		for line := range strings.Lines(block) {
			statement, _, _ := strings.Cut(line, ";")
			statements = append(statements, strings.NewReplacer("$token", "@token", "$new", "@new").Replace(statement))
		}
		all = append(all, statements)
	}
	return all
}

// testFencingColumn executes the SQL of README.md and docs/recipes.md.
func testFencingColumn(t *testing.T, s *pgtest.Server) {
	readme, recipes := blocks(t, "README.md"), blocks(t, "docs/recipes.md")
	if len(readme) != 1 || len(readme[0]) != 3 || len(recipes) != 2 || len(recipes[1]) != 6 {
		t.Fatalf("README.md has %q, docs/recipes.md has %q", readme, recipes)
	}
	own, common := readme[0], recipes[1][1:5] // without BEGIN and COMMIT
	common[0] = strings.Replace(common[0], "'10s'", "'500ms'", 1)
	db := pool(t, s.URL("postgres"))
	run(t, db, "CREATE TABLE account (id int PRIMARY KEY, balance int, fence bigint)")
	run(t, db, "INSERT INTO account VALUES (1, 100, 0)")

	locks := memory.NewBackend()
	hold := func() locker.Lease { // a lock that ends while its holder is paused
		c := locker.NewClient(locks)
		t.Cleanup(func() { _ = c.Close() })
		return lock(t, c, "account:1", locker.TTL(100*time.Millisecond), locker.NoRenewal())
	}
	exec := func(tx pgx.Tx, lease locker.Lease, statement string) (rows int64, err error) {
		tag, err := tx.Exec(t.Context(), statement, pgx.NamedArgs{"token": int64(lease.Fence()), "new": 105})
		return tag.RowsAffected(), err
	}
	wantCode := func(what string, err error, code string) {
		t.Helper()
		if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: got %v, want the code %s", what, err, code)
		}
	}
	patient := func(limit string) pgx.Tx { // waits for a row for so long
		tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		_, err := tx.Exec(t.Context(), "SET lock_timeout = '"+limit+"'")
		must(t, "SET", err)
		return tx
	}

	// The trap: in a common transaction, the paused holder keeps the row.
	first, tx := hold(), begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := exec(tx, first, own[0])
	must(t, "the first statement", err)
	second := hold()
	_, err = exec(patient("300ms"), second, own[0])
	wantCode("the next holder, while a transaction without a limit is idle", err, "55P03")
	must(t, "Rollback", tx.Rollback(t.Context()))

	// Each statement is a transaction of its own: it does not.
	first = hold()
	autocommit := func(lease locker.Lease, statement string) int64 {
		t.Helper()
		tx := patient("300ms")
		rows, err := exec(tx, lease, statement)
		must(t, statement, err)
		must(t, "Commit", tx.Commit(t.Context()))
		return rows
	}
	if rows := autocommit(first, own[0]); rows != 1 {
		t.Errorf("the first holder: %d rows", rows)
	}
	autocommit(first, own[1])
	second = hold()
	for _, statement := range own {
		if rows := autocommit(second, statement); rows != 1 {
			t.Errorf("the next holder: %d rows by %s", rows, statement)
		}
	}
	if rows := autocommit(first, own[2]); rows != 0 {
		t.Errorf("the late write of the first holder changed %d rows", rows)
	}

	// With the limit, the server ends the transaction of the paused holder.
	first, tx = hold(), begin(t, s.URL("postgres"), pgx.ReadCommitted)
	for _, statement := range common[:2] {
		_, err := exec(tx, first, statement)
		must(t, statement, err)
	}
	second = hold()
	waits := patient("1min")
	for _, statement := range common {
		rows, err := exec(waits, second, statement)
		must(t, statement, err)
		if !strings.HasPrefix(statement, "SET") && rows != 1 {
			t.Errorf("the next holder in one transaction: %d rows by %s", rows, statement)
		}
	}
	must(t, "Commit", waits.Commit(t.Context()))
	_, err = exec(tx, first, common[3])
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) { // the other errors say that the statement could not be sent
		wantCode("the paused holder when it goes on", err, "25P03")
	}
	if err == nil || !tx.Conn().IsClosed() {
		t.Errorf("the paused holder when it goes on: got %v, want an error and a closed connection", err)
	}
	if got := texts(t, db, "SELECT fence::text FROM account"); len(got) != 1 || got[0] != fmt.Sprint(second.Fence()) {
		t.Errorf("the row has the token %q, want that of the next holder, %d", got, second.Fence())
	}
	wantErr(t, "its lease", first.Err(), locker.ErrLost)
}

package postgreslock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// testGroups has the tests of groups.
func testGroups(t *testing.T, s *pgtest.Server) {
	for name, test := range map[string]func(*testing.T, *pgtest.Server){
		"OneStep":             testGroupIsOneStep,
		"Numbers":             testPermitsGoToTheFirst,
		"Ends":                testPermitsEndByThemselves,
		"Kinds":               testKindsHaveTheirTurn,
		"AtTheSameTime":       testPermitsAtTheSameTime,
		"ExtendBesideAGrant":  testExtensionBesideAGrant,
		"ExtensionsInCircles": testExtensionsDoNotWaitForEachOther,
		"OverBesideAStep":     testExtensionsOfWhatIsOverDoNotWait,
		"ExtensionInTime":     testExtensionBesideOneThatCameInTime,
		"DowngradeInTx":       testDowngradeInATransaction,
		"AnswerIsLost":        testPermitWhoseAnswerIsLost,
		"DeadWaiter":          testDeadWaiterForPermits,
		"ManyWaiters":         testManyWaitersAreTold,
		"ReleasesTogether":    testReleasesAtTheSameTime,
		"Claims":              testWhatIsHandedIsClaimed,
		"LateClaims":          testLateClaims,
		"ClockIsSetBack":      testClockIsSetBack,
		"ToItself":            testWaiterHandsOnToItself,
		"Sweeps":              testSweepsHandOnWhatIsFree,
		"NoTurn":              testWaitersWithoutATurnAreCheap,
		"FarBehind":           testWaitersFarBehindNeedNoAdvisoryLock,
		"LateFarBehind":       testLateRequestsFarBehind,
		"InTx":                testPermitInATransaction,
		"Apart":               testProgramsWithALockForEachPlace,
		"Tools":               testToolsKnowGroups,
		"Sweep":               testSweepOfGroups,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// group calls the functions about a group by their SQL.
type group struct {
	testing.TB
	pool *pgxpool.Pool
	name string
}

// asks asks for weight of n permits, with a ticket that is the token if waits, and returns the numbers: "{0,1}".
func (g group) asks(token string, waits bool, n, weight int) string {
	return g.asksFor(token, waits, backend.Group{N: n, Weight: weight})
}

func (g group) asksFor(token string, waits bool, want backend.Group) string {
	g.Helper()
	ticket := ""
	if waits {
		ticket = token
	}
	return texts(g, g.pool, "SELECT coalesce(CASE fence WHEN 0 THEN 'gone' ELSE numbers::text END, '') FROM "+
		"locker.acquire_entry($1, $2, '', 60000000, $3, 'nobody', 3, $4, $5, $6, $7, '{}')",
		[]byte(g.name), token, ticket, int(want.Kind), want.N, want.Weight, want.From)[0]
}

func (g group) does(call string, args ...any) string {
	g.Helper()
	args = append([]any{[]byte(g.name)}, args...)
	return texts(g, g.pool, "SELECT coalesce(f::text, '') FROM locker."+call+" f", args...)[0]
}

// releases releases what token has. Those who wait have asked just before, except for one whose ticket is dead.
func (g group) releases(token string) {
	g.Helper()
	g.want("release of "+token, g.ends("release($1, '"+token+"', 0)"), "held")
}

// ends calls a function that may end something, right after those who wait have asked.
func (g group) ends(call string) (was string) {
	g.Helper()
	tx, err := g.pool.Begin(g.Context())
	must(g, "Begin", err)
	_, err = tx.Exec(g.Context(), "UPDATE locker.waiters SET seen = clock_timestamp() + interval '2 seconds' "+
		"WHERE name = $1 AND ticket <> 'dead'", []byte(g.name))
	must(g, "UPDATE", err)
	row := tx.QueryRow(g.Context(), "SELECT coalesce(f::text, '') FROM locker."+call+" f", []byte(g.name))
	must(g, call, row.Scan(&was))
	must(g, "Commit", tx.Commit(g.Context()))
	return was
}

// handed returns the tokens of those that something was handed to which they have not claimed.
func (g group) handed() string {
	return strings.Join(texts(g, g.pool, "SELECT token FROM locker.entries WHERE name = $1 AND handed > 0 ORDER BY fence",
		[]byte(g.name)), " ")
}

// ages makes the time of an owner end.
func (g group) ages(token string) {
	g.Helper()
	run(g, g.pool, "UPDATE locker.entries SET expires = clock_timestamp() WHERE name = $1 AND token = $2",
		[]byte(g.name), token)
}

func (g group) want(what, got, want string) {
	g.Helper()
	if got != want {
		g.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// Permits, readers and writers are one statement each to acquire, to extend and to release, however many they are.
func testGroupIsOneStep(t *testing.T, s *pgtest.Server) {
	l, count := counted(t, s.URL("postgres"))
	sem, rw := semaphore.New(l, semaphore.MaxPermits), rwlock.New(l)
	for name, of := range map[string]locker.Locker{
		"a permit": sem, "all permits": sem.Weight(semaphore.MaxPermits), "a reader": rw.Shared(), "a writer": rw.Exclusive(),
	} {
		before := count.sent.Load()
		lease := lock(t, of, "one step")
		must(t, "Extend", lease.Extend(t.Context()))
		must(t, "Unlock", lease.Unlock(t.Context()))
		if n := count.sent.Load() - before; n != 3 {
			t.Errorf("%s: got %d statements for an acquisition, an extension and a release, want 3", name, n)
		}
	}
}

// Permits have the lowest numbers that are free, and none beyond the limit of their caller. Those who wait get them in
// order, up to the first that cannot have all that it wants, and nobody passes that one.
func testPermitsGoToTheFirst(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "numbers"}
	g.want("a", g.asks("a", false, 5, 2), "{0,1}")
	g.want("b", g.asks("b", false, 5, 2), "{2,3}")
	g.want("b, once more", g.asks("b", false, 5, 2), "{2,3}")
	g.want("c, which wants more than is free", g.asks("c", true, 5, 3), "")
	g.want("d, behind c", g.asks("d", true, 5, 1), "")
	g.want("a newcomer", g.asks("e", false, 5, 1), "")
	g.releases("a")
	g.want("the waiters that are served", g.handed(), "c")
	g.want("d, beside c", g.asks("d", true, 5, 1), "")
	g.want("c", g.asks("c", true, 5, 3), "{0,1,4}")
	g.releases("b")
	g.want("f, with a smaller limit", g.asks("f", true, 2, 1), "")
	g.want("g, behind f", g.asks("g", true, 5, 1), "")
	g.want("the waiters that are served", g.handed(), "d")
	g.want("d", g.asks("d", true, 5, 1), "{2}")
	g.releases("c")
	g.want("g before f", g.asks("g", true, 5, 1), "{1}")
	g.want("f", g.asks("f", true, 2, 1), "{0}")
	g.want("kept", g.does("release($1, $2, 60000000)", "f"), "held")
	g.want("a newcomer beside what is kept", g.asks("h", false, 2, 1), "")
	g.want("another one", g.asks("i", false, 5, 2), "{3,4}")
	for token, want := range map[string]string{"d": "true", "i": "false"} {
		var fences []int64
		const tokens = "SELECT fence::text FROM locker.entries WHERE name = 'numbers' ORDER BY since"
		for _, text := range texts(t, g.pool, tokens) {
			f, _ := strconv.ParseInt(text, 10, 64)
			fences = append(fences, f)
		}
		if !slices.IsSorted(fences) {
			t.Errorf("tokens in the order of grants: got %v", fences)
		}
		run(t, g.pool, "INSERT INTO locker.waiters (name, ticket, channel, seen, kind, n, weight, upgrades) VALUES "+
			"('numbers', 'three', '', clock_timestamp(), 0, 3, 1, '')")
		g.want(token+" learns that others wait for permits below 3", strconv.FormatBool(
			g.does("extend($1, $2, 60000000, true)", token) == "wanted"), want)
		run(t, g.pool, "DELETE FROM locker.waiters WHERE name = 'numbers'")
	}
}

// A place whose time is over is free for whoever looks next, and its owner has lost it.
func testPermitsEndByThemselves(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "ends"}
	g.want("a", g.asks("a", false, 3, 2), "{0,1}")
	g.want("b", g.asks("b", false, 3, 1), "{2}")
	g.want("c", g.asks("c", true, 3, 1), "")
	g.want("d", g.asks("d", true, 3, 1), "")
	g.ages("a")
	g.want("an owner whose time is over", g.does("extend($1, $2, 60000000)", "a"), "gone")
	g.want("d, which looks first", g.asks("d", true, 3, 1), "{1}")
	g.want("c", g.asks("c", true, 3, 1), "{0}")
	g.want("an owner whose permits others have", g.does("extend($1, $2, 60000000)", "a"), "gone")
	g.want("its release", g.does("release($1, $2, 0)", "a"), "gone")
	g.ages("b")
	g.want("a newcomer", g.asks("e", false, 3, 1), "{2}")
}

// Locks of a group are for those that nobody before them excludes.
func testKindsHaveTheirTurn(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "kinds"}
	reads, up, writes := backend.Group{Kind: backend.Shared}, backend.Group{Kind: backend.Upgradeable},
		backend.Group{Kind: backend.Exclusive}
	const yes = "{}"
	g.want("a writer", g.asksFor("w", false, writes), yes)
	for _, token := range []string{"r1", "u1", "u2", "r2", "w2", "r3"} {
		g.want(token, g.asksFor(token, true, map[byte]backend.Group{'r': reads, 'u': up, 'w': writes}[token[0]]), "")
	}
	g.want("beside a writer", g.handed(), "")
	g.releases("w")
	g.want("behind a writer", g.handed(), "r1 u1 r2")
	g.want("u1", g.asksFor("u1", true, up), yes)
	g.want("r1", g.asksFor("r1", true, reads), yes)
	g.want("r2", g.asksFor("r2", true, reads), yes)
	g.want("u2", g.asksFor("u2", true, up), "")
	upgrade := writes
	upgrade.From = "u1"
	g.want("an upgrade", g.asksFor("u1 writes", true, upgrade), "")
	g.want("an upgrade, beside readers", g.handed(), "")
	g.want("whether its own owner is told", g.does("extend($1, $2, 60000000, true)", "u1"), "wanted") // of u2
	g.releases("r1")
	g.releases("r2")
	g.want("an upgrade", g.handed(), "u1 writes")
	g.want("an upgrade", g.asksFor("u1 writes", true, upgrade), yes)
	g.want("a downgrade", g.does("share($1, $2, 60000000, false)", "u1 writes"), "held")
	g.releases("u1")
	g.want("behind a downgrade", g.handed(), "u2")
	g.want("u2", g.asksFor("u2", true, up), yes)
	g.want("r3, behind a writer", g.asksFor("r3", true, reads), "")
	upgrade.From = "u2"
	g.want("an upgrade", g.asksFor("u2 writes", true, upgrade), "")
	g.releases("u2")
	g.want("an upgrade of nothing", g.handed(), "")
	g.want("an upgrade of nothing", g.asksFor("u2 writes", true, upgrade), "gone")
	g.releases("u1 writes")
	g.want("w2", g.handed(), "w2")
}

// Two transactions that grant at the same time give different permits: the second one waits for the first.
func testPermitsAtTheSameTime(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "lock:{same time}#permits"}
	g.want("the first grant of a server's life keeps others waiting", g.asks("warm", false, 2, 1), "{0}")
	g.releases("warm")
	tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := tx.Exec(t.Context(), "SELECT locker.acquire_entry($1, 'a', '', 60000000, '', '', 3, 0, 2, 1, '', '{}')",
		[]byte(g.name))
	must(t, "acquire_entry", err)
	sem := semaphore.New(client(t, s.URL("postgres")), 2)
	granted := make(chan *semaphore.Permit)
	go func() {
		lease, err := sem.TryLock(t.Context(), "same time", locker.TTL(time.Minute))
		must(t, "TryLock", err)
		p, _ := locker.LeaseAs[*semaphore.Permit](lease)
		granted <- p
	}()
	eventually(t, "the second one waits", func() bool {
		return len(texts(t, g.pool, "SELECT '' FROM pg_stat_activity WHERE wait_event = 'advisory' "+
			"AND query LIKE '%acquire_entry%'")) > 0
	})
	must(t, "Commit", tx.Commit(t.Context()))
	if p := <-granted; p == nil || p.Slot() != 1 {
		t.Errorf("got the permit %v beside the first one, want the second", p)
	}
	_, err = sem.TryLock(t.Context(), "same time")
	wantErr(t, "TryLock of a third", err, locker.ErrHeld)
}

// Owners in a group extend what they have beside a transaction that grants: it may wait for the disk.
func testExtensionBesideAGrant(t *testing.T, s *pgtest.Server) {
	sem := semaphore.New(client(t, s.URL("postgres")), 2)
	first := lock(t, sem, "beside a grant")
	tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := tx.Exec(t.Context(), "SELECT locker.acquire_entry($1, 'b', '', 60000000, '', '', 3, 0, 2, 1, '', '{}')",
		[]byte("lock:{beside a grant}#permits"))
	must(t, "acquire_entry", err)
	must(t, "Extend beside a transaction that grants", first.Extend(t.Context()))
	must(t, "Rollback", tx.Rollback(t.Context()))
	must(t, "Unlock", first.Unlock(t.Context()))
}

// Statements that extend the same entries in different orders do not wait for each other.
func testExtensionsDoNotWaitForEachOther(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "circles"}
	g.asks("a", false, 2, 1)
	g.asks("b", false, 2, 1)
	one, other := begin(t, s.URL("postgres"), pgx.ReadCommitted), begin(t, s.URL("postgres"), pgx.ReadCommitted)
	extend := func(tx pgx.Tx, tokens ...string) string {
		var was []*string
		names := make([][]byte, len(tokens))
		for i := range names {
			names[i] = []byte(g.name)
		}
		ttls, asks := slices.Repeat([]int64{60000000}, len(tokens)), make([]bool, len(tokens))
		must(t, "extend_some", tx.QueryRow(t.Context(), "SELECT locker.extend_some($1, $2, $3, $4)", names, tokens, ttls,
			asks).Scan(&was))
		text := ""
		for _, w := range was {
			if w == nil {
				text += "passed over "
			} else {
				text += *w + " "
			}
		}
		return text
	}
	g.want("a", extend(one, "a"), "held ")
	g.want("b and a, which another transaction extends", extend(other, "b", "a"), "held passed over ")
	g.want("b, which another transaction extends", extend(one, "b"), "passed over ")
}

// A statement that extends several entries does not wait for a step in the group of one that is over or kept, because
// others would wait for those that it has extended.
func testExtensionsOfWhatIsOverDoNotWait(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	living, over := group{t, p, "has a living one"}, group{t, p, "has one that is over"}
	living.asks("a", false, 4, 1)
	over.asks("b", false, 4, 1)
	over.ages("b")
	over.asks("c", false, 4, 1)
	over.want("a release that keeps c", over.does("release($1, $2, 60000000)", "c"), "held")
	step := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := step.Exec(t.Context(), "SELECT locker.acquire_entry($1, 'd', '', 60000000, '', '', 3, 0, 4, 1, '', '{}')",
		[]byte(over.name))
	must(t, "acquire_entry", err)
	got := texts(t, p, "SELECT locker.extend_some(ARRAY[$1, $2, $2]::bytea[], '{a,b,c}', '{60000000,60000000,60000000}', "+
		"'{f,f,f}')::text", []byte(living.name), []byte(over.name))
	living.want("extensions beside a step", strings.Join(got, " "), "{held,gone,gone}")
	must(t, "Rollback", step.Rollback(t.Context()))
}

// An extension that finds a lease over waits for another one of the same lease, which may have come in time.
func testExtensionBesideOneThatCameInTime(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "extended in time"}
	g.asks("a", false, 1, 1)
	g.ages("a")
	first := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := first.Exec(t.Context(), "UPDATE locker.entries SET expires = clock_timestamp() + '1 hour' WHERE name = $1",
		[]byte(g.name))
	must(t, "UPDATE", err)
	was := make(chan string, 1)
	go func() { was <- g.does("extend($1, $2, 60000000)", "a") }()
	eventually(t, "the other extension waits, or answers", func() bool {
		return len(was) > 0 || len(texts(t, g.pool, "SELECT '' FROM pg_stat_activity WHERE wait_event_type = 'Lock' "+
			"AND wait_event IN ('transactionid', 'tuple') AND query LIKE '%locker.extend($1, $2, 60000000)%'")) > 0
	})
	must(t, "Commit", first.Commit(t.Context()))
	g.want("the other extension", <-was, "held")
}

// A writer that becomes a reader in a transaction lets others in when that has ended, by its next extension.
func testDowngradeInATransaction(t *testing.T, s *pgtest.Server) {
	rw, other := rwlock.New(client(t, s.URL("postgres"))), rwlock.New(client(t, s.URL("postgres")))
	const key = "downgrade in a transaction"
	writes := lock(t, rw.Exclusive(), key, locker.TTL(time.Hour))
	tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	must(t, "InTx", postgreslock.InTx(t.Context(), tx, writes))
	reads, err := rwlock.Downgrade(t.Context(), writes)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Shared().TryLock(t.Context(), key)
	wantErr(t, "TryLock of a reader beside the transaction", err, locker.ErrHeld)
	must(t, "Commit", tx.Commit(t.Context()))
	must(t, "Extend", reads.Extend(t.Context()))
	must(t, "Unlock", lock(t, other.Shared(), key).Unlock(t.Context()))
	must(t, "Unlock", reads.Unlock(t.Context()))
}

// A permit whose answer is lost is returned, and so is one whose caller has left before it was granted. A caller whose
// hook panics leaves the queue.
func testPermitWhoseAnswerIsLost(t *testing.T, s *pgtest.Server) {
	relay := pgtest.NewRelay(t, s)
	l := postgreslock.New(pool(t, relay.URL("postgres")))
	t.Cleanup(func() { _ = l.Close() })
	sem := semaphore.New(l, 1)
	must(t, "Unlock", lock(t, sem, "lost answers").Unlock(t.Context()))
	relay.LoseReply()
	_, err := sem.TryLock(t.Context(), "lost answers", locker.TTL(time.Hour))
	wantErr(t, "TryLock without an answer", err, locker.ErrUnavailable)
	other := semaphore.New(client(t, s.URL("postgres")), 1)
	held := lock(t, other, "lost answers", locker.TTL(time.Hour)) // once that is undone
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan struct{}, 1)
	left := make(chan error)
	go func() {
		_, err := sem.Lock(lockertrace.With(ctx, &lockertrace.Trace{
			Waiting: func(lockertrace.Waiting) { waits <- struct{}{} },
		}), "lost answers", locker.TTL(time.Hour))
		left <- err
	}()
	<-waits
	cancel()
	wantErr(t, "Lock whose context ends", <-left, context.Canceled)
	func() {
		defer func() {
			if p := recover(); p != "hook" {
				t.Errorf("got %v, want the panic of a hook", p)
			}
		}()
		_, _ = sem.Lock(lockertrace.With(t.Context(), &lockertrace.Trace{
			Waiting: func(lockertrace.Waiting) { panic("hook") },
		}), "lost answers", locker.TTL(time.Hour))
	}()
	p := pool(t, s.URL("postgres"))
	eventually(t, "nobody waits", func() bool {
		const waiters = "SELECT '' FROM locker.waiters WHERE name = $1"
		return len(texts(t, p, waiters, []byte("lock:{lost answers}#permits"))) == 0
	})
	must(t, "Unlock", held.Unlock(t.Context()))
	run(t, p, "SELECT locker.undo('late', 'late', '', 60000000)")
	_, err = p.Exec(t.Context(),
		"SELECT locker.acquire_entry('late', 'late', '', 60000000, '', '', 3, 0, 1, 1, '', '{}')")
	if got := postgreslock.Code(err); got != "LKUND" {
		t.Errorf("a request that arrives after its undoing: got %v, want it refused", err)
	}
	eventually(t, "nothing is left", func() bool {
		return len(texts(t, p, "SELECT '' FROM locker.entries WHERE name = $1 UNION ALL "+
			"SELECT '' FROM locker.waiters WHERE name = $1", []byte("lock:{lost answers}#permits"))) == 0
	})
}

// A waiter for permits looks for its turn only if it may have one.
func testWaitersWithoutATurnAreCheap(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "no turn"}
	looks := func(what, ticket string, n int, want bool) {
		t.Helper()
		tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		_, err := tx.Exec(t.Context(), "SET LOCAL track_functions = 'all'")
		must(t, "SET", err)
		_, err = tx.Exec(t.Context(), "UPDATE locker.waiters SET seen = clock_timestamp() WHERE name = $1", []byte(g.name))
		must(t, "UPDATE", err)
		_, err = tx.Exec(t.Context(),
			"SELECT locker.acquire_entry($1, 'other ' || $2, '', 60000000, $2, 'nobody', 3, 0, $3, 1, '', '{}')",
			[]byte(g.name), ticket, n)
		must(t, "acquire_entry", err)
		var calls int
		must(t, "count", tx.QueryRow(t.Context(), "SELECT coalesce(sum(calls), 0)::int FROM pg_stat_xact_user_functions "+
			"WHERE schemaname = 'locker' AND funcname = 'hand_on'").Scan(&calls))
		if (calls > 0) != want {
			t.Errorf("%s: got %d looks for those who have their turn, want some: %t", what, calls, want)
		}
		must(t, "Rollback", tx.Rollback(t.Context()))
	}
	g.asks("a", false, 100, 99)
	g.asks("0", true, 100, 2)
	for i := range 65 {
		g.asks(strconv.Itoa(i+1), true, 100, 1)
	}
	looks("while the first waits for more than is free", "1", 100, false)
	looks("while all below a smaller limit is taken", "2", 50, false)
	g.ages("a")
	looks("when an owner's time is over", "1", 100, true)
	g.want("a release of what is over", g.does("release($1, $2, 0)", "a"), "gone")
	looks("when all is free", "63", 100, true)
	looks("behind 64 others", "64", 100, false)
}

// A waiter with 64 others before it that keep it from its turn shows without the advisory lock that it is there, and
// any other one with it.
func testWaitersFarBehindNeedNoAdvisoryLock(t *testing.T, s *pgtest.Server) {
	for _, want := range []backend.Group{{N: 1, Weight: 1}, {Kind: backend.Exclusive}} {
		g := group{t, pool(t, s.URL("postgres")), fmt.Sprint("far behind ", want.Kind)}
		last := fmt.Sprint("last ", want.Kind) // no other test may have the token, which is undone
		for i := range 67 {
			g.asksFor(strconv.Itoa(i), i > 0, want)
		}
		g.asksFor(last, true, want)
		run(t, g.pool, "UPDATE locker.waiters SET label = 'of ' || ticket WHERE name = $1", []byte(g.name))
		// asks returns who has been seen then, whether the request has the advisory lock, and the answer if it has not.
		asks := func(ticket, token string) (seen string) {
			tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
			_, err := tx.Exec(t.Context(), "UPDATE locker.waiters SET seen = clock_timestamp() - interval '1 second' "+
				"WHERE name = $1 AND ticket <> 'dead'", []byte(g.name))
			must(t, "UPDATE", err)
			var answer string
			must(t, "acquire_entry", tx.QueryRow(t.Context(), "SELECT locker.acquire_entry($1, $2, '', 60000000, $3, 'nobody', "+
				"3, $4, $5, $6, '', '{}')::text", []byte(g.name), token, ticket, int(want.Kind), want.N, want.Weight).Scan(&answer))
			must(t, "who was seen", tx.QueryRow(t.Context(), "SELECT string_agg(v.ticket, ' ') || CASE WHEN EXISTS (SELECT "+
				"FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) THEN ', locked' ELSE ': ' || $2 END "+
				"FROM locker.waiters v WHERE name = $1 AND seen >= now()", []byte(g.name), answer).Scan(&seen))
			must(t, "Rollback", tx.Rollback(t.Context()))
			return seen
		}
		for _, tt := range [][3]string{
			{last, last, last + `: (,0,"of 1",)`}, {"65", "65", `65: (,0,"of 1",)`},
			{"65", "another token", "65, locked"}, {"64", "64", "64, locked"}, {"1", "1", "1, locked"},
			{"newcomer", "newcomer", "newcomer, locked"},
		} {
			g.want(tt[0]+" with the token "+tt[1], asks(tt[0], tt[1]), tt[2])
		}
		run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() - interval '4 seconds', ticket = 'dead' "+
			"WHERE name = $1 AND ticket = '5'", []byte(g.name))
		g.want("65 with one that has died before it", asks("65", "65"), "65, locked")
		g.want("undo", g.does("undo($1, $2, '', 60000000)", last), "")
		_, err := g.pool.Exec(t.Context(), "SELECT locker.acquire_entry($1, $2, '', 60000000, $2, 'nobody', 3, $3, $4, "+
			"$5, '', '{}')", []byte(g.name), last, int(want.Kind), want.N, want.Weight)
		g.want("the last one after its undoing", postgreslock.Code(err), "LKUND")
	}
	g := group{t, pool(t, s.URL("postgres")), "far behind those that readers pass"}
	g.asksFor("writer", false, backend.Group{Kind: backend.Exclusive})
	for i := range 64 {
		g.asksFor(strconv.Itoa(i), true, backend.Group{Kind: backend.Upgradeable})
	}
	reader := backend.Group{Kind: backend.Shared}
	g.asksFor("reader", true, reader)
	g.ages("writer")
	g.want("a reader behind 64 that want to be upgradeable", g.asksFor("reader", true, reader), "{}")
}

// A request of a waiter far behind arrives after the waiter has asked with another token, or while it is handed
// something. It then neither waits for the advisory lock with the row of the waiter, nor says that nothing has changed.
// If it comes before that, what is handed to the waiter lasts from then on.
func testLateRequestsFarBehind(t *testing.T, s *pgtest.Server) {
	const asks = "acquire_entry($1, '%s', '', 60000000, '%s', 'nobody', 3, 0, 1, 1, '', '{}')"
	for what, calls := range map[string][2]string{
		"another token": {fmt.Sprintf(asks, "other", "last"), fmt.Sprintf(asks, "last", "last")},
		"handed":        {"release($1, 'holder', 0)", fmt.Sprintf(asks, "last", "last")},
		"in time":       {fmt.Sprintf(asks, "last", "last"), "release($1, 'holder', 0)"},
	} {
		name := "late request, " + what // the tokens of tests have nothing in common, because some are undone
		named := strings.NewReplacer("'last'", "'last, "+name+"'", "'holder'", "'holder, "+name+"'", "'other'",
			"'other, "+name+"'")
		g := group{t, pool(t, s.URL("postgres")), name}
		g.asks("holder, "+name, false, 1, 1)
		for i := range 64 {
			g.asks(name+strconv.Itoa(i), true, 1, 1)
		}
		g.asks("last, "+name, true, 1, 1)
		shows := func(exec func(context.Context, string, ...any) (pgconn.CommandTag, error), whose, when string) {
			_, err := exec(t.Context(), "UPDATE locker.waiters SET seen = clock_timestamp() + $2::text::interval "+
				"WHERE name = $1 AND (ticket LIKE 'last%') = $3", []byte(name), when, whose == "last")
			must(t, "UPDATE", err)
		}
		shows(g.pool.Exec, "others", "2 seconds")
		shows(g.pool.Exec, "last", "-100 milliseconds")
		tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		if what == "handed" {
			shows(tx.Exec, "others", "-4 seconds")
		}
		_, err := tx.Exec(t.Context(), "SELECT locker."+named.Replace(calls[0]), []byte(name))
		must(t, calls[0], err)
		var ends string
		if what == "in time" {
			must(t, "seen", tx.QueryRow(t.Context(), "SELECT (seen + interval '3 seconds')::text FROM locker.waiters "+
				"WHERE name = $1 AND ticket LIKE 'last%'", []byte(name)).Scan(&ends))
			shows(g.pool.Exec, "others", "-4 seconds")
		}
		answered := make(chan string, 1)
		go func() {
			answered <- strings.Join(texts(t, g.pool, "SELECT locker."+named.Replace(calls[1])+"::text", []byte(name)), " ")
		}()
		eventually(t, "the second one waits", func() bool {
			return len(texts(t, g.pool, "SELECT '' FROM pg_stat_activity WHERE wait_event = 'transactionid' AND query LIKE $1",
				"%"+name+"%")) > 0
		})
		must(t, "Commit", tx.Commit(t.Context()))
		if what != "in time" {
			g.want(what+": the answer", <-answered, `(,1,"",)`)
			continue
		}
		g.want("the release", <-answered, "held")
		g.want("the end of what is handed", texts(t, g.pool, "SELECT expires::text FROM locker.entries WHERE name = $1",
			[]byte(name))[0], ends)
	}
}

// A transaction keeps a permit until it ends, also if the lease is over before that.
func testPermitInATransaction(t *testing.T, s *pgtest.Server) {
	for _, ends := range []string{"released", "expired"} {
		l := client(t, s.URL("postgres"))
		sem := semaphore.New(l, 1)
		key := "in a transaction, " + ends
		g := group{t, pool(t, s.URL("postgres")), "lock:{" + key + "}#permits"}
		lease := lock(t, sem, key)
		tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))
		must(t, "Extend beside the transaction", lease.Extend(t.Context()))
		granted := waiting(t, semaphore.New(client(t, s.URL("postgres")), 1), key, nil)
		if ends == "released" {
			must(t, "Unlock", lease.Unlock(t.Context()))
		} else {
			run(t, g.pool, "UPDATE locker.entries SET expires = clock_timestamp() WHERE name = $1", []byte(g.name))
		}
		g.want("a newcomer, "+ends, g.asks("newcomer", false, 1, 1), "")
		select {
		case <-granted:
			t.Errorf("the permit was %s, and granted beside a transaction that it protects", ends)
		default:
		}
		must(t, "Commit", tx.Commit(t.Context()))
		next := <-granted
		if ends == "expired" {
			wantErr(t, "InTx with a permit that is over", postgreslock.InTx(t.Context(),
				begin(t, s.URL("postgres"), pgx.ReadCommitted), lease), locker.ErrLost)
		}
		must(t, "Verify", locker.Verify(t.Context(), next))
		must(t, "Unlock", next.Unlock(t.Context()))
	}
}

// A program that makes a lock of each place is noticed, and nobody gets anything of the group beside it.
func testProgramsWithALockForEachPlace(t *testing.T, s *pgtest.Server) {
	l := client(t, s.URL("postgres"))
	sem, rw := semaphore.New(l, 3), rwlock.New(l)
	for place, of := range map[string]locker.Locker{
		"{apart}#gate": sem, "{apart}#0": sem, "{apart}#rwgate": rw.Shared(), "{apart}#rwintent": rw.Exclusive(),
		"{apart}#rw0": rw.Exclusive(),
	} {
		lease := lock(t, l, place)
		for name, acquire := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
			"Lock": of.Lock, "TryLock": of.TryLock,
		} {
			_, err := acquire(t.Context(), "apart")
			wantErr(t, name+" beside "+place, err, locker.ErrForeignKey)
			if errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("%s beside %s: got %v, which says that the store fails", name, place, err)
			}
		}
		must(t, "Unlock", lease.Unlock(t.Context()))
		must(t, "Unlock", lock(t, of, "apart").Unlock(t.Context()))
	}
	// A Client refuses such a name itself, so this is a program that knows no groups.
	p := pool(t, s.URL("postgres"))
	g := group{t, p, "lock:{apart}#permits"}
	g.want("an entry that is over", g.asks("over", false, 3, 1), "{0}")
	g.ages("over")
	const acquire = "SELECT locker.acquire($1, $2, '', 60000000, $3, 'nobody')"
	run(t, p, acquire, []byte(g.name), "plain", "")
	refused := func(what string) {
		t.Helper()
		_, err := sem.TryLock(t.Context(), "apart")
		wantErr(t, "TryLock beside "+what, err, locker.ErrForeignKey)
	}
	refused("a lock with the name of the group")
	run(t, p, acquire, []byte(g.name), "waits", "waits")
	g.want("release of the lock", g.does("release($1, $2, 0)", "plain"), "held")
	refused("one that waits for such a lock")
	run(t, p, "SELECT locker.undo($1, 'waits', 'waits', 0)", []byte(g.name))
	must(t, "Unlock", lock(t, sem, "apart").Unlock(t.Context()))
}

// Tools see who has what, and take it from the owner that is named.
func testToolsKnowGroups(t *testing.T, s *pgtest.Server) {
	l := client(t, s.URL("postgres"), postgreslock.Prefix("tools:"))
	const name = "{export}#permits"
	a := lock(t, semaphore.New(l, 5).Weight(2), "export", locker.TTL(time.Hour), locker.Label("web-7"))
	b := lock(t, semaphore.New(l, 5), "export", locker.TTL(time.Minute), locker.Label("web-8"))
	other := client(t, s.URL("postgres"), postgreslock.Prefix("tools:"))
	granted := waiting(t, semaphore.New(other, 5).Weight(3), "export", nil)
	check := func(what string, i inspect.Inspection) {
		t.Helper()
		var all []string
		for _, h := range i.Holders {
			all = append(all, fmt.Sprint(h.Permits, h.Label, h.Owner == i.Owner))
		}
		got := fmt.Sprint(i.State, " ", i.Permits, i.Waiting, " ", strings.Join(all, " "))
		if want := "held [2] 1 [2]web-8true [0 1]web-7false"; got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	i, err := l.Inspect(t.Context(), name)
	must(t, "Inspect", err)
	check("Inspect", i)
	listed := 0
	for entry, err := range l.List(t.Context(), "{ex") {
		must(t, "List", err)
		listed++
		check("List of "+entry.Key, entry.Inspection)
	}
	if listed != 1 {
		t.Errorf("got %d in a list, want the group", listed)
	}
	_, err = l.ForceRelease(t.Context(), name, "")
	wantErr(t, "ForceRelease without an owner", err, locker.ErrInvalid)
	_, err = l.ForceRelease(t.Context(), name, "nobody")
	wantErr(t, "ForceRelease from nobody", err, locker.ErrNotHeld)
	i, err = l.ForceRelease(t.Context(), name, i.Holders[1].Owner)
	must(t, "ForceRelease", err)
	if i.Label != "web-7" || !slices.Equal(i.Permits, []int{0, 1}) || i.Waiting != 1 {
		t.Errorf("ForceRelease: got %+v, want the owner that has lost its permits", i)
	}
	next := <-granted
	wantErr(t, "Unlock of what was taken", a.Unlock(t.Context()), locker.ErrNotHeld)
	must(t, "Unlock", b.Unlock(t.Context()))
	must(t, "Unlock", next.Unlock(t.Context()))
	i, err = l.Inspect(t.Context(), name)
	must(t, "Inspect", err)
	if i.State != inspect.Free || i.Fence < next.Fence() {
		t.Errorf("got %+v of a group that is free", i)
	}
	rw := rwlock.New(l)
	lock(t, rw.Shared(), "config", locker.TTL(time.Minute))
	lock(t, rw.Upgradeable(), "config", locker.TTL(time.Hour))
	for entry, err := range l.List(t.Context(), "{config") {
		must(t, "List", err)
		if h := entry.Holders; len(h) != 2 || entry.Kind != "shared" || h[0].Kind != "shared" || h[1].Kind != "upgradeable" {
			t.Errorf("got %+v of a reader and one that may write", entry)
		}
	}
}

// What owners have left that have died is removed, and what is kept by a transaction is not.
func testSweepOfGroups(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "swept"}
	g.asks("old", false, 3, 1)
	g.asks("new", false, 3, 1)
	run(t, g.pool, "UPDATE locker.entries SET expires = clock_timestamp() - interval '2 hours' WHERE name = 'swept' AND "+
		"token = 'old'")
	run(t, g.pool, "SELECT locker.sweep('1 hour')")
	left := texts(t, g.pool, "SELECT token FROM locker.entries WHERE name = 'swept'")
	g.want("what is left", strings.Join(left, " "), "new")
}

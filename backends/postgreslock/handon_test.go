package postgreslock_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// A waiter that has died delays those behind it for as long as a dead waiter for a lock does, also if it wants all
// permits, gets them, or its clock was ahead.
func testDeadWaiterForPermits(t *testing.T, s *pgtest.Server) {
	for shift, served := range map[string]string{
		"-1.5 seconds": "dead", "-2.5 seconds": "", "-3 seconds": "b", "1 hour": "b",
	} {
		g := group{t, pool(t, s.URL("postgres")), "dead permits " + shift}
		var began time.Time
		for prompt := false; !prompt; {
			run(t, g.pool, "DELETE FROM locker.entries WHERE name = $1", []byte(g.name))
			run(t, g.pool, "DELETE FROM locker.waiters WHERE name = $1", []byte(g.name))
			g.want("a", g.asks("a", false, 3, 1), "{0}")
			g.want("a dead one, which wants all", g.asks("dead", true, 3, 3), "")
			g.want("b", g.asks("b", true, 3, 1), "")
			began = time.Now()
			run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() + $2::text::interval WHERE name = $1 AND "+
				"ticket = 'dead'", []byte(g.name), shift)
			g.releases("a")
			prompt = time.Since(began) < 400*time.Millisecond
		}
		g.want("the waiters that are served, "+shift, g.handed(), served)
		if got := g.asks("b", true, 3, 1); served != "b" && got != "" && time.Since(began) < 500*time.Millisecond {
			t.Errorf("b, as long as the dead one counts: got %s, want nothing", got)
		}
		g.want("whether the dead one counts for longer than it would have waited", texts(t, g.pool,
			"SELECT (count(*) > 0)::text FROM locker.entries WHERE name = $1 AND token = 'dead' AND "+
				"expires > since + interval '1.5 seconds'", []byte(g.name))[0], "false")
		g.ages("dead")
		run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() - interval '3 seconds' WHERE name = $1 AND "+
			"ticket = 'dead'", []byte(g.name))
		g.want("b", g.asks("b", true, 3, 1), "{0}")
		g.want("a newcomer", g.asks("newcomer", false, 3, 1), "{1}")
	}
}

// A permit that was handed to a waiter that has died keeps nobody out for long, even if the clock was set back since.
func testClockIsSetBack(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "clock is set back"}
	for _, token := range []string{"a", "w", "b"} {
		g.asks(token, token != "a", 1, 1)
	}
	g.releases("a")
	g.want("the waiters that are served", g.handed(), "w")
	run(t, g.pool, "UPDATE locker.entries SET expires = expires + interval '1 hour' WHERE name = $1", []byte(g.name))
	g.want("b", g.asks("b", true, 1, 1), "{0}")
}

// Two releases at the same time serve two waiters: the second one waits until the first has ended, and sees its
// effects. Transactions that do not see what others have done since they began are refused.
func testReleasesAtTheSameTime(t *testing.T, s *pgtest.Server) {
	for _, calls := range [][2]string{
		{"release($1, 'a', 0)", "release($1, 'b', 0)"},
		{"undo($1, 'a', '', 0)", "undo($1, 'b', '', 0)"},
		{"release_some(ARRAY[$1]::bytea[], '{a}')", "release($1, 'b', 0)"},
		{"release($1, 'a', 0)", "acquire_entry($1, 'b', '', 60000000, '', '', 3, 0, 2, 1, '', '{}')"}, // b is over
	} {
		g := group{t, pool(t, s.URL("postgres")), "releases " + strings.Join(calls[:], " ")}
		for _, token := range []string{"a", "b", "w1", "w2"} {
			g.asks(token, token[0] == 'w', 2, 1)
		}
		if strings.HasPrefix(calls[1], "acquire") {
			g.ages("b")
		}
		first := begin(t, s.URL("postgres"), pgx.ReadCommitted)
		_, err := first.Exec(t.Context(), "UPDATE locker.waiters SET seen = clock_timestamp() + '2 seconds' WHERE name = $1",
			[]byte(g.name))
		must(t, "UPDATE", err)
		_, err = first.Exec(t.Context(), "SELECT locker."+calls[0], []byte(g.name))
		must(t, calls[0], err)
		if got := texts(t, g.pool, "SELECT coalesce((locker.release_some(ARRAY[$1]::bytea[], '{b}'))[1], 'passed over')",
			[]byte(g.name))[0]; got != "passed over" {
			t.Errorf("a release with others beside %s: got %s, want it passed over", calls[0], got)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				_, err := g.pool.Exec(t.Context(), "SELECT locker."+calls[1], []byte(g.name))
				if postgreslock.Code(err) != "55P03" { // it has waited for two seconds
					must(t, calls[1], err)
					return
				}
			}
		}()
		eventually(t, "the second one waits", func() bool {
			return len(texts(t, g.pool, "SELECT '' FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1",
				"%"+calls[1]+"%")) > 0
		})
		must(t, "Commit", first.Commit(t.Context()))
		<-ended
		g.want("the waiters that are served by "+strings.Join(calls[:], " and "), g.handed(), "w1 w2")
	}
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, call := range []string{
			"release('isolation', 'a', 0)", "acquire_entry('isolation', 'a', '', 60000000, '', '', 3, 0, 2, 1, '', '{}')",
			"extend('isolation', 'a', 60000000)", "undo('isolation', 'a', '', 0)", "share('isolation', 'a', 60000000, false)",
		} {
			_, err := begin(t, s.URL("postgres"), level).Exec(t.Context(), "SELECT locker."+call)
			if got := postgreslock.Code(err); got != "LKISO" {
				t.Errorf("%s in a transaction that is %s: got %v, want it refused", call, level, err)
			}
		}
	}
}

// A waiter claims its permit beside a step of the group, which may wait for the disk, and the permit has then the TTL
// that the waiter asks for. A token that was undone gets nothing, and no waiter loses its turn by that.
func testWhatIsHandedIsClaimed(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "claims"}
	g.asks("a", false, 2, 2)
	g.asks("undone", true, 2, 1)
	g.asks("w1", true, 2, 1)
	g.asks("wants the first", true, 1, 1)
	g.asks("w2", true, 2, 1)
	g.want("undo of the token of a waiter", g.does("undo($1, $2, '', 60000000)", "undone"), "")
	g.releases("a")
	g.want("the waiters that are served beside one whose token was undone", g.handed(), "w1")
	g.does("undo($1, $2, $2, 0)", "wants the first")
	step := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := step.Exec(t.Context(), "SELECT locker.acquire_entry($1, 'b', '', 60000000, '', '', 3, 0, 2, 1, '', '{}')",
		[]byte(g.name))
	must(t, "acquire_entry", err)
	claim := "SELECT numbers::text FROM locker.acquire_entry($1, 'w1', '', 1000, 'w1', 'nobody', 3, 0, 2, 1, '', '{}')"
	g.want("a claim beside a step", texts(t, g.pool, claim, []byte(g.name))[0], "{1}")
	must(t, "Rollback", step.Rollback(t.Context()))
	g.want("whether a claim has the TTL of its request", texts(t, g.pool, "SELECT (expires < clock_timestamp() + "+
		"interval '1 second')::text FROM locker.entries WHERE name = $1", []byte(g.name))[0], "true")
	g.ages("w1")
	g.want("a release of an entry that is over", g.ends("release($1, 'w1', 0)"), "gone")
	g.want("those that are told only, because the group was empty", g.handed(), "")
	run(t, g.pool, "UPDATE locker.waiters SET token = 'anew', seen = clock_timestamp() + interval '2 seconds' "+
		"WHERE name = $1 AND ticket = 'undone'", []byte(g.name))
	g.want("w2", g.asks("w2", true, 2, 1), "{1}")
	g.want("the waiters that are served beside it", g.handed(), "anew")
	g.want("an undoing", g.does("undo($1, $2, $2, 60000000)", "anew"), "")
	_, err = g.pool.Exec(t.Context(), strings.Replace(claim, "'w1'", "'anew'", 1), []byte(g.name))
	if got := postgreslock.Code(err); got != "LKUND" {
		t.Errorf("a claim that arrives after its undoing: got %v, want it refused", err)
	}
	g.want("a newcomer", g.asks("newcomer", false, 2, 1), "{0}")
}

// A step serves 64 waiters at most, and the last of them serves those behind it with its claim. Each is told once.
func testManyWaitersAreTold(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "many"}
	listening, err := g.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Release()
	_, err = listening.Exec(t.Context(), "LISTEN nobody")
	must(t, "LISTEN", err)
	told := func(what string, want ...int) {
		t.Helper()
		_, err := g.pool.Exec(t.Context(), "NOTIFY nobody, 'last'")
		must(t, "NOTIFY", err)
		var got []int
		for {
			n, err := listening.Conn().WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n.Payload == "last" {
				break
			}
			if i, ok := strings.CutPrefix(n.Payload, "many "); ok {
				ticket, _ := strconv.Atoi(i)
				got = append(got, ticket)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: told %v, want %v", what, got, want)
		}
	}
	empty := func() {
		for _, table := range []string{"waiters", "entries"} {
			run(t, g.pool, "DELETE FROM locker."+table+" WHERE name = 'many'")
		}
	}
	var first []int
	for i := range 64 {
		first = append(first, i)
	}
	for _, want := range []backend.Group{{N: 70, Weight: 1}, {Kind: backend.Shared}} {
		all := backend.Group{N: 70, Weight: 70}
		if want.Kind != backend.Permit {
			all = backend.Group{Kind: backend.Exclusive}
		}
		g.asksFor("all", false, all)
		for i := range 66 {
			g.asksFor(fmt.Sprint("many ", i), true, want)
		}
		told("while all is held")
		g.releases("all")
		told("when all is free", first...)
		for i, next := range map[int][]int{0: nil, 63: {64, 65}} {
			run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() + interval '2 seconds' WHERE name = 'many'")
			if g.asksFor(fmt.Sprint("many ", i), true, want) == "" {
				t.Errorf("waiter %d gets nothing", i)
			}
			told(fmt.Sprint("when the claim comes of waiter ", i), next...)
		}
		empty()
		for ends, end := range map[string]func(){
			"asks once more": func() { g.asksFor("all", false, all) },
			"is swept":       func() { run(t, g.pool, "SELECT locker.sweep('1 hour')") },
		} {
			g.asksFor("all", false, all)
			for i := range 2 {
				g.asksFor(fmt.Sprint("many ", i), true, want)
			}
			run(t, g.pool, "UPDATE locker.entries SET expires = clock_timestamp() - interval '2 hours' WHERE name = 'many'")
			end()
			told("when an owner whose time is over "+ends, 0, 1)
			empty()
		}
	}
}

// A request that sweeps, as few do, hands on in its own group, too. Nobody gets what the request has taken.
func testSweepsHandOnWhatIsFree(t *testing.T, _ *pgtest.Server) {
	s := migrated(t) // all draw from the tokens of a server
	for name, c := range map[string]struct{ a, c, x, first, second backend.Group }{
		"sweep permits": {
			backend.Group{N: 10, Weight: 4}, backend.Group{N: 10, Weight: 1}, backend.Group{N: 10, Weight: 5},
			backend.Group{N: 10, Weight: 1}, backend.Group{N: 10, Weight: 1},
		},
		"sweep upgradeable": {
			backend.Group{Kind: backend.Upgradeable}, backend.Group{Kind: backend.Shared}, backend.Group{Kind: backend.Shared},
			backend.Group{Kind: backend.Upgradeable}, backend.Group{Kind: backend.Upgradeable},
		},
	} {
		g := group{t, pool(t, s.URL("postgres")), name}
		g.asksFor("a", false, c.a)
		g.asksFor("c", false, c.c)
		g.asksFor("x", false, c.x)
		keeps := begin(t, s.URL("postgres"), pgx.ReadCommitted) // as one that InTx protects
		_, err := keeps.Exec(t.Context(), "SELECT FROM locker.entries WHERE name = $1 AND token = 'x' FOR KEY SHARE",
			[]byte(name))
		must(t, "SELECT", err)
		run(t, g.pool, "UPDATE locker.entries SET expires = clock_timestamp() - interval '2 minutes' "+
			"WHERE name = $1 AND token = 'x'", []byte(name))
		g.want("first", g.asksFor("first", true, c.first), "")
		g.want("second", g.asksFor("second", true, c.second), "")
		run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() - interval '2.2 seconds' WHERE name = $1",
			[]byte(name))
		g.want("release", g.does("release($1, 'a', 0)"), "held")
		g.want("the waiters that something is handed to", g.handed(), "")
		must(t, "Commit", keeps.Commit(t.Context()))
		run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() WHERE name = $1", []byte(name))
		run(t, g.pool, "SELECT setval('locker.fences', "+
			"s.last_value + 128 * (999 - s.last_value / 128 % 1000)) FROM locker.fences s")
		g.asksFor("first", true, c.first)
		g.asksFor("second", true, c.second)
		g.want("what was given to two", strings.Join(texts(t, g.pool, `SELECT unnest(numbers)::text FROM locker.entries
			WHERE name = $1 GROUP BY 1 HAVING count(*) > 1 UNION ALL
			SELECT 'upgradeable' FROM locker.entries WHERE name = $1 AND kind = 2 HAVING count(*) > 1`, []byte(name)), " "), "")
	}
}

// A waiter that sees what is over hands on to those before it and to itself. If it is the last that a step serves, it
// hands on to those behind it, too.
func testWaiterHandsOnToItself(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "to itself"}
	g.asks("all", false, 200, 200)
	for i := range 70 {
		g.asks(fmt.Sprintf("w%02d", i), true, 200, 1)
	}
	run(t, g.pool, "UPDATE locker.waiters SET seen = clock_timestamp() + '1 second' WHERE name = $1", []byte(g.name))
	g.ages("all")
	g.want("the 64th", g.asks("w63", true, 200, 1), "{63}")
	g.want("those that wait", texts(t, g.pool, "SELECT count(*)::text FROM locker.waiters WHERE name = $1",
		[]byte(g.name))[0], "0")
}

// A claim that comes when it is over does not keep its row while it waits for a step that has to do with the row.
func testLateClaims(t *testing.T, s *pgtest.Server) {
	g := group{t, pool(t, s.URL("postgres")), "late claims"}
	g.asks("a", false, 1, 1)
	g.asks("w", true, 1, 1)
	g.asks("behind", true, 1, 1)
	g.releases("a")
	g.want("the waiters that are served", g.handed(), "w")
	g.ages("w")
	step := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := step.Exec(t.Context(), "SELECT locker.enter($1)", []byte(g.name))
	must(t, "enter", err)
	claimed := make(chan error, 1)
	go func() {
		_, err := g.pool.Exec(t.Context(),
			"SELECT locker.acquire_entry($1, 'w', '', 60000000, 'w', 'nobody', 3, 0, 1, 1, '', '{}')", []byte(g.name))
		claimed <- err
	}()
	eventually(t, "the claim waits", func() bool {
		return len(texts(t, g.pool, "SELECT '' FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE $1",
			"%acquire_entry%")) > 0
	})
	_, err = step.Exec(t.Context(), "SELECT locker.release($1, 'w', 0)", []byte(g.name))
	must(t, "release", err)
	must(t, "Commit", step.Commit(t.Context()))
	must(t, "the claim", <-claimed)
}

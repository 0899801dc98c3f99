package postgreslock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/rwlock"
)

// An exclusive lock of package rwlock is 64 locks. It is acquired by one statement, and extended and released by a few.
func testExclusiveLockIsCheap(t *testing.T, s *pgtest.Server) {
	l, count := counted(t, s.URL("postgres"))
	writers := rwlock.New(l).Exclusive()
	const most = 16
	extended, released := int64(64), int64(64)
	for range 5 { // how many are gathered depends on the machine
		start := count.sent.Load()
		lease, err := writers.Lock(t.Context(), "cheap")
		if err != nil {
			t.Fatal(err)
		}
		if n := count.sent.Load() - start; n != 1 {
			t.Errorf("Lock: got %d statements, want one", n)
		}
		start = count.sent.Load()
		must(t, "Extend", lease.Extend(t.Context()))
		extended, start = min(extended, count.sent.Load()-start), count.sent.Load()
		must(t, "Unlock", lease.Unlock(t.Context()))
		released = min(released, count.sent.Load()-start)
	}
	if extended > most || released > most {
		t.Errorf("got %d statements for Extend and %d for Unlock of 64 locks, want at most %d", extended, released, most)
	}
}

// together makes requests for many locks, which are acquired, and then a call for each at the same time.
type together struct {
	b    *postgreslock.Backend
	reqs []backend.Request
}

func acquireTogether(t *testing.T, s *pgtest.Server, prefix string) *together {
	t.Helper()
	g := &together{b: postgreslock.NewBackend(pool(t, s.URL("postgres")+"&pool_max_conns=2"), postgreslock.Prefix(prefix))}
	t.Cleanup(func() { must(t, "Close", g.b.Close()) })
	for i := range 64 {
		g.reqs = append(g.reqs, backend.Request{Key: fmt.Sprintf("%02d", i), Token: backend.NewToken(), TTL: time.Hour})
	}
	_, err := g.b.AcquireMany(t.Context(), g.reqs, backend.Choice{})
	must(t, "AcquireMany", err)
	return g
}

func (g *together) call(f func(i int, req backend.Request) error) []error {
	errs := make([]error, len(g.reqs))
	var all sync.WaitGroup
	for i, req := range g.reqs {
		all.Go(func() { errs[i] = f(i, req) })
	}
	all.Wait()
	return errs
}

// Of extensions and releases that are joined, each caller learns what became of its own lock.
func testJoinedOutcomes(t *testing.T, s *pgtest.Server) {
	prefix := newPrefix()
	g, p := acquireTogether(t, s, prefix), pool(t, s.URL("postgres"))
	const gone, taken, wanted = 20, 40, 60
	name := func(i int) []byte { return []byte(prefix + g.reqs[i].Key) }
	run(t, p, "DELETE FROM locker.locks WHERE name = $1", name(gone))
	run(t, p, "UPDATE locker.locks SET token = 'another' WHERE name = $1", name(taken))
	const seen = "UPDATE locker.waiters SET seen = clock_timestamp() + interval '2900 ms' WHERE ticket = $1"
	run(t, p, "SELECT locker.acquire($1, 'its', '', 60000000, $2, 'nobody')", name(wanted), prefix)
	check := func(what string, errs []error) {
		t.Helper()
		for i, err := range errs {
			var notHeld *locker.NotHeldError
			switch i {
			case gone:
				wantErr(t, what+" of a lock that is gone", err, locker.ErrNotHeld)
				if errors.As(err, &notHeld) {
					t.Errorf("%s of a lock that is gone: got the reason %v, want none", what, notHeld.Reason)
				}
			case taken:
				if !errors.As(err, &notHeld) || notHeld.Reason != locker.LostTakenOver {
					t.Errorf("%s of a lock that another owner has: got %v", what, err)
				}
			default:
				must(t, what, err)
			}
		}
	}
	var mu sync.Mutex
	var told []int
	for tries := 0; tries < 9 && len(told) == 0; tries++ { // the server counts a waiter for three seconds
		run(t, p, seen, prefix)
		check("Extend", g.call(func(i int, req backend.Request) error {
			req.Wanted = func() {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, i)
			}
			return g.b.Extend(t.Context(), req)
		}))
	}
	if !slices.Equal(told, []int{wanted}) {
		t.Errorf("wanted are the locks %v, want %d", told, wanted)
	}
	check("Release", g.call(func(_ int, req backend.Request) error { return g.b.Release(t.Context(), req) }))
	run(t, p, "SELECT locker.undo($1, 'its', $2, 0)", name(wanted), prefix)
	run(t, p, "SELECT locker.release($1, 'another', 0)", name(taken))
	if left := texts(t, p, leftSQL, prefix); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A statement for several locks passes over those that another transaction is changing, does not wait for it, and
// notifies those who wait for the others.
func testSomeLocksAtOnce(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	listening, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Release()
	_, err = listening.Exec(t.Context(), "LISTEN some_locks")
	must(t, "LISTEN", err)
	keys := []string{"some a", "some busy", "some b"}
	for _, key := range keys {
		run(t, p, "SELECT locker.acquire($1, $2, '', 60000000, '', '')", []byte(key), "of "+key)
		run(t, p, "SELECT locker.acquire($1, $2, '', 60000000, $2, 'some_locks')", []byte(key), "next "+key)
	}
	tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err = tx.Exec(t.Context(), "SELECT locker.extend('some busy', 'of some busy', 60000000)")
	must(t, "extend", err)
	const extend = "SELECT unnest(locker.extend_some('{some a,some busy,some b}', '{of some a,of some busy,x}', " +
		"'{60000000,60000000,60000000}', '{f,f,f}'))"
	const answers = "SELECT coalesce(was, 'passed over') FROM (%s) s (was)"
	if got := texts(t, p, fmt.Sprintf(answers, extend)); !slices.Equal(got, []string{"held", "passed over", "taken"}) {
		t.Errorf("extend_some: got %q", got)
	}
	// The waiters do not look away, however slow the machine is.
	run(t, p, "UPDATE locker.waiters SET seen = clock_timestamp() + interval '2900 ms' WHERE channel = 'some_locks'")
	const release = "SELECT unnest(locker.release_some('{some a,some busy,some b}', " +
		"'{of some a,of some busy,of some b}'))"
	if got := texts(t, p, fmt.Sprintf(answers, release)); !slices.Equal(got, []string{"held", "passed over", "held"}) {
		t.Errorf("release_some: got %q", got)
	}
	var told []string
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		n, err := listening.Conn().WaitForNotification(ctx)
		cancel()
		if err != nil {
			t.Fatalf("the waiters of two released locks: told %q, then %v", told, err)
		}
		told = append(told, n.Payload)
	}
	if slices.Sort(told); !slices.Equal(told, []string{"next some a", "next some b"}) {
		t.Errorf("told of released locks: %q, want the waiters of a and b", told)
	}
	must(t, "Commit", tx.Commit(t.Context()))
	run(t, p, "SELECT locker.release('some busy', 'of some busy', 0)")
	for _, key := range keys {
		run(t, p, "SELECT locker.undo($1, $2, $2, 0)", []byte(key), "next "+key)
	}
}

// The caller whose lock was passed over waits for the other transaction. The others do not.
func testJoinedReleaseBesideATransaction(t *testing.T, s *pgtest.Server) {
	prefix := newPrefix()
	g := acquireTogether(t, s, prefix)
	const busy = 30
	tx := begin(t, s.URL("postgres"), pgx.ReadCommitted)
	_, err := tx.Exec(t.Context(), "SELECT locker.extend($1, $2, 60000000)", []byte(prefix+g.reqs[busy].Key),
		g.reqs[busy].Token)
	must(t, "extend", err)
	var others sync.WaitGroup
	others.Add(len(g.reqs) - 1)
	committed := make(chan error, 1)
	go func() {
		others.Wait()
		committed <- tx.Commit(context.WithoutCancel(t.Context()))
	}()
	errs := g.call(func(i int, req backend.Request) error {
		err := g.b.Release(t.Context(), req)
		if i != busy {
			others.Done()
		}
		return err
	})
	must(t, "Commit", <-committed)
	for i, err := range errs {
		// The server gives up a request that waits for two seconds, which a busy machine may need for the others. It is
		// tried again then.
		if i != busy || !errors.Is(err, locker.ErrUnavailable) {
			must(t, "Release", err)
		}
	}
	p := pool(t, s.URL("postgres"))
	eventually(t, "all locks are released", func() bool { return len(texts(t, p, leftSQL, prefix)) == 0 })
}

// Releases whose callers leave before they could be sent go on in the background.
func testReleasesOfCallersThatLeave(t *testing.T, s *pgtest.Server) {
	prefix := newPrefix()
	p := pool(t, s.URL("postgres")+"&pool_max_conns=1")
	b := postgreslock.NewBackend(p, postgreslock.Prefix(prefix))
	t.Cleanup(func() { must(t, "Close", b.Close()) })
	g := &together{b: b, reqs: acquireTogether(t, s, prefix).reqs}
	conn, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer leave()
	for _, err := range g.call(func(_ int, req backend.Request) error { return b.Release(ctx, req) }) {
		wantErr(t, "Release without a connection", err, context.DeadlineExceeded)
		wantText(t, "Release without a connection", err, "all 1 connections of the pool were in use")
	}
	conn.Release()
	direct := pool(t, s.URL("postgres"))
	eventually(t, "all locks are released", func() bool { return len(texts(t, direct, leftSQL, prefix)) == 0 })
}

// With rights from before there were statements for several locks, and with tables from then, each lock is released by
// a statement of its own.
func testNoRightToReleaseTogether(t *testing.T, s *pgtest.Server) {
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE ROLE earlier LOGIN")
	for _, statement := range strings.Split(documented(t)[0], ";") {
		run(t, admin, strings.NewReplacer("app", "earlier", "locker.release_some, ", "", "locker.extend_some, ", "").
			Replace(statement))
	}
	writers := rwlock.New(client(t, s.URL("earlier"))).Exclusive()
	lease, err := writers.Lock(t.Context(), "earlier")
	if err != nil {
		t.Fatal(err)
	}
	must(t, "Extend", lease.Extend(t.Context()))
	must(t, "Unlock", lease.Unlock(t.Context()))
}

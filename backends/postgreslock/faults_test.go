package postgreslock_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/lockertrace"
)

// waiting calls Lock and returns when it waits. If hints is not nil, it counts the notifications.
func waiting(t *testing.T, l locker.Locker, key string, hints *atomic.Int64) (granted <-chan locker.Lease) {
	t.Helper()
	waits, done := make(chan struct{}, 1), make(chan locker.Lease, 1)
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
		Waiting: func(lockertrace.Waiting) { waits <- struct{}{} },
		Woken: func(w lockertrace.Wake) {
			if hints != nil && w.Reason == lockertrace.WakeNotify {
				hints.Add(1)
			}
		},
	})
	go func() {
		lease, err := l.Lock(ctx, key, locker.TTL(time.Minute), locker.Patience(time.Hour))
		if err != nil && t.Context().Err() == nil {
			t.Errorf("Lock of a waiter: %v", err)
		}
		done <- lease
	}()
	select {
	case <-waits:
	case <-done:
		t.Fatal("Lock of a held lock: it has returned")
	}
	return done
}

// A server that is killed and started again has its locks, and greater tokens. Waiters queue anew.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	holder, other := client(t, s.URL("postgres")), client(t, s.URL("postgres"))
	before := lock(t, holder, "k", locker.TTL(time.Minute))
	granted := waiting(t, other, "k", nil)
	s.Restart()
	eventually(t, "the holder can extend", func() bool { return before.Extend(t.Context()) == nil })
	must(t, "Verify", locker.Verify(t.Context(), before))
	select {
	case <-granted:
		t.Error("the waiter has a lock that is held")
	default:
	}
	must(t, "Unlock", before.Unlock(t.Context()))
	after := <-granted
	if after.Fence() <= before.Fence() {
		t.Errorf("got token %d after %d", after.Fence(), before.Fence())
	}
	must(t, "Unlock", after.Unlock(t.Context()))
}

// Requests that a stopped server executes later leave nothing behind, although their callers have left.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	l := client(t, s.URL("postgres"), postgreslock.Timeout(500*time.Millisecond))
	eventually(t, "there is a connection", func() bool {
		lease, err := l.Lock(t.Context(), "k")
		return err == nil && lease.Unlock(t.Context()) == nil
	})
	s.Pause()
	// The context ends before the request does, and after it.
	for _, timeout := range []time.Duration{50 * time.Millisecond, 2 * time.Second} {
		for _, acquire := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){l.TryLock, l.Lock} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			start := time.Now()
			if _, err := acquire(ctx, "k", locker.TTL(time.Hour)); !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("a server that is stopped: got %v, want ErrUnavailable", err)
			}
			if took := time.Since(start); took > timeout+2*time.Second {
				t.Errorf("a server that is stopped: the call took %v, and its context ended after %v", took, timeout)
			}
			cancel()
		}
	}
	s.Resume()
	const left = "SELECT 'lock' FROM locker.locks UNION ALL SELECT 'waiter' FROM locker.waiters"
	eventually(t, "nothing is left", func() bool { return len(texts(t, p, left)) == 0 })
}

// The place of a waiter does not end with a TTL. So it is given up also if the server hangs for longer than that.
func TestServerHangsForLongerThanATTL(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	p := pool(t, s.URL("postgres"))
	holder, other := client(t, s.URL("postgres")), client(t, s.URL("postgres"), postgreslock.Timeout(500*time.Millisecond))
	lease := lock(t, holder, "k", locker.TTL(time.Hour), locker.NoRenewal())
	eventually(t, "there is a connection", func() bool { // to make one can take longer than a request may
		_, err := other.TryLock(t.Context(), "k")
		return errors.Is(err, locker.ErrHeld)
	})
	const waiters = "SELECT ticket FROM locker.waiters"
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	const ttl = 2 * time.Second
	go func() {
		_, err := other.Lock(ctx, "k", locker.TTL(ttl), locker.Patience(time.Hour))
		left <- err
	}()
	eventually(t, "the waiter has a place", func() bool { return len(texts(t, p, waiters)) == 1 })
	s.Pause()
	leave()
	if err := <-left; err == nil {
		t.Error("Lock of a held lock: got no error")
	}
	<-time.After(2 * ttl)
	s.Resume()
	eventually(t, "the place is given up", func() bool { return len(texts(t, p, waiters)) == 0 })
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// An attempt may arrive at the server after it was undone. The server keeps a note of its owner value, which no other
// test of this server may use.
func testLateAttemptDoesNothing(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	run(t, p, "SELECT locker.undo('late', 'late token', 'ticket', 60000000)")
	const acquire = "SELECT locker.acquire('late', 'late token', '', 60000000, 'ticket', '')"
	if _, err := p.Exec(t.Context(), acquire); err == nil {
		t.Error("an attempt that was undone before it arrived: got a grant, want an error")
	}
	must(t, "Unlock", lock(t, client(t, s.URL("postgres"), postgreslock.Prefix("")), "late").Unlock(t.Context()))
}

// A waiter is there if the server has seen it within three seconds, by its clock, which may have been set back since.
func testPresence(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	for seen, want := range map[string]string{
		"-2999 ms": "true", "-3000 ms": "false", "2999 ms": "true", "3000 ms": "false", "1 hour": "false",
	} {
		const present = "SELECT locker.present(t + $1::text::interval, t)::text FROM clock_timestamp() t"
		if got := texts(t, p, present, seen); !slices.Equal(got, []string{want}) {
			t.Errorf("a waiter that was seen %s from now: got %v, want %s", seen, got, want)
		}
	}
}

// Waiters behind one that has died get the lock within about four seconds, also if the server's clock was set back by
// an hour since the other one was seen. A notification that is lost costs about a second.
func testDeadWaiter(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	holder, other := client(t, s.URL("postgres"), postgreslock.Prefix("")), client(t, s.URL("postgres"),
		postgreslock.Prefix(""))
	for key, ahead := range map[string]string{"dead": "0", "dead since an hour to come": "1 hour"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			lease := lock(t, holder, key)
			run(t, p, "SELECT locker.acquire($1, $2, '', 60000000, $2, 'nobody')", []byte(key), "its "+key)
			const shift = "UPDATE locker.waiters SET seen = seen + $2::text::interval WHERE name = $1"
			run(t, p, shift, []byte(key), ahead)
			granted := waiting(t, other, key, nil)
			must(t, "Unlock", lease.Unlock(t.Context()))
			select {
			case next := <-granted:
				must(t, "Unlock", next.Unlock(t.Context()))
			case <-time.After(30 * time.Second):
				t.Error("the waiter behind a dead one does not get the lock")
			}
		})
	}
}

// A lock that is free goes to the first of its waiters, which is notified, and to nobody else.
func testTurns(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	listening, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Release()
	_, err = listening.Exec(t.Context(), "LISTEN turns")
	must(t, "LISTEN", err)
	granted := func(token, ticket string) bool {
		const acquire = "SELECT 'granted' FROM locker.acquire('turns', $1, '', 60000000, $2, 'turns') WHERE fence IS NOT NULL"
		return len(texts(t, p, acquire, token, ticket)) > 0
	}
	if !granted("holder's", "") || granted("first's", "first") || granted("second's", "second") {
		t.Fatal("a lock that is free was not granted, or one that is held was")
	}
	run(t, p, "SELECT locker.release('turns', $1, 0)", "holder's")
	for _, ticket := range []string{"second", ""} {
		// The first waiter does not look away, however slow the machine is.
		run(t, p, "UPDATE locker.waiters SET seen = clock_timestamp() + interval '2900 ms' WHERE ticket = 'first'")
		if granted("another's", ticket) {
			t.Error("another one than the first waiter was granted the lock")
		}
	}
	n, err := listening.Conn().WaitForNotification(t.Context())
	if err != nil || n.Payload != "first" {
		t.Errorf("got the notification %v, %v, want one for the first waiter", n, err)
	}
	if !granted("first's", "first") {
		t.Error("the first waiter was not granted the lock")
	}
	run(t, p, "SELECT locker.undo('turns', $1, 'second', 0)", "another's")
	run(t, p, "SELECT locker.release('turns', $1, 0)", "first's")
}

// What holders and waiters that have died have left is removed, and nothing else.
func testSweep(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	run(t, p, "SELECT locker.acquire('swept', 'sweep', '', 1, '', '')")
	run(t, p, "SELECT locker.acquire('not swept', 'sweep', '', 60000000, '', '')")
	run(t, p, "SELECT locker.acquire('not swept', 'another', '', 60000000, 'not swept', '')")
	const left = "SELECT encode(name, 'escape') FROM locker.locks WHERE token = 'sweep' ORDER BY name"
	eventually(t, "an expired lock is swept", func() bool {
		run(t, p, "SELECT locker.sweep(interval '10 seconds')")
		return slices.Equal(texts(t, p, left), []string{"not swept"})
	})
	run(t, p, "SELECT locker.undo('not swept', 'sweep', '', 0)")
	run(t, p, "SELECT locker.undo('not swept', 'another', 'not swept', 0)")
}

// A server that is killed right after its answer has what it has answered, and issues greater tokens, also if its data
// are older than that.
func TestCrashAfterTheAnswer(t *testing.T) {
	t.Parallel()
	s := migrated(t, "wal_writer_delay=10s") // only commits that wait write the log
	p := pool(t, s.URL("postgres"))
	l := client(t, s.URL("postgres"))
	look := func(key string) (i inspect.Inspection) {
		t.Helper()
		inspector, _ := locker.As[inspect.Inspector](l)
		eventually(t, "the server answers", func() bool {
			var err error
			i, err = inspector.Inspect(t.Context(), key)
			return err == nil
		})
		return i
	}
	grant := func(key string) (lease locker.Lease) {
		t.Helper()
		eventually(t, "the server grants", func() bool {
			var err error
			lease, err = l.TryLock(t.Context(), key, locker.TTL(time.Minute), locker.NoRenewal())
			return err == nil
		})
		return lease
	}
	granted := lock(t, l, "granted", locker.TTL(time.Minute), locker.NoRenewal())
	s.Restart()
	if i := look("granted"); i.State != inspect.Held || i.Fence != granted.Fence() {
		t.Errorf("after a crash: got %+v, want the lock held with the token %d", i, granted.Fence())
	}
	must(t, "Extend", granted.Extend(t.Context(), locker.TTL(time.Hour)))
	s.Restart()
	if i := look("granted"); i.Remaining < 30*time.Minute {
		t.Errorf("after a crash: got %v left, want the hour of the extension", i.Remaining)
	}
	kept := lock(t, l, "kept", locker.MinHold(time.Minute))
	must(t, "Unlock", kept.Unlock(t.Context()))
	s.Restart()
	if i := look("kept"); i.State != inspect.Kept {
		t.Errorf("after a crash: got %+v, want the lock kept", i)
	}

	run(t, p, "SELECT setval('locker.fences', 1)") // as in older data that were restored
	s.Restart()
	if after := grant("restored"); after.Fence() <= kept.Fence() {
		t.Errorf("got token %d from older data, after %d", after.Fence(), kept.Fence())
	}

	// The clock helps no more: it was far ahead, and was set back.
	run(t, pool(t, s.URL("postgres")), "SELECT setval('locker.fences', 4000000000000000000)")
	ahead := grant("ahead")
	s.Restart()
	if behind := grant("behind"); behind.Fence() <= ahead.Fence() {
		t.Errorf("after a crash: got token %d after %d", behind.Fence(), ahead.Fence())
	}
}

// The clock of the server is set back or forward by an hour under load, while two workers keep locks, and a transaction
// is protected. Set back, no two workers have a lock at the same time. Set forward, locks end early, and later holders
// have greater tokens. InTx keeps others out in both cases. Everybody goes on, and nothing is left behind.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	for _, step := range short.Part(t, 0, []time.Duration{-time.Hour, time.Hour}) {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			testClockStep(t, step)
		})
	}
}

func testClockStep(t *testing.T, step time.Duration) {
	s, clock := pgtest.StartWithClock(t)
	migrate(t, s)
	url := s.URL("postgres")
	holder := client(t, url)
	lease := lock(t, holder, "tx", locker.TTL(time.Minute), locker.NoRenewal())
	tx := begin(t, url, pgx.ReadCommitted)
	must(t, "InTx", postgreslock.InTx(t.Context(), tx, lease))

	c := gather(t, url)
	c.freeze()
	p := pool(t, url)
	before := texts(t, p, "SELECT clock_timestamp()::text")[0]
	must(t, "the step", clock.Set(step, 0))
	eventually(t, "the clock has moved", func() bool {
		const moved = "SELECT 'yes' WHERE abs(extract(epoch FROM clock_timestamp() - $1::text::timestamptz)) > 1800"
		return len(texts(t, p, moved, before)) > 0
	})
	wantHeld(t, holder, "tx", "of a lock whose transaction is open, after a step of the clock")
	must(t, "Commit", tx.Commit(t.Context()))
	_ = lease.Unlock(t.Context()) // if the clock was set forward, the lock has ended
	c.more(60)
	double, backwards := c.disperse()
	if step < 0 && len(double) > 0 {
		t.Errorf("after a step back, two workers had a lock at the same time: %v", double)
	}
	if len(backwards) > 0 {
		t.Errorf("tokens are not greater than earlier ones of their keys: %v", backwards)
	}
	c.nothingLeft(url)
}

// The disk of the server gets full under load, while callers keep locks and one waits. A server that cannot store more
// rows refuses locks that need room, and releases others. A server that cannot write its log ends. Callers that get no
// lock learn that the store is unavailable. When there is room again, everybody goes on: no two callers have had a lock
// at the same time, tokens grow, and nothing is left behind.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	fills := map[string]func(t *testing.T, l locker.Locker, p *pgxpool.Pool){"base": fillTables, "pg_wal": fillLog}
	for _, directory := range short.Part(t, 0, []string{"base", "pg_wal"}) {
		t.Run(directory, func(t *testing.T) {
			t.Parallel()
			testFullDisk(t, directory, fills[directory])
		})
	}
}

func testFullDisk(t *testing.T, directory string, fill func(t *testing.T, l locker.Locker, p *pgxpool.Pool)) {
	s, disk := pgtest.StartWithDisk(t)
	migrate(t, s)
	url := s.URL("postgres")
	c := gather(t, url)
	c.keep(url)
	c.freeze()
	l := client(t, url)
	held := lock(t, l, "held", locker.TTL(time.Hour), locker.NoRenewal())
	granted := waiting(t, client(t, url), "held", nil)

	must(t, "Fill", disk.Fill(filepath.Join(s.Data(), directory)))
	fill(t, l, pool(t, url))
	if err := held.Extend(t.Context(), locker.TTL(2*time.Hour)); err != nil {
		wantErr(t, "Extend", err, locker.ErrUnavailable)
	}
	must(t, "the lease while the disk is full", held.Err())
	must(t, "Free", disk.Free())
	if directory == "pg_wal" {
		s.Restart()
	}

	c.more(60)
	eventually(t, "the lock is still held", func() bool { return locker.Verify(t.Context(), held) == nil })
	select {
	case <-granted:
		t.Error("the waiter has a lock that is held")
	default:
	}
	_ = held.Unlock(t.Context()) // it goes on in the background
	next := <-granted
	if next == nil {
		t.Fatal("the waiter was not granted the lock")
	}
	if next.Fence() <= held.Fence() {
		t.Errorf("got token %d after %d", next.Fence(), held.Fence())
	}
	_ = next.Unlock(t.Context())
	double, backwards := c.disperse()
	if len(double) > 0 || len(backwards) > 0 {
		t.Errorf("two callers had a lock at the same time: %v; tokens did not grow: %v", double, backwards)
	}
	c.nothingLeft(url)
}

// fillTables acquires locks until one is refused, and releases them while there is no room.
func fillTables(t *testing.T, l locker.Locker, p *pgxpool.Pool) {
	t.Helper()
	var leases []locker.Lease
	eventually(t, "a lock is refused, for lack of room", func() bool {
		lease, err := l.TryLock(t.Context(), fmt.Sprintf("room %d", len(leases)), locker.TTL(time.Hour))
		if err == nil {
			leases = append(leases, lease)
			return false
		}
		wantErr(t, "TryLock", err, locker.ErrUnavailable)
		return strings.Contains(err.Error(), "make room on the disk of the server")
	})
	t.Logf("%d locks were granted", len(leases))
	for _, lease := range leases {
		_ = lease.Unlock(t.Context())
	}
	const left = "SELECT token FROM locker.locks WHERE starts_with(encode(name, 'escape'), 'lock:room ')"
	eventually(t, "locks are released while there is no room", func() bool { return len(texts(t, p, left)) == 0 })
}

// fillLog writes to the log of the server until there is no room.
func fillLog(t *testing.T, l locker.Locker, p *pgxpool.Pool) {
	t.Helper()
	eventually(t, "the server has ended, for lack of room", func() bool {
		_, err := p.Exec(t.Context(), "SELECT pg_logical_emit_message(true, 'filler', repeat('x', 1000000))")
		return err != nil
	})
	eventually(t, "a lock is refused", func() bool {
		lease, err := l.TryLock(t.Context(), "refused")
		if err == nil {
			_ = lease.Unlock(t.Context())
			return false
		}
		wantErr(t, "TryLock", err, locker.ErrUnavailable)
		return true
	})
}

// Data that are restored into a server that goes on running take no token back. A dump has the value of the sequence,
// and the row of history.
func testTokensAfterARestore(t *testing.T, s *pgtest.Server) {
	for schema, prepare := range map[string]func(t *testing.T, p *pgxpool.Pool, schema string){
		"restored": func(t *testing.T, p *pgxpool.Pool, schema string) { // with its tables
			run(t, p, "DROP SCHEMA "+schema+" CASCADE")
			_, err := postgreslock.Migrate(t.Context(), p, postgreslock.Schema(schema))
			must(t, "Migrate", err)
		},
		"refilled": func(t *testing.T, p *pgxpool.Pool, schema string) { // into tables that are there
			run(t, p, "TRUNCATE "+schema+".history")
		},
	} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			p := pool(t, s.URL("postgres"))
			_, err := postgreslock.Migrate(t.Context(), p, postgreslock.Schema(schema))
			must(t, "Migrate", err)
			l := client(t, s.URL("postgres"), postgreslock.Schema(schema))
			must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
			history := texts(t, p, "SELECT life FROM "+schema+".history")[0]
			value := texts(t, p, "SELECT last_value::text FROM "+schema+".fences")[0]
			last := grants(t, l)

			prepare(t, p, schema)
			run(t, p, "INSERT INTO "+schema+".history VALUES ($1)", history)
			run(t, p, "SELECT setval('"+schema+".fences', "+value+")")
			lease := lock(t, client(t, s.URL("postgres"), postgreslock.Schema(schema)), "k")
			if lease.Fence() <= last {
				t.Errorf("got token %d from data that were restored, after %d", lease.Fence(), last)
			}
			must(t, "Unlock", lease.Unlock(t.Context()))
		})
	}
}

// grants acquires a lock some times more, and returns the last token.
func grants(t *testing.T, l locker.Locker) (last uint64) {
	t.Helper()
	for range 10 {
		lease := lock(t, l, "k")
		last = lease.Fence()
		must(t, "Unlock", lease.Unlock(t.Context()))
	}
	return last
}

// A copy of the database, in the same server, takes no token back.
func TestTokensOfACopy(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	of := func(database string) string {
		return strings.Replace(s.URL("postgres"), "@/postgres?", "@/"+database+"?", 1)
	}
	admin := pool(t, s.URL("postgres"))
	run(t, admin, "CREATE DATABASE original")
	p := pool(t, of("original"))
	_, err := postgreslock.Migrate(t.Context(), p)
	must(t, "Migrate", err)
	l := postgreslock.New(p)
	t.Cleanup(func() { must(t, "Close", l.Close()) })
	must(t, "Unlock", lock(t, l, "k").Unlock(t.Context()))
	eventually(t, "nobody is connected, and the database is copied", func() bool {
		p.Reset()
		_, err := admin.Exec(t.Context(), "CREATE DATABASE copied TEMPLATE original")
		return err == nil
	})
	last := grants(t, l)
	lease := lock(t, client(t, of("copied")), "k")
	if lease.Fence() <= last {
		t.Errorf("got token %d from a copy of the database, after %d", lease.Fence(), last)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
}

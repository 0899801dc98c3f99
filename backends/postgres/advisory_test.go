package postgres_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/pgtest"
)

const (
	// holderEnv makes the test binary a process that holds the advisory lock k. Its value is the URL of the server. The
	// process ends when it has noticed that it has lost the lock, and has tried to release it.
	holderEnv = "LOCKER_TEST_HOLDER"
	// holderTTLEnv is the lease time of that process. Its lease is renewed.
	holderTTLEnv = "LOCKER_TEST_HOLDER_TTL"
)

func playHolder(url string) {
	c, err := config.Parse(url + "&advisory=true")
	if err != nil {
		panic(err)
	}
	l, err := c.Open(context.Background())
	if err != nil {
		panic(err)
	}
	ttl, err := time.ParseDuration(os.Getenv(holderTTLEnv))
	if err != nil {
		panic(err)
	}
	lease, err := l.Lock(context.Background(), "k", locker.TTL(ttl))
	if err != nil {
		panic(err)
	}
	<-lease.Done()
	_ = lease.Unlock(context.Background())
	os.Exit(0)
}

// advisory makes a Client of advisory locks with a pool of its own.
func advisory(t testing.TB, url string, opts ...postgres.Option) *locker.Client {
	t.Helper()
	c := postgres.NewAdvisory(pool(t, url), opts...)
	t.Cleanup(func() { must(t, "Close", c.Close()) })
	return c
}

// soon acquires a lock that is about to be free. Connections that were cut may fail it before.
func soon(t testing.TB, l locker.Locker, key, when string) (lease locker.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually(t, "Lock "+when, func() bool {
		var err error
		lease, err = l.Lock(ctx, key, locker.TTL(time.Hour), locker.NoRenewal())
		return err == nil
	})
	return lease
}

// lostSoon waits until a lease has ended as lost.
func lostSoon(t testing.TB, lease locker.Lease, when string) {
	t.Helper()
	select {
	case <-lease.Done():
		wantErr(t, "Err "+when, lease.Err(), locker.ErrLost)
	case <-time.After(time.Minute):
		t.Errorf("%s: the holder is not told of its loss", when)
	}
}

// A process that dies frees its lock at once, and one that is stopped, after the TTL. The process that was stopped
// takes nothing away from the next holder when it goes on.
func TestAdvisoryHolderProcess(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	l := advisory(t, s.URL("postgres"))
	spawn := func(ttl time.Duration) *child.Process {
		t.Helper()
		env := []string{holderEnv + "=" + s.URL("postgres"), holderTTLEnv + "=" + ttl.String()}
		holder, err := child.Spawn(os.Args[0], "", env, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(holder.Kill)
		eventually(t, "the process has the lock", func() bool {
			i, err := l.Inspect(t.Context(), "k")
			return err == nil && i.State == inspect.Held
		})
		return holder
	}
	holder := spawn(time.Hour)
	wantHeld(t, l, "k", "of a process that runs")
	holder.Kill()
	must(t, "Unlock", soon(t, l, "k", "of a process that was killed").Unlock(t.Context()))

	holder = spawn(2 * time.Second)
	i, err := l.Inspect(t.Context(), "k")
	must(t, "Inspect", err)
	holder.Freeze()
	lease := soon(t, l, "k", "of a process that is stopped")
	if lease.Fence() <= i.Fence {
		t.Errorf("got token %d after %d", lease.Fence(), i.Fence)
	}
	holder.Signal(syscall.SIGCONT)
	eventually(t, "the process that was stopped has noticed its loss", holder.Exited)
	must(t, "Verify", locker.Verify(t.Context(), lease))
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// A holder whose network is silent has its lock until the end of the TTL, and not longer, although its connection stays
// open.
func testAdvisoryPartition(t *testing.T, s *pgtest.Server) {
	relay := pgtest.NewRelay(t, s)
	holder, other := advisory(t, relay.URL("postgres")), advisory(t, s.URL("postgres"))
	const ttl = 3 * time.Second
	sent := time.Now()
	lease := lock(t, holder, "partition", locker.TTL(ttl))
	resume := relay.Hang()
	defer resume()
	next := soon(t, other, "partition", "of a holder whose network is silent")
	if took := time.Since(sent); took < ttl {
		t.Errorf("the lock of a holder whose network is silent: free after %v, before its TTL of %v", took, ttl)
	}
	if err := lease.Err(); !errors.Is(err, locker.ErrLost) {
		t.Errorf("Err of the lease: got %v, want ErrLost before another has the lock", err)
	}
	must(t, "Unlock", next.Unlock(t.Context()))
}

// The holder is told at once that its session was ended, and of what kind that is: by an operator, by a network that
// cuts its connection, and by the end of the server. Other sessions of the Client go on.
func TestAdvisoryLossIsTold(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	relay := pgtest.NewRelay(t, s)
	l := advisory(t, relay.URL("postgres"), postgres.Prefix(""))
	p := pool(t, s.URL("postgres"))
	hold := func(key string) locker.Lease {
		return lock(t, l, key, locker.TTL(time.Hour), locker.NoRenewal())
	}
	kept, lease := hold("kept"), hold("k")
	run(t, p, terminateSQL, []byte("k"))
	lostSoon(t, lease, "after pg_terminate_backend")
	wantErr(t, "Unlock", lease.Unlock(t.Context()), locker.ErrNotHeld)
	must(t, "Verify of another lock", locker.Verify(t.Context(), kept))

	lease = hold("k")
	relay.Cut()
	lostSoon(t, lease, "after its connection was cut")
	lostSoon(t, kept, "after its connection was cut")
	must(t, "Unlock", soon(t, l, "k", "after its connection was cut").Unlock(t.Context()))

	lease = hold("k")
	before := lease.Fence()
	s.Restart()
	lostSoon(t, lease, "after a restart of the server")
	eventually(t, "the server grants again", func() bool {
		var err error
		lease, err = l.TryLock(t.Context(), "k")
		return err == nil
	})
	if lease.Fence() <= before {
		t.Errorf("after a restart: got token %d after %d", lease.Fence(), before)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// A request that arrives once more, and whose session ends then, has got nothing.
func testAdvisoryRegrantFails(t *testing.T, s *pgtest.Server) {
	p := pool(t, s.URL("postgres"))
	schema := postgres.Schema("regrant")
	_, err := postgres.Migrate(t.Context(), p, schema)
	must(t, "Migrate", err)
	run(t, p, "CREATE OR REPLACE FUNCTION regrant.advisory_extend(a_name bytea, a_token text, a_ttl bigint) RETURNS void "+
		"LANGUAGE sql AS 'SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)'")
	b := postgres.NewAdvisoryBackend(pool(t, s.URL("postgres")), schema)
	defer func() { must(t, "Close", b.Close()) }()
	req := locker.Request{Key: "k", Token: locker.NewToken(), TTL: time.Hour}
	_, err = b.Acquire(t.Context(), req)
	must(t, "Acquire", err)
	g, err := b.Acquire(t.Context(), req)
	wantErr(t, "Acquire whose session ends", err, locker.ErrUnavailable)
	if errors.Is(err, locker.ErrNotHeld) || g != (locker.Grant{}) {
		t.Errorf("Acquire whose session ends: got %+v and %v, want no grant, and no answer of Extend", g, err)
	}
}

// Closing a Client does not release what it holds, because the code that the locks protect may still run.
func testAdvisoryClose(t *testing.T, s *pgtest.Server) {
	l, other := postgres.NewAdvisory(pool(t, s.URL("postgres"))), advisory(t, s.URL("postgres"))
	const ttl = 3 * time.Second
	sent := time.Now()
	lock(t, l, "closed", locker.TTL(ttl))
	must(t, "Close", l.Close())
	next := soon(t, other, "closed", "of a Client that was closed")
	if took := time.Since(sent); took < ttl {
		t.Errorf("the lock of a Client that was closed: free after %v, before its TTL of %v", took, ttl)
	}
	must(t, "Unlock", next.Unlock(t.Context()))
}

// After a step of the server's clock forward a lock goes on, or its holder is told that it does not.
func TestAdvisoryClockStep(t *testing.T) {
	t.Parallel()
	s, clock := pgtest.StartWithClock(t)
	migrate(t, s)
	l, p := advisory(t, s.URL("postgres")), pool(t, s.URL("postgres"))
	lease := lock(t, l, "k", locker.TTL(time.Hour), locker.NoRenewal())
	before := texts(t, p, "SELECT clock_timestamp()::text")[0]
	must(t, "the step", clock.Set(2*time.Hour, 0))
	eventually(t, "the clock has moved", func() bool {
		const moved = "SELECT 'yes' WHERE clock_timestamp() - $1::text::timestamptz > interval '90 minutes'"
		return len(texts(t, p, moved, before)) > 0
	})
	if locker.Verify(t.Context(), lease) != nil || lease.Extend(t.Context()) != nil {
		lostSoon(t, lease, "a step of the clock")
		return
	}
	wantHeld(t, l, "k", "after a step of the clock")
	must(t, "Unlock", lease.Unlock(t.Context()))
}

package postgreslock_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/short"
)

// The primary dies under load, while callers keep locks. A synchronous standby that takes over knows these locks: no
// two callers have a lock at the same time. A standby that lacks the latest locks grants them again, with greater
// tokens, and the judge sees it. In both cases everybody goes on, and nothing is left behind.
func TestFailover(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){
		"synchronous": testSynchronousFailovers,
		"lagging":     func(t *testing.T) { testFailover(t, false) },
		"tokens":      testTokensAfterFailover,
		"silent":      testSilentStandby,
	}
	for _, kind := range short.Part(t, 0, slices.Sorted(maps.Keys(tests))) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			tests[kind](t)
		})
	}
}

// failoversEnv is how many primaries die before TestFailover/synchronous ends. Without it, one does.
const failoversEnv = "LOCKER_POSTGRES_FAILOVERS"

// testSynchronousFailovers tells how long the latest locks and waiters stayed when everybody had left.
func testSynchronousFailovers(t *testing.T) {
	all, _ := strconv.Atoi(os.Getenv(failoversEnv))
	var mu sync.Mutex
	var stayed []time.Duration
	t.Cleanup(func() {
		if slices.Sort(stayed); len(stayed) > 0 {
			t.Logf("nothing was left after %d failovers of %d; the locks and waiters were gone after %v, median, and %v at most",
				len(stayed), max(all, 1), stayed[len(stayed)/2], stayed[len(stayed)-1])
		}
	})
	for n := range max(all, 1) {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			took := testFailover(t, true)
			mu.Lock()
			defer mu.Unlock()
			stayed = append(stayed, took)
		})
	}
}

// set changes a setting of a server.
func set(t *testing.T, s *pgtest.Server, setting, value string) {
	t.Helper()
	p := pool(t, s.URL("postgres"))
	run(t, p, "ALTER SYSTEM SET "+setting+" = '"+value+"'")
	run(t, p, "SELECT pg_reload_conf()")
}

// testFailover returns how long locks and waiters stayed when everybody had left.
func testFailover(t *testing.T, synchronous bool) (stayed time.Duration) {
	primary := migrated(t, "wal_level=replica")
	standby := pgtest.Standby(t, primary)
	p := pool(t, primary.URL("postgres"))
	streaming := func() string { return strings.Join(texts(t, p, "SELECT sync_state FROM pg_stat_replication"), " ") }
	if synchronous {
		waitsFor(t, primary, p)
	}
	url := pgtest.URLs("postgres", primary, standby) + "&target_session_attrs=read-write"
	c := gather(t, url)
	if !synchronous {
		set(t, standby, "primary_conninfo", "")
		eventually(t, "the standby follows nobody", func() bool { return streaming() == "" })
		c.more(30)
	}
	c.keep(url)
	c.freeze()
	if synchronous { // the standby receives nothing more, and so nothing more is granted
		stopSending(t, p)
		c.seats.Store(2)
		<-time.After(500 * time.Millisecond)
	}
	primary.Kill()
	c.seats.Store(0)
	standby.Promote()
	c.more(60)
	if !synchronous {
		c.overtaken()
	}
	double, backwards := c.disperse()
	switch {
	case synchronous && len(double) > 0:
		t.Errorf("behind a synchronous standby, two callers had a lock at the same time: %v", double)
	case !synchronous && len(double) == 0:
		t.Error("behind a lagging standby: the judge has not seen that two callers had a lock at the same time")
	}
	if len(backwards) > 0 {
		t.Errorf("tokens are not greater than earlier ones of their keys: %v", backwards)
	}
	return c.nothingLeft(standby.URL("postgres"))
}

// waitsFor makes the standby of a primary, whose pool is p, a synchronous one.
func waitsFor(t *testing.T, primary *pgtest.Server, p *pgxpool.Pool) {
	t.Helper()
	set(t, primary, "synchronous_standby_names", "standby")
	eventually(t, "the standby is synchronous", func() bool {
		return slices.Equal(texts(t, p, "SELECT sync_state FROM pg_stat_replication"), []string{"sync"})
	})
}

// stopSending stops the process of the server that sends to the standby, and returns what lets it go on.
func stopSending(t *testing.T, p *pgxpool.Pool) (resume func()) {
	t.Helper()
	sender, err := strconv.Atoi(texts(t, p, "SELECT pid::text FROM pg_stat_replication")[0])
	must(t, "the process that sends to the standby", err)
	must(t, "SIGSTOP", syscall.Kill(sender, syscall.SIGSTOP))
	return func() { must(t, "SIGCONT", syscall.Kill(sender, syscall.SIGCONT)) }
}

// While a synchronous standby receives nothing, nothing is granted or extended.
func testSilentStandby(t *testing.T) {
	primary := migrated(t, "wal_level=replica")
	pgtest.Standby(t, primary)
	p := pool(t, primary.URL("postgres"))
	waitsFor(t, primary, p)
	l := client(t, primary.URL("postgres"))
	held := lock(t, l, "held", locker.TTL(time.Hour), locker.NoRenewal())
	resume := stopSending(t, p)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := l.TryLock(ctx, "k")
	wantErr(t, "TryLock", err, locker.ErrUnavailable)
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	wantErr(t, "Extend", held.Extend(ctx, locker.TTL(2*time.Hour)), locker.ErrUnavailable)
	resume()
	eventually(t, "locks are granted again", func() bool {
		lease, err := l.TryLock(t.Context(), "k")
		return err == nil && lease.Unlock(t.Context()) == nil
	})
}

// A standby that was promoted issues greater tokens, also if it lacks the latest ones.
func testTokensAfterFailover(t *testing.T) {
	primary := migrated(t, "wal_level=replica")
	must(t, "Unlock", lock(t, client(t, primary.URL("postgres")), "k").Unlock(t.Context()))
	standby := pgtest.Standby(t, primary)
	p := pool(t, standby.URL("postgres"))
	set(t, standby, "primary_conninfo", "")
	eventually(t, "the standby follows nobody", func() bool {
		return len(texts(t, p, "SELECT status FROM pg_stat_wal_receiver")) == 0
	})
	before := client(t, primary.URL("postgres"))
	var last uint64
	for range 100 {
		lease := lock(t, before, "k")
		last = lease.Fence()
		must(t, "Unlock", lease.Unlock(t.Context()))
	}
	_, err := client(t, standby.URL("postgres")).TryLock(t.Context(), "k")
	wantErr(t, "TryLock on a standby", err, locker.ErrUnavailable)
	primary.Kill()
	standby.Promote()
	after := client(t, standby.URL("postgres"))
	var lease locker.Lease
	eventually(t, "the promoted standby grants", func() bool {
		lease, err = after.TryLock(t.Context(), "k")
		return err == nil
	})
	if lease.Fence() <= last {
		t.Errorf("got token %d from the promoted standby, after %d", lease.Fence(), last)
	}
	must(t, "Unlock", lease.Unlock(t.Context()))
}

// The address of the primary leads to another server, and no connection is closed. Clients leave the old one when it
// refuses their requests: because it is a standby, or because it was made read only. Locks and waiters go on.
func TestEndpointThatMoves(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"from a primary that is read only", "from a standby"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			primary := migrated(t, "wal_level=replica")
			standby := pgtest.Standby(t, primary)
			endpoint := pgtest.NewRelay(t, primary)
			clients := map[string]locker.Locker{
				"of a URL":           open(t, endpoint.URL("postgres")),
				"of a pool":          client(t, endpoint.URL("postgres")),
				"without statements": open(t, endpoint.URL("postgres")+"&default_query_exec_mode=exec"),
			}
			held := lock(t, clients["of a pool"], "held", locker.TTL(time.Hour), locker.NoRenewal())
			granted := waiting(t, clients["of a URL"], "held", nil)
			old, next := primary, standby
			if kind == "from a standby" {
				old, next = standby, primary
				endpoint.To(old.Socket())
				endpoint.Cut()
			}
			use := func(name string, c locker.Locker, connections int) error {
				var all sync.WaitGroup
				failures := make(chan error, connections)
				for i := range connections {
					all.Go(func() {
						lease, err := c.TryLock(t.Context(), name+strconv.Itoa(i))
						if err == nil {
							err = lease.Unlock(t.Context())
						}
						failures <- err
					})
				}
				all.Wait()
				close(failures)
				for err := range failures {
					if err != nil {
						return err
					}
				}
				return nil
			}
			for name, c := range clients { // they have several connections
				if old == primary { // Unlock waits for a second only
					eventually(t, "the client "+name+" uses the primary", func() bool { return use(name, c, 20) == nil })
					continue
				}
				wantErr(t, "TryLock on a standby, by the client "+name, use(name, c, 20), locker.ErrUnavailable)
			}
			if old == primary {
				p := pool(t, primary.URL("postgres"))
				eventually(t, "the standby has all locks", func() bool {
					const caughtUp = "SELECT 'yes' FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
					return len(texts(t, p, caughtUp)) == 1
				})
				set(t, primary, "default_transaction_read_only", "on")
				standby.Promote()
			}
			moved := time.Now()
			endpoint.To(next.Socket())
			for name, c := range clients {
				eventually(t, "the client "+name+" gets locks", func() bool { return use(name, c, 1) == nil })
				t.Logf("the client %s got locks after %v", name, time.Since(moved).Round(time.Millisecond))
			}
			eventually(t, "the lock can be extended", func() bool {
				return held.Extend(t.Context(), locker.TTL(2*time.Hour)) == nil
			})
			must(t, "Unlock", held.Unlock(t.Context()))
			must(t, "Unlock by the waiter", (<-granted).Unlock(t.Context()))
			eventually(t, "waiters are notified again", func() bool {
				var hints atomic.Int64
				held := lock(t, clients["of a pool"], "told")
				granted := waiting(t, clients["of a URL"], "told", &hints)
				must(t, "Unlock", held.Unlock(t.Context()))
				must(t, "Unlock by the waiter", (<-granted).Unlock(t.Context()))
				return hints.Load() > 0
			})
		})
	}
}

//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
	"github.com/golocker/locker/single"
)

// TestUserOfTheDocumentation does everything that locks and the command can do, with each driver, over TLS with client
// certificates, as the user of docs/redis.md. The user has exactly the rights that the page lists. The server must
// refuse nothing, and none of the rights may be superfluous.
func TestUserOfTheDocumentation(t *testing.T) {
	t.Parallel()
	for _, driver := range short.Part(t, 1, drivers.Names()) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			secured := newSecured(t, driver)
			one, nodes := secured.start(t), []*redistest.Server{secured.start(t), secured.start(t), secured.start(t)}
			every := append([]*redistest.Server{one}, nodes...)
			var commands []string
			for _, s := range every {
				commands = s.DocumentedUser(t)
			}
			useLocks(t, secured.url("rediss", one), "k")
			useTick(t, secured.url("rediss", one), one)
			useCommand(t, secured.url("rediss", one))
			useLocks(t, secured.url("redlocks", nodes...)+"&budget=20s", "k")
			useTick(t, secured.url("redlocks", nodes...)+"&budget=20s", nodes...)
			useCommand(t, secured.url("redlocks", nodes...)+"&budget=20s")
			for _, s := range every {
				assert.Empty(t, s.Cmd(t, "ACL", "LOG"), "refused")
			}
			assert.Empty(t, unused(t, every, commands), "rights that nothing needs")

			settings := "+config|get"
			if _, err := one.Do("ACL", "SETUSER", "other", settings); err != nil {
				settings = "+config" // before Redis 7
			}
			for _, s := range every {
				s.DocumentedUser(t, "+info", "+scan", "+wait", "+select", settings)
			}
			redistest.StartReplica(t, one)
			require.EqualValues(t, 1, one.Cmd(t, "WAIT", 1, 20000))
			useLocks(t, secured.url("rediss", one)+"&db=1", "k")
			useLocks(t, secured.url("rediss", one)+"&replicas=1&replicas_timeout=10s", "k")
			for _, url := range []string{secured.url("rediss", one), secured.url("redlocks", nodes...)} {
				code, _, stderr := call([]string{"LOCKER_URL=" + url}, "ls")
				assert.Zero(t, code, stderr)
			}
			guarded := "&guard=30s&ttl=10s&prefix=lock:guarded:"
			for _, url := range []string{
				secured.url("rediss", one) + guarded, secured.url("redlocks", nodes...) + "&budget=20s" + guarded,
			} {
				code, _, stderr := call([]string{"LOCKER_URL=" + url}, "bootstrap", "--yes")
				assert.Zero(t, code, stderr)
				useLocks(t, url, "k")
				_, out, stderr := call([]string{"LOCKER_URL=" + url}, "doctor", "--json")
				for _, f := range decode[doctor.Report](t, out).Findings {
					if slices.Contains([]string{"rights", "scripts", "messages", "guard", "settings", "info"}, f.Check) {
						assert.Equal(t, doctor.OK, f.Level, f)
					}
				}
				assert.Empty(t, stderr)
			}
			for _, s := range every {
				assert.Empty(t, s.Cmd(t, "ACL", "LOG"), "refused")
			}
		})
	}
}

// secured starts servers that one client certificate and one password open.
type secured struct {
	*redistest.Authority
	driver, query string
	dir           string // of the files, which have the names of the parameters
}

func newSecured(t *testing.T, driver string) *secured {
	t.Helper()
	s := &secured{Authority: redistest.NewAuthority(t), driver: driver, dir: t.TempDir()}
	cert, key := s.Issue(t, time.Hour)
	var query []string
	for name, content := range map[string][]byte{
		"password_file": []byte("password\n"), "tls_ca_file": s.PEM(), "tls_cert_file": cert, "tls_key_file": key,
	} {
		require.NoError(t, os.WriteFile(s.file(name), content, 0o600))
		query = append(query, name+"="+s.file(name))
	}
	s.query = strings.Join(query, "&")
	return s
}

func (s *secured) file(name string) string { return filepath.Join(s.dir, name) }

func (s *secured) start(t *testing.T) *redistest.Server {
	t.Helper()
	return s.Start(t, append([]string{"--tls-auth-clients", "yes"}, durable...)...)
}

func (s *secured) url(scheme string, servers ...*redistest.Server) string {
	var addrs []string
	for _, server := range servers {
		addrs = append(addrs, server.Addr())
	}
	return scheme + "+" + s.driver + "://locker@" + strings.Join(addrs, ",") + "?" + s.query
}

// useLocks takes, extends, proves, waits for, hands over and releases locks.
func useLocks(t *testing.T, url, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var clients []*config.Opened
	for range 2 {
		l, err := config.Open(ctx, url)
		require.NoError(t, err)
		defer func() { assert.NoError(t, l.Close()) }()
		clients = append(clients, l)
	}
	holder, waiter := clients[0], clients[1]
	lease, err := holder.Lock(ctx, key)
	require.NoError(t, err)
	_, err = waiter.TryLock(ctx, key)
	require.ErrorIs(t, err, locker.ErrHeld)
	require.NoError(t, lease.Extend(ctx))
	require.NoError(t, locker.Verify(ctx, lease))
	waits := make(chan struct{})
	var first sync.Once
	next := make(chan error, 1)
	go func() {
		traced := lockertrace.With(ctx, &lockertrace.Trace{
			Waiting: func(lockertrace.Waiting) { first.Do(func() { close(waits) }) },
		})
		lease, err := waiter.Lock(traced, key)
		if err == nil {
			err = steady.Release(lease)
		}
		next <- err
	}()
	select {
	case <-waits:
	case err := <-next:
		require.Fail(t, "it does not wait", "%v", err)
	}
	eventually(t, "the waiter is in the queue", func() bool {
		inspector, _ := locker.As[inspect.Inspector](holder)
		i, err := inspector.Inspect(ctx, key)
		return assert.NoError(t, err) && i.Waiting > 0
	})
	some, err := locker.TryLockMany(ctx, holder, locker.Many{Keys: []string{key, key + "a", key + "b"}, N: 2})
	if !errors.Is(err, errors.ErrUnsupported) { // as on a Redlock
		require.NoError(t, err)
	}
	for _, lease := range some {
		if lease != nil {
			steady.Unlock(t, lease)
		}
	}
	steady.Unlock(t, lease)
	require.NoError(t, <-next)

	var many sync.WaitGroup // whose commands are joined
	for i := range 100 {
		many.Go(func() {
			if lease, err := holder.Lock(ctx, fmt.Sprint("many", i)); assert.NoError(t, err) {
				steady.Unlock(t, lease)
			}
		})
	}
	many.Wait()
	all, err := locker.LockAll(ctx, holder, []string{"{all}a", "{all}b"})
	require.NoError(t, err)
	steady.Unlock(t, all)
	usePlaces(t, ctx, holder, waiter, key)
}

// usePlaces takes permits, shared and exclusive locks, also while others wait for them, and a tick.
func usePlaces(t *testing.T, ctx context.Context, holder, waiter locker.Locker, key string) {
	t.Helper()
	pool, readers := semaphore.New(holder, 3), rwlock.New(waiter).Shared()
	for what, u := range map[string]struct {
		holds, waits, meets locker.Locker
	}{
		"permits":       {pool, semaphore.New(waiter, 3).Weight(3), pool},
		"a shared lock": {rwlock.New(holder).Shared(), rwlock.New(holder).Exclusive(), readers},
	} {
		lease, err := u.holds.Lock(ctx, key)
		require.NoError(t, err, what)
		require.NoError(t, lease.Extend(ctx), what)
		next := make(chan error, 1)
		go func() {
			lease, err := u.waits.Lock(ctx, key)
			if err == nil {
				err = steady.Release(lease)
			}
			next <- err
		}()
		eventually(t, what+": somebody waits", func() bool {
			met, err := u.meets.TryLock(ctx, key)
			if err == nil {
				steady.Unlock(t, met)
			}
			return errors.Is(err, locker.ErrHeld)
		})
		steady.Unlock(t, lease)
		require.NoError(t, <-next, what)
	}
}

// useTick runs a job once although two programs want to, and takes a shared lock beside what an attempt whose outcome
// was unknown has left.
func useTick(t *testing.T, url string, servers ...*redistest.Server) {
	t.Helper()
	tick := time.Now().Truncate(time.Millisecond)
	for range 2 {
		l, err := config.Open(t.Context(), url)
		require.NoError(t, err)
		defer func() { assert.NoError(t, l.Close()) }()
		_, err = once.Do(t.Context(), l, "job", tick, func(context.Context) error { return nil })
		require.NoError(t, err)
		both := rwlock.New(l)
		for _, s := range servers {
			for _, lock := range both.Locks("undone") {
				s.Cmd(t, "HSET", script.KeysOf(single.DefaultPrefix, lock).Wait(), "!late", "d:9999999999999")
			}
		}
		read, err := both.Shared().TryLock(t.Context(), "undone")
		require.NoError(t, err)
		steady.Unlock(t, read)
	}
}

// useCommand inspects a lock, watches it, releases it by force, and raises the tokens.
func useCommand(t *testing.T, url string) {
	t.Helper()
	env := []string{"LOCKER_URL=" + url}
	held := heldBy(t, url, "forced")
	code, out, stderr := call(env, "inspect", "forced", "--json")
	assert.Zero(t, code, stderr)
	assert.Contains(t, out, `"held"`)
	p := run(t, url, "watch", "forced", "--json", "--interval", "100ms")
	eventually(t, "the holder is shown", func() bool { return strings.Contains(p.out.String(), `"held"`) })
	code, _, stderr = call(env, "release", "forced", "--yes")
	assert.Zero(t, code, stderr)
	eventually(t, "the lock is free", func() bool { return strings.Contains(p.out.String(), `"free"`) })
	assert.Error(t, held.Extend(t.Context()))
	code, _, stderr = call(env, "tokens", "raise")
	assert.Zero(t, code, stderr)
}

// rare are the commands that are needed only in situations that the test does not wait for: connections that were idle
// for seconds, a waiter that renews its place, a waiter that leaves, and nodes of a Redlock whose counters differ.
var rare = []string{"ping", "zscore", "unsubscribe", "setrange"}

// unused returns the commands that no client and no script has called on any of the servers.
func unused(t *testing.T, servers []*redistest.Server, commands []string) []string {
	t.Helper()
	var stats strings.Builder
	for _, s := range servers {
		fmt.Fprint(&stats, s.Cmd(t, "INFO", "commandstats"))
	}
	return slices.DeleteFunc(commands, func(name string) bool {
		return strings.Contains(stats.String(), "cmdstat_"+name+":calls=") || slices.Contains(rare, name)
	})
}

//go:build unix

package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/placename"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// What is held is listed as what it is, whatever its kind, and found by the key that programs know.
func TestLsShowsWhoHasWhat(t *testing.T) {
	t.Parallel()
	_, one := server(t)
	for name, store := range map[string]struct {
		url, readers, upgradeable string
		kind                      string // of a reader
	}{
		"redis": {one, "2 readers", "upgradeable reader", "reader"},
		"files": {"file:" + t.TempDir(), "3 slots", "first waiter", "slot"}, // which are locks
	} {
		t.Run(name, func(t *testing.T) {
			url := store.url
			env := []string{"LOCKER_URL=" + url}
			code, out, stderr := call(env, "ls")
			assert.Zero(t, code, stderr)
			assert.Empty(t, out)
			assert.Contains(t, stderr, "no lock is held")

			l, err := config.Open(t.Context(), url)
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			take := func(l locker.Locker, key string) {
				_, err := l.Lock(t.Context(), key, locker.TTL(time.Minute), locker.Label("web-7:4211"))
				require.NoError(t, err)
			}
			take(l, "checkout:42")
			take(l, "a\nb \x1b[31m")
			take(l, "other")
			take(rwlock.New(l).Shared(), "checkout")
			take(rwlock.New(l).Shared(), "checkout")
			take(rwlock.New(l).Upgradeable(), "checkout")
			take(rwlock.New(l).Exclusive(), "catalogue")
			permitOfKey(t, url, "checkout", 3)

			code, out, stderr = call(env, "ls")
			assert.Zero(t, code, stderr)
			assert.Regexp(t, `^key +kind +state +holder +held for +free in +waiting\n`, out)
			assert.Regexp(t, `(?m)^checkout:42 +lock +held +web-7:4211 +\S+ +(\d\d\.\ds|1m0s) +0$`, out)
			assert.Regexp(t, `(?m)^"a\\nb \\x1b\[31m" +lock `, out)
			assert.Regexp(t, `(?m)^catalogue +writer +held `, out)
			assert.Regexp(t, `(?m)^checkout +`+store.readers+` +held `, out)
			assert.Regexp(t, `(?m)^checkout +`+store.upgradeable+` +held `, out)
			assert.Regexp(t, `(?m)^checkout +permit \d +held `, out)
			assert.Equal(t, 8, strings.Count(out, "\n"), out)
			code, out, _ = call(env, "ls", "checkout")
			assert.Zero(t, code)
			assert.Equal(t, 5, strings.Count(out, "\n"), out)

			code, out, _ = call(env, "ls", "--json", "checkout")
			assert.Zero(t, code)
			kinds := map[string]listedJSON{}
			for line := range strings.Lines(out) {
				l := decode[listedJSON](t, line)
				kinds[l.Kind] = l
			}
			assert.Equal(t, "checkout:42", kinds["lock"].Key)
			assert.Equal(t, "held", kinds["lock"].State)
			assert.Equal(t, "checkout", kinds["permit"].Of)
			assert.Contains(t, kinds[store.kind].Key, "{checkout}#rw")
		})
	}
}

// How many of the permits are taken, and how many wait, is shown on each store, whether they are a group or locks.
func TestInspectSaysHowManyPermitsAreTaken(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (url string){
		"redis": func(t *testing.T) string { _, url := server(t); return url },
		"redlock": func(t *testing.T) string {
			return "redlock://" + redistest.Start(t).Addr() + "," + redistest.Start(t).Addr() + "," + redistest.Start(t).Addr()
		},
		"files": func(t *testing.T) string { return "file:" + t.TempDir() },
		"nats":  func(t *testing.T) string { return natstest.Start(t).URL() },
		"postgres": func(t *testing.T) string {
			url := pgtest.Start(t).URL("postgres")
			code, _, stderr := call([]string{"LOCKER_URL=" + url}, "migrate")
			require.Zero(t, code, stderr)
			return url
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			shown := func(key string, permits string) string {
				_, out, _ := callAgain([]string{"LOCKER_URL=" + url}, "inspect", key, "--permits", permits)
				return out
			}
			l, err := config.Open(t.Context(), url)
			require.NoError(t, err)
			_, err = semaphore.New(l, 5).Weight(3).TryLock(t.Context(), "some", locker.TTL(time.Minute))
			require.NoError(t, err)
			assert.Contains(t, shown("some", "5"), `"some": 3 of 5 permits are taken, 0 wait`)
			_, err = semaphore.New(l, 2).Weight(2).TryLock(t.Context(), "all", locker.TTL(time.Minute))
			require.NoError(t, err)
			ctx, leave := context.WithCancel(t.Context())
			over := make(chan struct{})
			go func() {
				defer close(over)
				_, _ = semaphore.New(l, 2).Lock(ctx, "all")
			}()
			eventually(t, "one waits", func() bool {
				return strings.Contains(shown("all", "2"), `"all": 2 of 2 permits are taken, 1 wait`)
			})
			leave()
			<-over
			require.NoError(t, l.Close())
		})
	}
}

// Where each permit is a lock, the first waiter holds the gate and waits for each permit, and is counted once.
func TestWaitersForPermitsAreCountedOnce(t *testing.T) {
	t.Parallel()
	type locks = map[string]inspect.Inspection
	held := func(waiting int) inspect.Inspection { return inspect.Inspection{State: inspect.Held, Waiting: waiting} }
	free := func(waiting int) inspect.Inspection { return inspect.Inspection{State: inspect.Free, Waiting: waiting} }
	group := held(2)
	group.Holders = []inspect.Inspection{{Permits: []int{0, 2}}, {Permits: []int{1}}}
	for name, tt := range map[string]struct {
		locks locks
		want  used
	}{
		"locks, one waits":             {locks{"0": held(1), "1": held(1), "gate": held(0)}, used{taken: 2, waiting: 1}},
		"locks, one waits at the gate": {locks{"0": held(0), "1": held(0), "gate": held(0)}, used{taken: 2, waiting: 1}},
		"locks, three wait":            {locks{"0": held(1), "1": free(1), "gate": held(2)}, used{taken: 1, waiting: 3}},
		"locks, nobody waits":          {locks{"0": held(0), "1": free(0), "gate": free(0)}, used{taken: 1}},
		"a group":                      {locks{"permits": group}, used{taken: 3, waiting: 2}},
		"a group without holders":      {locks{"permits": free(1)}, used{waiting: 1}},
	} {
		var u used
		for what, i := range tt.locks {
			u.add(placename.Of("k", what), i, nil)
		}
		assert.Equal(t, tt.want, u, name)
	}
}

// A probe learns from the exit code whether there is a lock that is too old, or that others wait for.
func TestLsIsAProbe(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	env := []string{"LOCKER_URL=" + url}
	heldBy(t, url, "k")
	code, out, stderr := call(env, "ls", "--held-for", "10m")
	assert.Zero(t, code, stderr)
	assert.Empty(t, out+stderr)
	_, _, stderr = call(env, "ls", "kk")
	assert.Contains(t, stderr, `no lock is held whose key begins with "kk"`)
	code, _, stderr = call(env, "ls", "--waiting", "1m") // would never find anything
	assert.Equal(t, exit.Usage, code)
	assert.Contains(t, stderr, "use --held-for 1m")
	eventually(t, "it is old enough", func() bool {
		code, out, _ = call(env, "ls", "--held-for", "10ms")
		return code == exitFound && strings.Contains(out, "k")
	})
	code, out, _ = call(env, "ls", "--waiting")
	assert.Zero(t, code)
	assert.Empty(t, out)
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = l.Lock(ctx, "k")
	}()
	eventually(t, "somebody waits", func() bool {
		code, out, _ = call(env, "ls", "--waiting")
		return code == exitFound && strings.HasSuffix(out, "  1\n")
	})
	leave()
	<-over
	require.NoError(t, l.Close())

	code, out, stderr = call([]string{"LOCKER_URL=redis://127.0.0.1:1"}, "ls")
	assert.Equal(t, exit.Unavailable, code, stderr)
	assert.Empty(t, out)
}

// A list that nobody reads any more ends.
func TestLsEndsWithItsReader(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for n := range maxLines + 1 {
		_, err := l.Lock(t.Context(), strconv.Itoa(n), locker.TTL(time.Minute))
		require.NoError(t, err)
	}
	a := &app{
		stdin: strings.NewReader(""), stdout: closedPipe{}, stderr: closedPipe{}, environ: []string{"LOCKER_URL=" + url},
	}
	assert.NotZero(t, a.main(t.Context(), []string{"ls"}))
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestTableFitsTheTerminal(t *testing.T) {
	rows := [][]string{
		{"key", "kind", "state", "holder", "held for", "free in", "waiting"},
		{strings.Repeat("k", 60), "first waiter", "held", "web-7.eu-west-1:4211", "1h12m3s", "29.1s", "12"},
		{"käse", "lock", "kept", "-", "-", "3m0s", "0"},
	}
	for _, width := range []int{0, 80, 200} {
		for _, line := range aligned(rows, width) {
			if width > 0 {
				assert.LessOrEqual(t, length(line), width, line)
			}
			assert.Contains(t, line, "  ")
		}
	}
	assert.True(t, strings.HasSuffix(aligned(rows, 80)[1], "  12"), "the last columns are there")
	assert.Contains(t, aligned(rows, 0)[1], rows[1][0])
}

// priced is a Locker whose store bills a list.
type priced struct{ locker.Locker }

func (p priced) Unwrap() locker.Locker { return p.Locker }

func (priced) Capabilities() backend.Capabilities {
	return backend.Capabilities{ListPrice: "a cent each"}
}

// What costs money is said before, and not spent unless it is asked for.
func TestLsDoesNotSpendWhatItWasNotGiven(t *testing.T) {
	t.Parallel()
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	_, err := listing{}.lister(priced{l})
	require.ErrorContains(t, err, "a cent each")
	assert.Equal(t, exit.Usage, exit.Of(err).Code)
	_, err = listing{paid: true}.lister(priced{l})
	require.NoError(t, err)
	_, err = listing{}.lister(l)
	require.NoError(t, err)
}

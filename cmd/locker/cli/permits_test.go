//go:build unix

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// permitOfKey takes a permit of key, of which there are n, like a program.
func permitOfKey(t *testing.T, url, key string, n int) *semaphore.Permit {
	t.Helper()
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lease, err := semaphore.New(l, n).Lock(t.Context(), key, locker.TTL(time.Minute))
	require.NoError(t, err)
	p, ok := locker.LeaseAs[*semaphore.Permit](lease)
	require.True(t, ok)
	return p
}

// Watch shows the changes of a group of permits.
func TestWatchOfAGroup(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p := run(t, url, "watch", "export", "--permits", "5", "--json", "--interval", "100ms")
	shows := func(what string, owners ...string) {
		t.Helper()
		eventually(t, what, func() bool {
			lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
			if lines[0] == "" {
				return false
			}
			var seen []string
			last := decode[lockJSON](t, lines[len(lines)-1])
			for _, h := range last.Holders {
				seen = append(seen, fmt.Sprint(h.Permits, h.State))
			}
			return last.Key == "{export}#permits" && slices.Equal(seen, owners)
		})
	}
	shows("it is free")
	one := permitOfKey(t, url, "export", 5)
	shows("one has a permit", "[0]held")
	two := permitOfKey(t, url, "export", 5)
	shows("two have permits", "[0]held", "[1]held")
	steady.Unlock(t, one)
	shows("one has returned its permit", "[1]held")
	steady.Unlock(t, two)
	shows("both have")
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.exits(t, 0)
}

// Where each permit is a lock, watch shows the changes of each, and does not report an outage for each of them.
func TestWatchOfPermits(t *testing.T) {
	t.Parallel()
	servers, url := nodes(t, 3)
	p := run(t, url, "watch", "export", "--permits", "5", "--json", "--interval", "100ms")
	seen := func() (lines []string, last map[string]string) {
		last = map[string]string{}
		for in := bufio.NewScanner(strings.NewReader(p.out.String())); in.Scan(); {
			lock := decode[lockJSON](t, in.Text())
			last[lock.Key] = lock.State
			if !strings.HasSuffix(lock.Key, "#gate") { // which a caller takes if its first attempt was not answered
				lines = append(lines, lock.Key+" "+lock.State)
			}
		}
		return lines, last
	}
	var want []string
	changes := func(next ...string) {
		t.Helper()
		want = append(want, next...)
		eventually(t, strings.Join(want, ", "), func() bool {
			lines, _ := seen()
			return len(lines) >= len(want)
		})
		lines, _ := seen()
		require.Equal(t, want, lines)
	}
	var free []string
	locks := semaphore.New(nil, 5).Locks("export")
	for _, lock := range locks[:5] {
		free = append(free, lock+" free")
	}
	changes(free...)
	eventually(t, "it shows the gate, too", func() bool {
		_, last := seen()
		return len(last) == len(locks)
	})
	for range 2 {
		permit := permitOfKey(t, url, "export", 5)
		lock := fmt.Sprintf("{export}#%d", permit.Slot())
		changes(lock + " held")
		steady.Unlock(t, permit)
		changes(lock + " free")
	}
	out := func() bool {
		_, last := seen()
		return slices.Contains(slices.Collect(maps.Values(last)), "unknown")
	}
	for _, s := range servers {
		s.Kill()
	}
	eventually(t, "it reports the outage", out)
	for _, s := range servers {
		s.Restart()
	}
	eventually(t, "it reports the end of the outage", func() bool { return !out() })
	failed := map[string]bool{}
	lines, _ := seen()
	for _, line := range lines {
		if lock, unknown := strings.CutSuffix(line, " unknown"); unknown {
			failed[lock] = true
		}
	}
	// A server that ends in the middle of a round fails to show another lock than in the rounds after that.
	assert.LessOrEqual(t, len(failed), 2, lines)
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.exits(t, 0)
	run(t, url, "watch", "export", "--permits", "0").exits(t, exit.Usage)
}

// Release finds the permit of the owner that it is told, and takes no other.
func TestReleaseOfAPermit(t *testing.T) {
	t.Parallel()
	_, one := server(t)
	_, three := nodes(t, 3)
	for _, url := range []string{one, three} {
		env := []string{"LOCKER_URL=" + url}
		release := func(args ...string) (code int, stdout, stderr string) {
			return call(env, append([]string{"release", "export", "--permits", "3", "--yes"}, args...)...)
		}
		hangs, other := permitOfKey(t, url, "export", 3), permitOfKey(t, url, "export", 3)
		code, _, stderr := release()
		assert.Equal(t, exit.Usage, code)
		assert.Contains(t, stderr, "--permits needs --token")
		if url == one {
			code, _, stderr = call(env, "release", "{export}#permits", "--yes")
			assert.Equal(t, exit.Usage, code)
			assert.Contains(t, stderr, "2 owners")
			assert.Contains(t, stderr, "name one of them with --token")
		}
		code, _, stderr = release("--token", "not this one")
		assert.Equal(t, exit.Held, code)
		assert.Contains(t, stderr, `no permit of "export" has an owner with this token`)
		code, _, _ = call(env, "release", "export", "--permits", "3", "--token", hangs.Token()[:8])
		assert.Equal(t, exit.Usage, code, "nobody can be asked")

		code, out, stderr := release("--token", hangs.Token()[:8]+"…")
		assert.Zero(t, code, stderr)
		released := fmt.Sprintf(`released "{export}#%d", taken from `, hangs.Slot())
		if url == one {
			released = fmt.Sprintf(`released %d of "{export}#permits", taken from `, hangs.Slot())
		}
		assert.Contains(t, out, released)
		eventually(t, "its owner has lost it", func() bool { return errors.Is(hangs.Extend(t.Context()), locker.ErrLost) })
		require.NoError(t, other.Extend(t.Context()), "the permit was taken from another owner")
		code, _, _ = release("--token", hangs.Token())
		assert.Equal(t, exit.Held, code, "it was released already")
		steady.Unlock(t, other)
	}
	run(t, one, "release", "export", "--permits", "0", "--token", "abcd", "--yes").exits(t, exit.Usage)
}

// A key whose permits or readers are held is not said to be free.
func TestAKeyIsKnownWhateverItsKind(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	env := []string{"LOCKER_URL=" + url}
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	reads, err := rwlock.New(l).Shared().Lock(t.Context(), "config", locker.TTL(time.Minute))
	require.NoError(t, err)
	permit := permitOfKey(t, url, "export", 3)
	for key, lock := range map[string]string{"export": "{export}#", "config": "{config}#rw"} {
		code, out, stderr := call(env, "inspect", key)
		assert.Zero(t, code, stderr)
		assert.Contains(t, out, lock)
		assert.Contains(t, out, "held")
		assert.NotContains(t, out, "free\n")
		code, _, stderr = call(env, "release", key, "--yes")
		assert.Equal(t, exit.Held, code)
		assert.Contains(t, stderr, "have the key: nothing was released")
		p := run(t, url, "watch", key, "--json", "--interval", "100ms")
		eventually(t, "watch shows who has the key", func() bool {
			return strings.Contains(p.out.String(), lock) && strings.Contains(p.out.String(), `"state":"held"`)
		})
		require.NoError(t, p.Process.Signal(os.Interrupt))
		p.exits(t, 0)
	}
	code, out, stderr := call(env, "inspect", "config", "--exclusive")
	assert.Zero(t, code, stderr)
	assert.Contains(t, out, "{config}#rw")
	steady.Unlock(t, permit)
	steady.Unlock(t, reads)
	code, out, stderr = call(env, "inspect", "export")
	assert.Zero(t, code, stderr)
	assert.Contains(t, out, "free")
}

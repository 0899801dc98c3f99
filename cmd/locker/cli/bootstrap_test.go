//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// New servers rest, and each message says what to do, until bootstrap has said that they are new.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	s, one := server(t, durable...)
	ss, three := nodes(t, 3)
	for url, name := range map[string]string{one: s.Addr(), three: ss[2].Addr()} {
		env := []string{"LOCKER_URL=" + url + "?guard=1m&ttl=10s", "LOCKER_REDLOCK_BUDGET=20s"}
		locked := func(code int, want string, args ...string) {
			p := command(t, "", append(append([]string{"run", "--key", "k"}, args...), "--", "true")...)
			p.Env = append(p.Env, env...)
			p.begin(t).exits(t, code)
			assert.Contains(t, p.err.String(), want)
		}
		code, _, stderr := call(env, "run", "--key", "k", "--wait", "0", "--", "true")
		assert.Equal(t, exit.Unavailable, code)
		assert.Contains(t, stderr, "rests for another ")
		assert.True(t, strings.HasSuffix(stderr, ": wait; or, if the servers are new, run locker bootstrap\n"), stderr)

		code, stdout, _ := call(env, "doctor")
		assert.Equal(t, exitWarn, code)
		assert.Contains(t, stdout, "warn  guard         it rests for another ")
		assert.Contains(t, stdout, "run locker bootstrap")

		code, _, stderr = call(env, "bootstrap")
		assert.Equal(t, exit.Usage, code)
		assert.Contains(t, stderr, "use --yes if no program can hold a lock")

		code, _, stderr = call(env, "bootstrap", "--yes")
		assert.Zero(t, code)
		assert.Contains(t, stderr, name+" grants locks at once; after a restart it rests until locks of 1m0s have ended\n")
		locked(0, "")
		_, stdout, _ = call(env, "doctor")
		assert.Contains(t, stdout, "ok    guard         it does not rest")

		locked(exit.Config, "TTL 2m0s is above the 1m0s that the restart guard allows: guard is the longest TTL and "+
			"--min-hold of all locks", "--ttl", "2m")
		locked(exit.Config, "MinHold 2m0s is above the 1m0s that the restart guard allows: guard is the longest TTL and "+
			"--min-hold of all locks", "--min-hold", "2m")
		other := []string{"LOCKER_URL=" + url + "?guard=2m", "LOCKER_REDLOCK_BUDGET=20s"}
		code, _, stderr = call(other, "run", "--key", "k", "--", "true")
		assert.Equal(t, exit.Config, code)
		assert.Contains(t, stderr, "must be the same everywhere")
		code, stdout, _ = call(other, "doctor")
		assert.Equal(t, exitFail, code)
		assert.Contains(t, stdout, "give all clients with this prefix the same guard")
	}
}

func TestBootstrapRefuses(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for u, want := range map[string]string{
		url:       "no restart guard, so no server rests: to have one, give the longest TTL of all locks as guard=30s",
		"memory:": "locks in memory have no Redis server",
	} {
		code, _, stderr := call([]string{"LOCKER_URL=" + u}, "bootstrap", "--yes")
		assert.Equal(t, exit.Config, code)
		assert.Contains(t, stderr, want)
	}
	s.Kill()
	code, _, stderr := call([]string{"LOCKER_URL=" + url + "?guard=1m"}, "bootstrap", "--yes")
	assert.Equal(t, exit.Unavailable, code)
	assert.Contains(t, stderr, s.Addr())
	assert.Contains(t, stderr, "run it again when this is mended")
}

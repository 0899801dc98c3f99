//go:build unix

package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startChaos starts locker dev --chaos with a directory of its own for the servers' files.
func startChaos(t *testing.T, args ...string) *process {
	t.Helper()
	p := command(t, "", append([]string{"dev", "--chaos", "--nodes", "3"}, args...)...)
	p.Env = append(p.Env, "TMPDIR="+p.Dir)
	return p.begin(t)
}

// Without the guard people see two holders, and Ctrl-C ends everything with a summary.
func TestChaosShowsTwoHolders(t *testing.T) {
	t.Parallel()
	p := startChaos(t, "--for", "10m")
	eventually(t, "two holders", func() bool { return strings.Contains(p.out.String(), "TWO HOLDERS") })
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.exits(t, 0)
	assert.Regexp(t, `(?m)^without the guard, \d+s: \d+ restarts, \d+ locks, two holders (once|twice|\d+ times)$`,
		p.out.String())
	assert.Contains(t, p.err.String(), "try the same with --guard")
	filesGo(t, p.Dir)
}

// With the guard there are none. It ends by itself.
func TestChaosWithTheGuard(t *testing.T) {
	t.Parallel()
	p := startChaos(t, "--guard", "--for", "9s", "--json")
	p.exits(t, 0)
	got := decode[struct {
		Guard    bool
		Restarts int
		Locks    int
		Twice    int `json:"two_holders"`
	}](t, p.out.String())
	assert.True(t, got.Guard)
	assert.NotZero(t, got.Restarts)
	assert.NotZero(t, got.Locks)
	assert.Zero(t, got.Twice)
	filesGo(t, p.Dir)
}

func TestAfterRestart(t *testing.T) {
	for url, want := range map[string]string{
		"redlock://a,b,c":        "keep b:6379 away from clients for 12.2s after it has ended\n",
		"redlock://a,b,c?ttl=1m": "keep b:6379 away from clients for 1m3.2s after it has ended\n",
		"redlock://a,b,c?ttl=10s&guard=30s": "b:6379 needs no delay: with the restart guard of 30s it grants no lock " +
			"for 32.6s\n",
	} {
		code, stdout, stderr := call([]string{"LOCKER_URL=" + url}, "doctor", "--after-restart", "b:6379")
		assert.Zero(t, code, stderr)
		assert.Equal(t, want, stdout)
	}
	env := []string{"LOCKER_URL=redlock://a,b,c"}
	code, stdout, stderr := call(env, "doctor", "--after-restart", "b:6379", "--longest-ttl", "30s")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "for 32.6s after")
	assert.Contains(t, stderr, "ExecStartPre=+/bin/sleep 33\n    TimeoutStartSec=123\n")
	assert.Contains(t, stderr, "guard=30s in the URL")
	_, stdout, _ = call(env, "doctor", "--after-restart", "b:6379", "--json")
	assert.Contains(t, stdout, `"keep_out_ms": 12200`)
}

func TestWrongArgumentsOfChaosAndRestarts(t *testing.T) {
	env := []string{"LOCKER_URL=redlock://a,b,c"}
	for line, want := range map[string]string{
		"dev --guard":                                     "--guard and --for need --chaos",
		"dev --for 1m":                                    "--guard and --for need --chaos",
		"dev --chaos --embedded":                          "does not work with --embedded",
		"dev --chaos --for 1s":                            "--for 1s is not from 5s to 10m0s",
		"doctor --longest-ttl 1m":                         "--longest-ttl needs --after-restart",
		"doctor --after-restart d":                        `"d" is none of the configured servers: give one of a:6379, b`,
		"doctor --after-restart a:6379 --longest-ttl 1ms": "--longest-ttl 1ms is not from 10ms to 24h0m0s",
	} {
		code, _, stderr := call(env, strings.Fields(line)...)
		assert.Equal(t, exitUsage, code, line)
		assert.Contains(t, stderr, want, line)
	}
}

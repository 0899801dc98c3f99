//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

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

func TestWrongArgumentsOfAfterRestart(t *testing.T) {
	env := []string{"LOCKER_URL=redlock://a,b,c"}
	for line, want := range map[string]string{
		"doctor --longest-ttl 1m":                         "--longest-ttl needs --after-restart",
		"doctor --after-restart d":                        `"d" is none of the configured servers: give one of a:6379, b`,
		"doctor --after-restart a:6379 --longest-ttl 1ms": "--longest-ttl 1ms is not from 10ms to 24h0m0s",
	} {
		code, _, stderr := call(env, strings.Fields(line)...)
		assert.Equal(t, exit.Usage, code, line)
		assert.Contains(t, stderr, want, line)
	}
}

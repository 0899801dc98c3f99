//go:build unix

package cli

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/internal/testing/natstest"
)

// The commands for users and for operators, on NATS.
func TestNATS(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	url := s.URL() + "?ttl=9s&prefix=cli:&label=holder"
	lasting := s.URL() + "?ttl=10m&prefix=cli:&label=holder" // of locks that do not end by themselves within the test
	env := []string{"LOCKER_URL=" + url}

	holder := run(t, url, "run", "-k", "k", "--", "sh", "-c", `echo "$LOCKER_STORE" >store; sleep 60`)
	assert.Equal(t, "nats", holder.wrote(t, "store"))
	code, _, stderr := call(env, "run", "-k", "k", "--wait", "0", "--", "true")
	assert.Equal(t, exit.Held, code)
	assert.Contains(t, stderr, "holder")
	code, out, _ := call(env, "inspect", "k", "--json")
	assert.Equal(t, 0, code)
	seen := decode[lockJSON](t, out)
	assert.Equal(t, "held", seen.State)
	assert.NotZero(t, seen.Fence)
	code, out, stderr = call(env, "release", "k", "--yes")
	assert.Equal(t, 0, code, stderr)
	assert.Contains(t, out, `released "k", taken from holder`)
	holder.exits(t, exit.Lost)
	assert.Contains(t, holder.err.String(), "lock lost: gone") // a renewal has found that, before the TTL was over

	elect := func() *process { return run(t, lasting, "elect", "-k", "office", "--", "sh", "-c", office) }
	first := elect()
	one := first.terms(t, 1)[0]
	second := elect()
	second.says(t, `leads "office"`)
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	first.exits(t, 3)
	assert.Greater(t, second.terms(t, 1)[0], one)

	code, out, stderr = callAgain(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Contains(t, out, "fencing tokens grow")

	s.Kill()
	code, _, stderr = call(env, "inspect", "k")
	assert.Equal(t, exit.Unavailable, code)
	assert.Contains(t, stderr, "not connected to NATS")
}

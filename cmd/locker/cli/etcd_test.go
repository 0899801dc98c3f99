//go:build unix

package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// The commands for users and for operators, on etcd.
func TestEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t)
	// No lock ends by itself, and none is renewed, within the test.
	url := "etcd://" + s.Addr() + "?ttl=10m&prefix=cli/&label=holder"
	env := []string{"LOCKER_URL=" + url}

	holder := run(t, url, "run", "-k", "k", "--", "sh", "-c", `echo "$LOCKER_STORE" >store; sleep 60`)
	assert.Equal(t, "etcd", holder.wrote(t, "store"))
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

	code, out, stderr = callAgain(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Contains(t, out, "waiters are notified")
	assert.Contains(t, out, "etcd 3.")
	code, _, stderr = call(env, "conform")
	assert.Equal(t, exit.Config, code)
	assert.Contains(t, stderr, "locks in etcd have no Redis server")

	s.Kill()
	code, _, stderr = call(env, "inspect", "k")
	assert.Equal(t, exit.Unavailable, code)
	assert.Contains(t, stderr, "etcd: ")
	code, out, _ = call(env, "doctor")
	assert.Equal(t, exitFail, code)
	assert.Contains(t, out, "fail  reachable")
	assert.Regexp(t, "fail  member .*"+s.Addr()+": .*refused", out)
}

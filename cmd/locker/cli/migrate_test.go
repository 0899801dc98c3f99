//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// The commands with locks in PostgreSQL.
func TestPostgres(t *testing.T) {
	t.Parallel()
	env := []string{"LOCKER_URL=" + pgtest.Start(t, "fsync=on").URL("postgres")}
	code, _, stderr := call(env, "run", "--key", "k", "--", "true")
	assert.Equal(t, exit.Unavailable, code)
	assert.Contains(t, stderr, "run locker migrate")
	code, out, _ := call(env, "doctor")
	assert.Equal(t, exitFail, code)
	assert.Contains(t, out, "schema locker lacks the functions acquire, ")
	assert.Contains(t, out, "no lock can be taken")
	assert.Equal(t, 1, strings.Count(out, "are missing or old"), out)
	code, out, stderr = call(env, "migrate", "--print")
	assert.Equal(t, 0, code, stderr)
	assert.Contains(t, out, "CREATE FUNCTION \"locker\".acquire(")
	code, unconfigured, stderr := call(nil, "migrate", "--print")
	assert.Equal(t, 0, code, stderr)
	assert.Equal(t, out, unconfigured, "the schema has the default name in both")
	for _, says := range []string{"is ready for locks", "is up to date"} {
		code, _, stderr = call(env, "migrate")
		assert.Equal(t, 0, code, stderr)
		assert.Contains(t, stderr, says)
	}
	code, _, stderr = call([]string{"LOCKER_URL=memory:"}, "migrate")
	assert.Equal(t, exit.Config, code)
	assert.Contains(t, stderr, "locks in memory have no tables")

	url := strings.TrimPrefix(env[0], "LOCKER_URL=")
	heldBy(t, url, "k")
	code, _, stderr = call(env, "run", "--key", "k", "--wait", "0", "--", "true")
	assert.Equal(t, exit.Held, code, stderr)
	code, out, _ = call(env, "inspect", "k", "--json")
	assert.Equal(t, 0, code)
	assert.Equal(t, "held", decode[map[string]any](t, out)["state"])
	code, out, _ = call(env, "release", "k", "--yes")
	assert.Equal(t, 0, code, out)
	run(t, url, "run", "--key", "k", "--", "true").exits(t, 0)
	code, out, stderr = call(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Contains(t, out, "fencing tokens grow")
}

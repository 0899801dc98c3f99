//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	_ "github.com/golocker/locker/backends/dynamodblock"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/internal/testing/dynamotest"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/internal/testing/natstest"
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
	assert.Contains(t, out, "CREATE OR REPLACE FUNCTION \"locker\".acquire(")
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
	run(t, url, "run", "--key", "k", "--", "true").exits(t, 0)
	code, out, stderr = call(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Contains(t, out, "fencing tokens grow")
	raiseTokens(t, url)
}

// Without a configuration, the locks are in files of the user.
func TestNoConfiguration(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	start := func(args ...string) *process {
		p := command(t, "", args...)
		p.Env = append(p.Env, "HOME="+home)
		return p.begin(t)
	}
	holder := start("run", "-q", "-k", "k", "--", "sh", "-c", `echo "$LOCKER_STORE" >store; exec sleep 60`)
	assert.Equal(t, "file", holder.wrote(t, "store"))
	says := "locker: no configuration: the locks are those of this user on this machine, file://" + home +
		"/.local/state/locker: set LOCKER_URL"
	holder.says(t, says)
	second := start("run", "-k", "k", "--wait", "0", "--", "true")
	second.exits(t, exit.Held)
	assert.Equal(t, 1, strings.Count(second.err.String(), says), second.err.String())
	// The command gets variables, which are no configuration.
	start("run", "-k", "outer", "--", os.Args[0], "run", "-k", "inner", "--", "true").exits(t, 0)
	env := []string{"HOME=" + home}
	code, out, stderr := call(env, "inspect", "k", "--json")
	assert.Equal(t, 0, code, stderr)
	assert.Equal(t, "held", decode[lockJSON](t, out).State)
	code, out, stderr = call(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Equal(t, 1, strings.Count(stderr, "no configuration"), stderr)
	env = append(env, "XDG_STATE_HOME="+t.TempDir())
	code, out, stderr = call(env, "inspect", "k", "--json")
	assert.Equal(t, 0, code, stderr)
	assert.Equal(t, "free", decode[lockJSON](t, out).State)

	// Homes in which nothing can be made, as those of some services.
	aFile := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(aFile, nil, 0o600))
	for _, none := range []string{aFile, "/proc/none"} {
		for _, args := range [][]string{{"run", "-k", "k", "--", "true"}, {"inspect", "k"}, {"doctor"}, {"watch", "k"}} {
			code, _, stderr = call([]string{"HOME=" + none}, args...)
			assert.Equal(t, exit.Config, code, args)
			assert.Contains(t, stderr, "set LOCKER_URL, for example to", args)
			assert.NotContains(t, stderr, "again", args)
		}
	}
}

// The commands with locks in MySQL.
func TestMySQL(t *testing.T) {
	t.Parallel()
	url := mariadbtest.Start(t).URL(mariadbtest.Database)
	env := []string{"LOCKER_URL=" + url}
	code, out, stderr := call(env, "migrate", "--print")
	assert.Equal(t, 0, code, stderr)
	assert.Contains(t, out, "CREATE TABLE IF NOT EXISTS `locker_records`")
	for range 2 {
		code, _, stderr = call(env, "migrate")
		assert.Equal(t, 0, code, stderr)
		assert.Contains(t, stderr, "the table locker_records is ready for locks")
	}
	code, out, _ = call(env, "migrate", "--json")
	assert.Equal(t, 0, code)
	assert.JSONEq(t, `{"table": "locker_records"}`, out)
	holder := run(t, url, "run", "-k", "k", "--", "sh", "-c", `echo "$LOCKER_STORE" >store; exec sleep 60`)
	assert.Equal(t, "mysql", holder.wrote(t, "store"))
	code, _, stderr = call(env, "run", "-k", "k", "--wait", "0", "--", "true")
	assert.Equal(t, exit.Held, code, stderr)
	code, out, stderr = call(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Contains(t, out, "waiters look at intervals")
	tokensFollowTheClock(t, url)

	// The server tells its time, so a command that looks once knows when the lock of a dead holder ends, and takes it.
	dead := run(t, url, "run", "-k", "dead", "--ttl", "2s", "--", "sh", "-c", "echo $$ >up; sleep 60")
	pid := dead.pid(t, "up")
	require.NoError(t, dead.Process.Signal(syscall.SIGKILL))
	<-dead.done
	gone(t, pid)
	untilItRuns := func(args ...string) {
		t.Helper()
		for {
			next := run(t, url, append(args, "--wait", "0", "--", "true")...)
			<-next.done
			require.NotContains(t, next.err.String(), "watching")
			if next.ProcessState.ExitCode() == 0 {
				return
			}
			next.exits(t, exit.Held)
			require.Contains(t, next.err.String(), "held")
		}
	}
	untilItRuns("run", "-k", "dead")

	// So it may use --min-hold, too.
	for range 2 {
		untilItRuns("run", "-k", "nightly", "--min-hold", "500ms")
	}
}

// What commands do that look once, on a store that neither counts TTLs nor tells its time.
func TestLooksOnce(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	url := "dynamodb://locks?endpoint=" + s.URL()
	env := []string{"LOCKER_URL=" + url}

	// The holder has died: the next one gets the lock when it has watched it for the TTL.
	dead := run(t, url, "run", "-k", "dead", "--ttl", "2s", "--", "sh", "-c", "echo $$ >up; sleep 60")
	pid := dead.pid(t, "up")
	require.NoError(t, dead.Process.Signal(syscall.SIGKILL))
	<-dead.done
	gone(t, pid)
	code, out, stderr := call(env, "inspect", "dead")
	assert.Equal(t, 0, code, stderr)
	assert.Regexp(t, `state +held by \S+, first seen \S+ m?s ago; from a dead holder it can be taken in \S+ m?s\n`, out)
	code, out, _ = call(env, "inspect", "dead", "--json")
	assert.Equal(t, 0, code)
	assert.Positive(t, decode[lockJSON](t, out).SeenMS)
	next := run(t, url, "run", "-k", "dead", "--wait", "0", "--", "true")
	next.exits(t, 0)
	next.says(t, "watching whether its holder is alive")

	// The holder releases the lock meanwhile: it was alive, so the next one does not run beside it or after it.
	alive := run(t, url, "run", "-k", "alive", "--", "sh", "-c", "echo up >up; until [ -e go ]; do sleep 0.05; done")
	alive.wrote(t, "up")
	next = run(t, url, "run", "-k", "alive", "--wait", "0", "--", "true")
	next.says(t, "watching whether its holder is alive")
	require.NoError(t, os.WriteFile(filepath.Join(alive.Dir, "go"), nil, 0o600))
	next.exits(t, exit.Held)
	alive.exits(t, 0)

	// What is kept has no holder, and the next one has to watch for as long.
	run(t, url, "run", "-k", "kept", "--min-hold", "2s", "--", "true").exits(t, 0)
	code, out, stderr = call(env, "inspect", "kept")
	assert.Equal(t, 0, code, stderr)
	assert.Regexp(t, `free in +\S+ for those who watch it, first seen \S+ ago`, out)
	run(t, url, "run", "-k", "kept", "--wait", "0", "--", "true").exits(t, 0)
	for _, wait := range []string{"0", "1m"} {
		code, _, stderr = call(env, "run", "-k", "nightly", "--min-hold", "1h", "--wait", wait, "--", "true")
		assert.Equal(t, exit.Usage, code)
		assert.Contains(t, stderr, "use --tick for a job of cron")
	}
}

// Tokens of a bucket of NATS are not raised while there are locks. A new bucket begins past all of them.
func TestNATS(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t)
	url := s.URL() + "?ttl=9s&prefix=cli:&label=holder"
	env := []string{"LOCKER_URL=" + url}
	holder := run(t, url, "run", "-k", "k", "--", "sh", "-c", `echo "$LOCKER_STORE" >store; sleep 60`)
	assert.Equal(t, "nats", holder.wrote(t, "store"))
	code, out, stderr := callAgain(env, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	assert.Contains(t, out, "fencing tokens grow")
	code, _, stderr = call(env, "tokens", "raise")
	assert.Equal(t, exit.Config, code, stderr)
	assert.Contains(t, stderr, "use a new bucket")
	past := uint64(time.Now().UnixMicro())
	code, _, stderr = call([]string{"LOCKER_URL=" + url + "&bucket=next"}, "tokens", "raise")
	assert.Zero(t, code, stderr)
	assert.Greater(t, heldBy(t, url+"&bucket=next", "k").Fence(), past)
}

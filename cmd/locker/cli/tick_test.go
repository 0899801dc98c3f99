//go:build unix

package cli

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// theMinuteIsYoung waits until the tests of one tick fit into the minute.
func theMinuteIsYoung(t *testing.T) {
	t.Helper()
	eventually(t, "the minute is young", func() bool { return time.Now().Second() < 40 })
}

// Machines that start a command at the same tick run it once, whatever becomes of it.
func TestCommandRunsOncePerTick(t *testing.T) {
	t.Parallel()
	_, one := server(t)
	_, three := nodes(t, 3)
	for _, url := range []string{one, three} {
		perTick := func(key, script string) *process {
			return run(t, url, "run", "--key", key, "--tick", "1m", "--", "sh", "-c", script)
		}
		theMinuteIsYoung(t)
		begin := time.Now()
		first := perTick("report", `echo "$LOCKER_TICK" >tick; exit 3`)
		first.exits(t, 3)
		assert.Equal(t, begin.UTC().Format("2006-01-02T15:04:00Z"), first.wrote(t, "tick"))
		second := perTick("report", "echo >ran")
		second.exits(t, exit.Held)
		second.notWritten(t, "ran")
		assert.Contains(t, second.err.String(), `once "report": another call has claimed the tick: held by `)
		assert.Equal(t, 1, strings.Count(second.err.String(), "\n"), second.err.String())
		quiet := run(t, url, "run", "-q", "--key", "report", "--tick", "1m", "--", "true")
		quiet.exits(t, exit.Held)
		assert.Empty(t, quiet.err.String())

		killed := perTick("killed", "echo $$ >up; sleep 60")
		pid := killed.pid(t, "up")
		require.NoError(t, killed.Process.Signal(syscall.SIGKILL))
		<-killed.done
		gone(t, pid)
		perTick("killed", "true").exits(t, exit.Held)

		var all []*process
		for range 3 {
			all = append(all, perTick("together", "true"))
		}
		ran := 0
		for _, p := range all {
			<-p.done
			if p.ProcessState.ExitCode() == 0 {
				ran++
				continue
			}
			p.exits(t, exit.Held)
		}
		assert.Equal(t, 1, ran)
	}
}

// The server is down when the commands start. They wait for it, and one of them runs the tick.
func TestServerIsDownAtTheTick(t *testing.T) {
	t.Parallel()
	s, url := server(t, "--appendonly", "yes", "--appendfsync", "always")
	theMinuteIsYoung(t)
	s.Kill()
	var all []*process
	for range 3 {
		all = append(all, run(t, url, "run", "--key", "report", "--tick", "1m", "--", "true"))
	}
	for _, p := range all {
		p.says(t, "the tick cannot be claimed yet, trying again")
	}
	s.Restart()
	ran := 0
	for _, p := range all {
		if <-p.done; p.ProcessState.ExitCode() == 0 {
			ran++
		}
	}
	assert.Equal(t, 1, ran)
}

// A tick that is long ago is not run.
func TestTooLateForTheTick(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p := run(t, url, "run", "--key", "k", "--tick", "100000h", "--", "true")
	p.exits(t, exit.Held)
	assert.Contains(t, p.err.String(), "and the window is 1m0s: the times of the schedule have to be multiples of --tick")
}

// --max-hold limits the command of a tick, and a signal ends it.
func TestEndOfTheCommandOfATick(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p := run(t, url, "run", "--key", "long", "--tick", "1m", "--max-hold", "3s", "--", "sleep", "60")
	p.exits(t, exit.Lost)
	assert.Contains(t, p.err.String(), "--max-hold 3s is over")
	p = run(t, url, "run", "--key", "ended", "--tick", "1m", "--", "sh", "-c", "echo $$ >up; sleep 60")
	p.pid(t, "up")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.exits(t, exit.Signal+int(syscall.SIGTERM))
}

func TestFlagsThatExcludeTick(t *testing.T) {
	env := []string{"LOCKER_URL=redis://nowhere"}
	for _, flags := range [][]string{
		{"--tick", "1ms"}, {"--tick", "0"}, {"--tick", "1500ms"}, {"--tick", "1m", "--wait", "0"},
		{"--tick", "1m", "--ttl", "1m"}, {"--tick", "1m", "--min-hold", "1m"}, {"--tick", "1m", "--permits", "2"},
		{"--tick", "1m", "--shared"}, {"--tick", "1m", "--exclusive"}, {"--tick", "1m", "--key", "l"},
	} {
		code, _, stderr := call(env, append(append([]string{"run", "--key", "k"}, flags...), "--", "true")...)
		assert.Equal(t, exit.Usage, code, flags)
		assert.Contains(t, stderr, "--tick", flags)
	}
}

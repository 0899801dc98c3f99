//go:build unix

package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

// TestLostLockStopsTheCommand: somebody deletes the lock, or takes it over. The next renewal notices.
func TestLostLockStopsTheCommand(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	taken := func(key string) []any { return []any{"SET", "lock:" + key, "another", "PX", 60_000} }
	deleted := func(key string) []any { return []any{"DEL", "lock:" + key} }
	for name, tt := range map[string]struct {
		do     func(key string) []any
		args   []string
		script string
		out    string
	}{
		"deleted": {deleted, nil, `trap "echo told; exit 0" TERM; echo $$ >up; while :; do sleep 0.05; done`,
			"told\n"},
		"taken over": {taken, nil, `trap "echo told; exit 0" TERM; echo $$ >up; while :; do sleep 0.05; done`,
			"told\n"},
		"stubborn": {taken, nil, `trap "echo told" TERM; echo $$ >up; while :; do sleep 0.05; done`, "told\n"},
		"stopped": {deleted, nil, `trap "echo told; exit 0" TERM; echo $$ >up; kill -STOP $$; echo late; sleep 60`,
			"told\n"},
		"kill": {taken, []string{"--on-lost", "kill"},
			`trap "echo told" TERM; echo $$ >up; while :; do sleep 0.05; done`, ""},
		"notify": {taken, []string{"--on-lost", "notify"},
			`trap "echo told" TERM; echo $$ >up; cat <&$LOCKER_FD; echo end of file; exit 4`, "end of file\n"},
		"told by the file, too": {deleted, nil, `trap "" TERM; echo $$ >up; cat <&$LOCKER_FD; echo end of file; exit 0`,
			"end of file\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := strings.ReplaceAll(name, " ", "-")
			// who is told has to come to say so within the grace
			args := append([]string{"run", "-k", key, "--ttl", "12s", "--grace", "3s"}, tt.args...)
			p := run(t, url, append(args, "--", "bash", "-c", tt.script)...)
			pid := p.pid(t, "up")
			s.Cmd(t, tt.do(key)...)
			p.exits(t, exitLost)
			assert.False(t, alive(pid))
			assert.Equal(t, tt.out, p.out.String())
			assert.Contains(t, p.err.String(), fmt.Sprintf("%q was lost while the command ran: lock lost: %s", key,
				map[string]string{"DEL": "gone", "SET": "taken over"}[fmt.Sprint(tt.do("k")[0])]))
			if fmt.Sprint(tt.do("k")[0]) == "SET" {
				assert.Equal(t, "another", s.Cmd(t, "GET", "lock:"+key), "it is another's now")
			}
		})
	}
}

func TestMaxHoldStopsTheCommand(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "run", "-k", "k", "--max-hold", "5s", "--grace", "1s", "--", "sh", "-c",
		`trap "echo told" TERM; while :; do sleep 0.05; done`)
	p.exits(t, exitLost)
	assert.Equal(t, "told\n", p.out.String())
	assert.Contains(t, p.err.String(), "--max-hold 5s is over")
	free(t, s, "k") // the lock itself was not lost
}

// witness is a command that shows by a kernel's lock whether it is alone. It must be killed to end, and if it ran
// together with another one, it says so and exits with 1.
const witness = `exec 9>>"$WITNESS"; flock -n 9 || { echo OVERLAP; exit 1; }
trap "echo told" TERM; echo $$ >up; while :; do sleep 0.05 9>&-; done`

// successor is who comes next: it looks the same way, and ends.
const successor = `exec 9>>"$WITNESS"; flock -n 9 || { echo OVERLAP; exit 1; }; echo alone at ${EPOCHREALTIME/./}`

// relay runs a witness under the lock, lets do spoil its hold, and checks that it is gone before the next one is
// started.
func relay(t *testing.T, url string, do func(p *process, pid int)) (first *process) {
	t.Helper()
	file := t.TempDir() + "/witness"
	args := []string{"run", "-k", "k", "--ttl", "6s", "--grace", "1s", "--", "bash", "-c"}
	first = command(t, url, append(args, witness)...)
	first.Env = append(first.Env, "WITNESS="+file)
	first.begin(t)
	pid := first.pid(t, "up")
	second := command(t, url, append(args, successor)...)
	second.Env = append(second.Env, "WITNESS="+file)
	second.begin(t)
	second.says(t, "waiting for")
	do(first, pid)
	gone(t, pid)
	end := time.Now()
	second.exits(t, 0)
	require.Regexp(t, `^alone at \d+\n$`, second.out.String())
	var at int64
	_, _ = fmt.Sscanf(second.out.String(), "alone at %d", &at)
	t.Logf("the command was seen gone %v before the next one said that it is alone",
		time.UnixMicro(at).Sub(end).Round(time.Millisecond))
	return first
}

// TestNobodyStartsBesideAnOldCommand: whatever happens to the holder, its command is gone before the lock is free for
// the next one. It is a matter of order, which the kernel witnesses, and not of speed.
func TestNobodyStartsBesideAnOldCommand(t *testing.T) {
	t.Parallel()
	t.Run("holder stopped", func(t *testing.T) {
		t.Parallel()
		_, url := server(t)
		first := relay(t, url, func(p *process, _ int) { _ = p.Process.Signal(syscall.SIGSTOP) })
		assert.Equal(t, "told\n", first.out.String())
		require.NoError(t, first.Process.Signal(syscall.SIGCONT))
		first.exits(t, exitLost)
	})
	t.Run("holder killed", func(t *testing.T) {
		t.Parallel()
		_, url := server(t)
		relay(t, url, func(p *process, _ int) { _ = p.Process.Kill() })
	})
	t.Run("guard stopped, and the server", func(t *testing.T) {
		t.Parallel()
		s, url := server(t)
		first := relay(t, url, func(p *process, pid int) {
			guard := p.guardOf(t)
			require.NoError(t, syscall.Kill(guard, syscall.SIGSTOP))
			s.Pause()
			gone(t, pid, guard) // by the holder's own hand
			s.Resume()
		})
		first.exits(t, exitLost)
	})
}

// TestMajorityStops: of five servers three are frozen while the lock is held, until the command is told to end, which
// it does not heed.
func TestMajorityStops(t *testing.T) {
	t.Parallel()
	var ss []*redistest.Server
	var addrs []string
	for range 5 {
		s := redistest.Start(t)
		ss, addrs = append(ss, s), append(addrs, s.Addr())
	}
	first := relay(t, "redlock://"+strings.Join(addrs, ","), func(p *process, _ int) {
		for _, s := range ss[:3] {
			s.Pause()
		}
		eventually(t, "the command is told", func() bool { return strings.Contains(p.out.String(), "told") })
		for _, s := range ss[:3] {
			s.Resume()
		}
	})
	first.exits(t, exitLost)
	assert.Contains(t, first.err.String(), "it could not be renewed in time")
}

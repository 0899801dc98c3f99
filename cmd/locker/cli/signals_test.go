//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/steady"
)

var endings = map[string]syscall.Signal{
	"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
}

func TestSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, sig := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url := server(t)
			s.Cmd(t, "SET", "lock:k", "somebody", "PX", 60_000)
			p := run(t, url, "run", "-k", "k", "--", "sh", "-c", "echo >started")
			p.says(t, "waiting for")
			require.NoError(t, p.Process.Signal(syscall.SIGUSR1)) // run has no command to pass it on to, and must not end
			require.NoError(t, p.Process.Signal(sig))
			p.exits(t, 128+int(sig))
			p.notWritten(t, "started")
			assert.Equal(t, "somebody", s.Cmd(t, "GET", "lock:k"))
			s.Cmd(t, "DEL", "lock:k")
			free(t, s, "k")
		})
	}
}

// TestSignalAndLockAtOnce stops a waiter. When it continues, both the signal and the lock have arrived.
func TestSignalAndLockAtOnce(t *testing.T) {
	t.Parallel()
	for name, sig := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url := server(t)
			l, err := config.Open(t.Context(), url)
			require.NoError(t, err)
			defer l.Close()
			lease, err := l.Lock(t.Context(), "k")
			require.NoError(t, err)
			p := run(t, url, "run", "-k", "k", "--", "sh", "-c", "echo >started")
			p.says(t, "waiting for")
			require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
			eventually(t, "it is stopped", func() bool { return state(p.Process.Pid) == "T" })
			steady.Unlock(t, lease)
			require.NoError(t, p.Process.Signal(sig))
			require.NoError(t, p.Process.Signal(syscall.SIGCONT))
			p.exits(t, 128+int(sig))
			p.notWritten(t, "started")
			free(t, s, "k")
		})
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for name, sig := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := run(t, url, "run", "-k", name, "--", "sh", "-c",
				fmt.Sprintf(`trap 'echo heard; exit 9' %s; echo $$ >up; while :; do sleep 0.3; done`, name))
			pid := p.pid(t, "up")
			require.NoError(t, p.Process.Signal(sig))
			p.exits(t, 9)
			assert.Equal(t, "heard\n", p.out.String())
			gone(t, pid)
			free(t, s, name)
		})
	}
}

// TestSignalReachesTheWholeGroup checks that a signal reaches the child of a shell, too. A shell that waits for its
// child does not pass the signal on.
func TestSignalReachesTheWholeGroup(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for name, sig := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := run(t, url, "run", "-k", name, "--", "sh", "-c", `sh -c 'echo $$ >up; exec sleep 60'; exit 1`)
			pid := p.pid(t, "up")
			require.NoError(t, p.Process.Signal(sig))
			p.exits(t, 128+int(sig))
			gone(t, pid)
			free(t, s, name)
		})
	}
}

// TestIgnoredSignalsStayIgnored checks that the command ignores the signals that run was started to ignore, as with
// nohup.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p := command(t, url, "run", "-k", "k", "--", "sh", "-c",
		`grep SigIgn /proc/$$/status; echo $$ >up; read x <go || sleep 60`)
	require.NoError(t, syscall.Mkfifo(p.file("go"), 0o600))
	p.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh"}, append([]string{p.Path}, p.Args[1:]...)...)
	p.Path = "/bin/sh"
	p.begin(t)
	p.pid(t, "up")
	require.NoError(t, p.Process.Signal(syscall.SIGHUP))
	require.NoError(t, os.WriteFile(p.file("go"), []byte("on\n"), 0o600))
	p.exits(t, 0)
	var ignored uint64
	_, err := fmt.Sscanf(p.out.String(), "SigIgn:\t%x\n", &ignored)
	require.NoError(t, err)
	assert.Equal(t, uint64(1), ignored&1)
	// Any program that the tests start ignores the signals that the tests ignore, for instance SIGPIPE.
	plain, err := exec.Command("sh", "-c", `trap "" HUP; exec grep SigIgn /proc/self/status`).CombinedOutput()
	require.NoError(t, err)
	assert.Equal(t, string(plain), p.out.String())
}

func TestTermIsFollowedByKill(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "run", "-k", "k", "--grace", "100ms", "--", "sh", "-c",
		`trap "" TERM; echo $$ >up; while :; do sleep 0.3; done`)
	pid := p.pid(t, "up")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.exits(t, 128+9)
	gone(t, pid)
	free(t, s, "k")
}

// TestInterruptIsTheCommandsToHandle checks that only SIGTERM ends the command in any case. An editor or a shell
// continues after Ctrl-C, under its lock.
func TestInterruptIsTheCommandsToHandle(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "run", "-k", "k", "--grace", "0s", "--", "sh", "-c",
		`trap "echo >heard" INT; echo $$ >up; read x <go || read x <go; exit 5`)
	require.NoError(t, syscall.Mkfifo(p.file("go"), 0o600))
	p.pid(t, "up")
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	eventually(t, "the command hears", func() bool { _, err := os.Stat(p.file("heard")); return err == nil })
	assert.Len(t, s.Keys(t, "lock:k"), 1)
	require.NoError(t, os.WriteFile(p.file("go"), []byte("on\n"), 0o600))
	p.exits(t, 5)
	free(t, s, "k")
}

// family is a script that starts a child, a grandchild in a session of its own, and an orphan whose parent has ended.
// It writes their process ids to files.
const family = `
	sh -c 'echo $$ >child; exec sleep 61' &
	setsid sh -c 'echo $$ >session; exec sleep 62' &
	(setsid sh -c 'trap "" TERM HUP; echo $$ >stubborn; while :; do sleep 0.3; done' & )
	while ! [ -s child -a -s session -a -s stubborn ]; do sleep 0.05; done
	echo $$ >up
`

func (p *process) family(t *testing.T) []int {
	t.Helper()
	return []int{p.pid(t, "up"), p.pid(t, "child"), p.pid(t, "session"), p.pid(t, "stubborn")}
}

func TestNothingOfTheCommandIsLeft(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for name, tt := range map[string]struct {
		script string
		do     func(p *process, s string)
		code   int
	}{
		"it ends":          {"exit 3", func(*process, string) {}, 3},
		"it is killed":     {"kill -9 $$", func(*process, string) {}, 128 + 9},
		"TERM":             {"wait", func(p *process, _ string) { _ = p.Process.Signal(syscall.SIGTERM) }, 128 + 15},
		"the lock is gone": {"wait", func(_ *process, key string) { _, _ = s.Do("DEL", "lock:"+key) }, exit.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := run(t, url, "run", "-k", name, "--ttl", "10s", "--grace", "200ms", "--", "sh", "-c", family+tt.script)
			pids := p.family(t)
			tt.do(p, name)
			p.exits(t, tt.code)
			for _, pid := range pids {
				assert.False(t, alive(pid), "it is gone before locker is")
			}
			free(t, s, name)
		})
	}
}

// TestKilled checks that if the holder or the guard is killed, the other one ends the command and its processes.
func TestKilled(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	t.Run("holder", func(t *testing.T) {
		t.Parallel()
		p := run(t, url, "run", "-k", "holder", "--grace", "100ms", "--", "sh", "-c", family+"wait")
		pids := append(p.family(t), p.guardOf(t))
		require.NoError(t, p.Process.Kill())
		gone(t, pids...)
		assert.Len(t, s.Keys(t, "lock:holder"), 1, "nobody is there to release it")
	})
	t.Run("holder, and the command does not heed TERM", func(t *testing.T) {
		t.Parallel()
		p := run(t, url, "run", "-k", "stubborn", "--grace", "100ms", "--", "sh", "-c", `trap "" TERM; `+family+"wait")
		pids := append(p.family(t), p.guardOf(t))
		require.NoError(t, p.Process.Kill())
		gone(t, pids...)
	})
	t.Run("guard", func(t *testing.T) {
		t.Parallel()
		p := run(t, url, "run", "-k", "guard", "--", "sh", "-c", family+"wait")
		pids := p.family(t)
		require.NoError(t, syscall.Kill(p.guardOf(t), syscall.SIGKILL))
		p.exits(t, exit.Software)
		for _, pid := range pids {
			assert.False(t, alive(pid), "it is gone before locker is")
		}
		free(t, s, "guard")
	})
	t.Run("both", func(t *testing.T) {
		t.Parallel()
		p := run(t, url, "run", "-k", "both", "--", "sh", "-c", "echo $$ >up; exec sleep 60")
		pid := p.pid(t, "up")
		guard := p.guardOf(t)
		require.NoError(t, syscall.Kill(guard, syscall.SIGSTOP)) // so that the guard cannot end the command
		require.NoError(t, p.Process.Kill())
		require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
		gone(t, pid, guard)
	})
}

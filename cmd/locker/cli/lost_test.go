//go:build unix

package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/redistest"
)

// TestLostLockStopsTheCommand deletes the lock, or gives it to another owner. The next renewal notices the loss.
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
		"deleted": {deleted, nil, `trap "echo told; exit 0" TERM; echo $$ >up; while :; do sleep 0.3; done`,
			"told\n"},
		"taken over": {taken, nil, `trap "echo told; exit 0" TERM; echo $$ >up; while :; do sleep 0.3; done`,
			"told\n"},
		"stubborn": {taken, nil, `trap "echo told" TERM; echo $$ >up; while :; do sleep 0.3; done`, "told\n"},
		"stopped": {deleted, nil, `trap "echo told; exit 0" TERM; echo $$ >up; kill -STOP $$; echo late; sleep 60`,
			"told\n"},
		"kill": {taken, []string{"--on-lost", "kill"},
			`trap "echo told" TERM; echo $$ >up; while :; do sleep 0.3; done`, ""},
		"notify": {taken, []string{"--on-lost", "notify"},
			`trap "echo told" TERM; echo $$ >up; cat <&$LOCKER_FD; echo end of file; exit 4`, "end of file\n"},
		"told by the file, too": {deleted, nil, `trap "" TERM; echo $$ >up; cat <&$LOCKER_FD; echo end of file; exit 0`,
			"end of file\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := strings.ReplaceAll(name, " ", "-")
			// The grace is long enough for the command to print a line after the signal.
			args := append([]string{"run", "-k", key, "--ttl", "12s", "--grace", "3s"}, tt.args...)
			p := run(t, url, append(args, "--", "bash", "-c", tt.script)...)
			pid := p.pid(t, "up")
			s.Cmd(t, tt.do(key)...)
			p.exits(t, exit.Lost)
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
		`trap "echo told" TERM; while :; do sleep 0.3; done`)
	p.exits(t, exit.Lost)
	assert.Equal(t, "told\n", p.out.String())
	assert.Contains(t, p.err.String(), "--max-hold 5s is over")
	free(t, s, "k") // the lock itself was not lost
}

// witness is a command that uses a lock of the kernel to check that it is alone. If it is not, it prints OVERLAP and
// exits with 1. Otherwise it runs until it is killed.
const witness = `exec 9>>"$WITNESS"; flock -n 9 || { echo OVERLAP; exit 1; }
trap "echo told" TERM; echo $$ >up; while :; do sleep 0.3 9>&-; done`

// successor is the next command. It checks in the same way that it is alone, and ends.
const successor = `exec 9>>"$WITNESS"; flock -n 9 || { echo OVERLAP; exit 1; }; echo alone at ${EPOCHREALTIME/./}`

// relay runs a witness under the lock and calls do, which makes it lose the lock. It checks that the witness has ended
// before the successor is started.
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

// TestNobodyStartsBesideAnOldCommand checks that the command has ended before the lock is free for the next owner,
// whatever happens to the holder. A lock of the kernel proves the order, so the test does not depend on speed.
func TestNobodyStartsBesideAnOldCommand(t *testing.T) {
	t.Parallel()
	t.Run("holder stopped", func(t *testing.T) {
		t.Parallel()
		_, url := server(t)
		first := relay(t, url, func(p *process, _ int) { _ = p.Process.Signal(syscall.SIGSTOP) })
		assert.Equal(t, "told\n", first.out.String())
		require.NoError(t, first.Process.Signal(syscall.SIGCONT))
		first.exits(t, exit.Lost)
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
			gone(t, pid, guard) // the holder has killed them
			s.Resume()
		})
		first.exits(t, exit.Lost)
	})
}

// TestMajorityStops freezes three of five servers while the lock is held, until the command gets its SIGTERM. The
// command ignores it.
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
	first.exits(t, exit.Lost)
	assert.Contains(t, first.err.String(), "it could not be renewed in time")
}

// If the server dies while run waits for a lock, the error is about the server. It does not say to try again later.
func TestWaitingOnAServerThatDies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	url := "redis://" + s.Addr()
	heldBy(t, url, "k")
	p := run(t, url, "run", "-k", "k", "--wait", "6s", "--", "true")
	eventually(t, "it waits", func() bool { return s.Cmd(t, "ZCARD", "{lock:k}:lockqueue") == int64(1) })
	s.Kill()
	p.exits(t, exit.Unavailable)
	assert.NotContains(t, p.err.String(), "try again later")
}

// A store accepts connections and never answers, as a process that is stopped. The command ends soon, whatever the
// store: it asks once, and does not wait as long again for Close and for the diagnosis.
func TestASilentStoreIsBounded(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() }) // nobody accepts: the kernel does
	addr := l.Addr().String()
	for _, url := range []string{
		"redis://" + addr, "redlock://" + addr, "nats://" + addr, "etcd://" + addr, "etcd://u:p@" + addr,
		"postgres://u@" + addr + "/db",
	} {
		scheme, _, _ := strings.Cut(url, ":")
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			run(t, url, "inspect", "k").exits(t, exit.Unavailable)
			assert.Less(t, time.Since(start), 2*askTimeout+closeLimit)
		})
	}
}

// Close may wait for a server without end: the command ends all the same.
func TestCloseDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	released, closed := make(chan struct{}), make(chan struct{})
	a := &app{stdin: strings.NewReader(""), stdout: new(bytes.Buffer), stderr: new(bytes.Buffer)}
	a.opened = []io.Closer{closer(func() {
		<-released
		close(closed)
	})}
	ended := make(chan int, 1)
	go func() { ended <- a.main(t.Context(), []string{"version"}) }()
	select {
	case code := <-ended:
		assert.Zero(t, code)
	case <-time.After(limit):
		assert.Fail(t, "it waits for Close")
	}
	close(released)
	<-closed
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

// A timeout of the configuration is not changed, and a backend without one stays as it is.
func TestHurry(t *testing.T) {
	for url, want := range map[string]string{
		"redis://h":               "redis://h:6379?timeout=3s",
		"redlock://a,b,c?ttl=5s":  "redlock://a:6379,b:6379,c:6379?timeout=3s&ttl=5s",
		"nats://h?timeout=8s":     "nats://h?timeout=8s",
		"etcd://u:p@h":            "etcd://u:[REDACTED]@h?timeout=3s",
		"postgres://h/timeout":    "postgres://h/timeout?timeout=3s",
		"memory:":                 "memory:",
		"redis://h?prefix=a?b%26": "redis://h:6379?prefix=a%3Fb%26&timeout=3s",
	} {
		c, err := config.Parse(url)
		require.NoError(t, err)
		hurry(c)
		assert.Equal(t, want, c.String())
	}
}

func TestNotesNameTheProgramOnce(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out}
	a.note("%v: it ends by itself", &locker.Error{Op: "unlock", Key: "k", Err: locker.ErrUnavailable})
	assert.Equal(t, "locker: unlock \"k\": lock store unavailable: it ends by itself\n", out.String())
}

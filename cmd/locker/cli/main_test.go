//go:build unix

package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

// asLocker is a variable. If it is set, the test binary is the program.
const asLocker = "TEST_AS_LOCKER"

// The test binary is also the program. Tests run it like a user, in processes of its own.
func TestMain(m *testing.M) {
	if os.Getenv(asLocker) != "" || os.Getenv(suiteEnv) != "" { // the suite of conform is a process of its own
		Main()
	}
	redistest.DefaultSignals()
	redistest.Main(m)
}

// limit is how long a test waits before it takes a process for hung.
const limit = 30 * time.Second

// process is one run of the program.
type process struct {
	*exec.Cmd
	out, err output
	done     chan struct{} // closed when it has ended
}

// output has the text that a process has printed so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// command returns a process that has not been started, with LOCKER_URL=url in its environment.
func command(t *testing.T, url string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.Command(exe, args...), done: make(chan struct{})}
	p.Dir = t.TempDir()
	p.Env = []string{asLocker + "=1", "GOGC=400", "GORACE=atexit_sleep_ms=0", "PATH=" + redistest.Path(t),
		"LOCKER_URL=" + url, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test"}
	p.Stdout, p.Stderr = &p.out, &p.err
	p.WaitDelay = limit
	return p
}

// begin starts the process. The process is killed when the test ends.
func (p *process) begin(t *testing.T) *process {
	t.Helper()
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
	})
	return p
}

// run starts the program with args.
func run(t *testing.T, url string, args ...string) *process {
	t.Helper()
	return command(t, url, args...).begin(t)
}

// exits waits until the process has ended and checks its exit code.
func (p *process) exits(t *testing.T, code int) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		require.Fail(t, "the program hangs", p.out.String()+p.err.String())
	}
	status := p.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, status.Exited(), "it was killed by %v\n%s", status.Signal(), p.err.String())
	require.Equal(t, code, status.ExitStatus(), p.out.String()+p.err.String())
}

// says waits until stderr contains text.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, "it says "+text, func() bool { return strings.Contains(p.err.String(), text) })
}

// file returns the path of a file that the command may write.
func (p *process) file(name string) string { return filepath.Join(p.Dir, name) }

// wrote waits for a file that the command writes, and returns its content.
func (p *process) wrote(t *testing.T, name string) string {
	t.Helper()
	var text []byte
	eventually(t, "the command writes "+name, func() bool {
		var err error
		text, err = os.ReadFile(p.file(name))
		return err == nil && bytes.HasSuffix(text, []byte("\n"))
	})
	return strings.TrimSpace(string(text))
}

// pid waits for a file with a process id.
func (p *process) pid(t *testing.T, name string) int {
	t.Helper()
	pid, err := strconv.Atoi(p.wrote(t, name))
	require.NoError(t, err)
	t.Cleanup(func() { // the process still runs if the test has failed
		if alive(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pid
}

func (p *process) notWritten(t *testing.T, name string) {
	t.Helper()
	_, err := os.Stat(p.file(name))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool { return !strings.ContainsAny(state(pid), "XZ") }

// state returns the kernel's letter for the state of a process. It is X if the process does not exist.
func state(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "X"
	}
	return string(stat[bytes.LastIndexByte(stat, ')')+2:][:1])
}

func gone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		eventually(t, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
	}
}

// guardOf returns the process id of the guard.
func (p *process) guardOf(t *testing.T) (pid int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); f[1] == strconv.Itoa(p.Process.Pid) {
			pid, err = strconv.Atoi(strings.Split(name, "/")[2])
			require.NoError(t, err)
		}
	}
	require.NotZero(t, pid)
	return pid
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			require.Fail(t, "not within "+limit.String(), what)
		}
	}
}

func server(t *testing.T, args ...string) (s *redistest.Server, url string) {
	t.Helper()
	s = redistest.Start(t, args...)
	return s, "redis://" + s.Addr()
}

// free waits until the lock has neither an owner nor a waiter.
func free(t *testing.T, s *redistest.Server, key string) {
	t.Helper()
	eventually(t, "the lock is free", func() bool {
		return len(s.Keys(t, "lock:"+key)) == 0 && len(s.Keys(t, "{lock:"+key+"}:lockqueue")) == 0
	})
}

// call runs a command line in this process.
func call(env []string, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &err, environ: env}
	code = a.main(context.Background(), args)
	return code, out.String(), err.String()
}

// callAgain is call, but repeats the command line while answers are late, because the machine may have stalled.
func callAgain(env []string, args ...string) (code int, stdout, stderr string) {
	for range 5 {
		code, stdout, stderr = call(env, args...)
		if said := stdout + stderr; !strings.Contains(said, "no answer") && !strings.Contains(said, "deadline exceeded") {
			break
		}
	}
	return code, stdout, stderr
}

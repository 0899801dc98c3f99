package redistest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRestartKeepsTheAddressAndForgets(t *testing.T) {
	s := redistest.Start(t)
	addr, pid := s.Addr(), s.Pid()
	s.Cmd(t, "SET", "key", "value")
	s.Kill()
	assert.Zero(t, s.Pid())
	_, err := net.Dial("tcp", addr)
	require.Error(t, err, "nobody listens on a killed server's port")
	s.Kill()
	s.Restart()
	assert.Equal(t, addr, s.Addr())
	assert.NotEqual(t, pid, s.Pid())
	assert.Empty(t, s.Keys(t, "*"))
}

func TestPauseFreezesAndResumeCatchesUp(t *testing.T) {
	s := redistest.Start(t)
	conn, err := redis.Dial("tcp", s.Addr())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	s.Pause()
	require.NoError(t, conn.Send("SET", "key", "value"))
	require.NoError(t, conn.Flush())
	awaitState(t, s.Pid(), "T")
	s.Resume()
	reply, err := conn.Receive()
	require.NoError(t, err)
	assert.Equal(t, "OK", reply)
}

func TestKillEndsAPausedServer(t *testing.T) {
	s := redistest.Start(t)
	pid := s.Pid()
	s.Pause()
	s.Kill()
	assert.Empty(t, state(pid))
}

// childEnv is a variable that makes the test binary the child process of a test.
const childEnv = "REDISTEST_CHILD"

// TestChild is not a test but the child process. It starts a server. Then it fails, or prints the process id of the
// server and waits to be killed.
func TestChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("only other tests run this")
	}
	s := redistest.Start(t)
	switch os.Getenv(childEnv) {
	case "paused":
		s.Pause()
	case "failing":
		redistest.Start(t)
		t.Fatal("as it should")
	}
	fmt.Printf("server %d %s\n", s.Pid(), s.Dir())
	select {}
}

func TestServerDiesWithItsTest(t *testing.T) {
	for _, mode := range []string{"running", "paused"} {
		t.Run(mode, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$")
			child.Env = append(os.Environ(), childEnv+"="+mode)
			out, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			var pid int
			var dir string
			for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
				_, _ = fmt.Sscanf(lines.Text(), "server %d %s", &pid, &dir)
			}
			require.NotZero(t, pid, "the child did not start a server")
			require.NotEmpty(t, state(pid))

			require.NoError(t, child.Process.Signal(syscall.SIGKILL))
			_ = child.Wait()
			assert.Eventually(t, func() bool { return state(pid) == "" }, 10*time.Second, 5*time.Millisecond,
				"the server outlives the test process that started it")
			assert.Eventually(t, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }, 10*time.Second,
				5*time.Millisecond,
				"its files outlive the test process")
		})
	}
}

// output returns the output of a child that fails, with the server of that name.
func output(t *testing.T, mode, server string) string {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childEnv+"="+mode, redistest.ServerEnv+"="+server)
	out, err := child.CombinedOutput()
	require.Error(t, err, "%s", out)
	return string(out)
}

func TestFailureSaysOnceWhichServerItWasOn(t *testing.T) {
	binary := redistest.Binary(t)
	out := output(t, "failing", binary)
	assert.Equal(t, 1, strings.Count(out, "this was on "+redistest.Version(binary)+" ("+binary+")"), out)
	assert.Regexp(t, `(Redis|Valkey|Redict) server [0-9]+\.[0-9]+`, out)
}

func TestServerThatIsNotThereFailsTheTestAndSaysHowToGetIt(t *testing.T) {
	assert.Contains(t, output(t, "running", "valkey-0.0"), "it is not installed: run scripts/servers valkey-0.0")
	assert.Contains(t, output(t, "running", "/nowhere/valkey-server"), "/nowhere/valkey-server: no program is there")
}

func awaitState(t *testing.T, pid int, want string) {
	t.Helper()
	require.Eventually(t, func() bool { return state(pid) == want }, 10*time.Second, time.Millisecond)
}

// state returns the process's state as ps prints it, such as "T" for stopped. It is empty if the process has ended. A
// zombie counts as ended, because its parent may never ask for it.
func state(pid int) string {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	s := strings.TrimSpace(string(out))
	if s == "" || s[0] == 'Z' {
		return ""
	}
	return s[:1]
}

// TestPortIsWaitedFor occupies the port of a dead server and gives it back.
func TestPortIsWaitedFor(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	l, err := net.Listen("tcp", s.Addr())
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
	s.Restart()
	assert.Equal(t, "PONG", s.Cmd(t, "PING"))
}

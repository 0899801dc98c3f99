package redistest_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

func TestServerAnswersOnPortAndSocket(t *testing.T) {
	s := redistest.Start(t)
	for network, addr := range map[string]string{"tcp": s.Addr(), "unix": s.Socket()} {
		conn, err := redis.Dial(network, addr)
		require.NoError(t, err)
		pong, err := redis.String(conn.Do("PING"))
		require.NoError(t, err)
		assert.Equal(t, "PONG", pong)
		require.NoError(t, conn.Close())
	}
	info := s.Cmd(t, "INFO", "server").(string)
	assert.Contains(t, info, fmt.Sprintf("process_id:%d\r\n", s.Pid()))
}

func TestServersAreIndependent(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	a.Cmd(t, "SET", "key", "a")
	assert.Nil(t, b.Cmd(t, "GET", "key"))
	assert.NotEqual(t, a.Addr(), b.Addr())
}

func TestExtraArgumentsWin(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--requirepass", "pw")
	assert.Equal(t, []any{"appendonly", "yes"}, s.Cmd(t, "CONFIG", "GET", "appendonly"))
	s.Cmd(t, "SET", "key", "kept")
	s.Restart()
	assert.Equal(t, "kept", s.Cmd(t, "GET", "key"), "append only file survives a restart")
}

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

func TestKeys(t *testing.T) {
	s := redistest.Start(t)
	s.Cmd(t, "MSET", "a:2", 1, "b", 2, "a:1", 3)
	assert.Equal(t, []string{"a:1", "a:2"}, s.Keys(t, "a:*"))
	assert.Equal(t, []string{"a:1", "a:2", "b"}, s.Keys(t, "*"))
	assert.Equal(t, []string{}, s.Keys(t, "none"))
}

func TestErrorRepliesAreErrors(t *testing.T) {
	s := redistest.Start(t)
	_, err := s.Do("NONSENSE")
	require.ErrorContains(t, err, "ERR unknown command")
}

func TestTLS(t *testing.T) {
	s, config := redistest.StartTLS(t)
	conn, err := redis.Dial("tcp", s.Addr(), redis.DialUseTLS(true), redis.DialTLSConfig(config))
	require.NoError(t, err)
	pong, err := redis.String(conn.Do("PING"))
	require.NoError(t, err)
	assert.Equal(t, "PONG", pong)
	require.NoError(t, conn.Close())

	_, err = redis.Dial("tcp", s.Addr(), redis.DialUseTLS(true))
	require.ErrorContains(t, err, "certificate", "the authority is nobody's but the test's")
	assert.FileExists(t, s.CAFile())
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

func TestScriptThatInstallsServersSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct{ path, want string }{
		"valkey-0.0": {os.Getenv("PATH"), "no server is called valkey-0.0; there are redis-6.0 "},
		"valkey-8.1": {"", "there is no apt-get here"},
	} {
		script := exec.CommandContext(t.Context(), "/bin/bash", "../../../scripts/servers", name)
		script.Env = []string{"HOME=" + t.TempDir(), "PATH=" + c.path}
		if c.path == "" {
			script.Env[1] = "PATH=" + programs(t, "awk", "mkdir", "flock")
		}
		out, err := script.CombinedOutput()
		require.Error(t, err, "%s", out)
		assert.Contains(t, string(out), c.want)
	}
}

// programs returns a directory with links to these programs and no others.
func programs(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil { // not every machine has flock
			require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
		}
	}
	return dir
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

func TestSocketPathFitsWhateverTheTestIsCalled(t *testing.T) {
	t.Run(strings.Repeat("long", 40), func(t *testing.T) {
		s := redistest.Start(t)
		assert.Less(t, len(s.Socket()), 100)
		assert.Equal(t, filepath.Dir(s.Socket()), s.Dir())
	})
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

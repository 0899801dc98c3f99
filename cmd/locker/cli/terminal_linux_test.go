package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/golocker/locker"
)

// openTerminal returns the two ends of a pseudo-terminal.
func openTerminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	raw, err := outside.SyscallConn() // Fd would make reads that Close does not end
	require.NoError(t, err)
	var n uint32
	require.NoError(t, raw.Control(func(fd uintptr) {
		require.NoError(t, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
		n, err = unix.IoctlGetUint32(int(fd), unix.TIOCGPTN)
		require.NoError(t, err)
	}))
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return outside, inside
}

// session is a shell with job control on a terminal.
type session struct {
	keyboard *os.File
	screen   output
}

func newSession(t *testing.T, url, script string) *session {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	outside, inside := openTerminal(t)
	s := &session{keyboard: outside}
	sh := exec.Command("bash", "-c", "set -m\n"+script)
	sh.Dir = t.TempDir()
	sh.Env = []string{asLocker + "=1", "GOGC=400", "GORACE=atexit_sleep_ms=0", "PATH=" + os.Getenv("PATH"),
		"LOCKER_URL=" + url, "LOCKER=" + exe}
	sh.Stdin, sh.Stdout, sh.Stderr = inside, inside, inside
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, sh.Start())
	_ = inside.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 1024); ; {
			n, err := outside.Read(buf)
			if err != nil { // the last process inside has ended
				return
			}
			_, _ = s.screen.Write(buf[:n])
		}
	}()
	t.Cleanup(func() {
		_ = sh.Process.Kill()
		_ = sh.Wait()
		_ = outside.Close()
		<-read
	})
	return s
}

func (s *session) types(t *testing.T, text string) {
	t.Helper()
	_, err := s.keyboard.WriteString(text)
	require.NoError(t, err)
}

func (s *session) shows(t *testing.T, text string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the screen:\n%s", s.screen.String())
		}
	}()
	eventually(t, "the screen shows "+text, func() bool { return strings.Contains(s.screen.String(), text) })
}

// TestTerminal checks that the command can read from the terminal, that Ctrl-Z stops the whole job for the shell, and
// that fg continues it.
func TestTerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `
		"$LOCKER" run -k k -- sh -c 'echo ready; read a; echo "got $a"; read b; echo "got $b"'
		echo "stopped $?"
		fg
		echo "code $?"`)
	s.shows(t, "ready")
	s.types(t, "one\n")
	s.shows(t, "got one")
	s.types(t, "\x1a")
	s.shows(t, "stopped 147") // 128 + SIGSTOP
	s.types(t, "two\n")
	s.shows(t, "got two")
	s.shows(t, "code 0")
}

func TestCtrlC(t *testing.T) {
	t.Parallel()
	srv, url := server(t)
	s := newSession(t, url, `
		"$LOCKER" run -k k -- sh -c 'echo ready; exec sleep 60'
		echo "code $?"
		"$LOCKER" run -k held -- true
		echo "then $?"`)
	srv.Cmd(t, "SET", "lock:held", "somebody", "PX", 60_000)
	s.shows(t, "ready")
	s.types(t, "\x03")
	s.shows(t, "code 130")
	s.shows(t, "waiting for")
	s.types(t, "\x03")
	s.shows(t, "then 130")
}

// Ctrl-C on a terminal ends elect, and not only the command, whatever the command makes of it. Ctrl-Z stops both. The
// command does not hang when it reads. The last one is bash, because dash starts programs by vfork: if Ctrl-Z comes
// between vfork and exec, the child is stopped, and the shell waits for it in the kernel and cannot be stopped.
func TestCtrlCEndsElect(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `
		"$LOCKER" elect -k dies -- sh -c 'read a || echo empty; exec sleep 60'
		echo "dies $?"
		"$LOCKER" elect -k ends -- sh -c 'trap "exit 0" INT; echo begun; while :; do sleep 0.1; done'
		echo "ends $?"
		"$LOCKER" elect -k stops -- bash -c 'trap "printf %s%s ag ain" CONT; echo there; while :; do sleep 0.1; done'
		echo "stopped $?"; fg >/dev/null
		echo "stops $?"`)
	s.shows(t, "empty")
	s.types(t, "\x03")
	s.shows(t, "dies 130")
	s.shows(t, "begun")
	s.types(t, "\x03")
	s.shows(t, "ends 0")
	s.shows(t, "there")
	s.types(t, "\x1a")
	s.shows(t, "stopped 147")
	s.shows(t, "again")
	s.types(t, "\x03")
	s.shows(t, "stops 130")
}

// TestBackgroundJob checks that a command that reads from the terminal in the background is stopped until fg gives it
// the terminal.
func TestBackgroundJob(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `
		"$LOCKER" run -k k -- sh -c 'echo ready; read a; echo "got $a"' &
		until [[ $(jobs) == *Stopped* ]]; do sleep 0.05; done
		echo now; fg
		echo "code $?"`)
	s.shows(t, "now")
	s.types(t, "one\n")
	s.shows(t, "got one")
	s.shows(t, "code 0")
}

// TestPagerKeepsTheTerminal checks that run leaves the terminal to the other end of a pipeline, which may be using it.
func TestPagerKeepsTheTerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `
		"$LOCKER" run -k k -- echo text | (read a; echo "reads $a"; read b </dev/tty; echo "got $b")
		echo "code ${PIPESTATUS[*]}"`)
	s.shows(t, "reads text")
	s.types(t, "one\n")
	s.shows(t, "got one")
	s.shows(t, "code 0 0")
}

// watch keeps to one line of a narrow terminal until the state changes, and then leaves the whole line of the former
// state.
func TestWatchOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	lease := heldBy(t, url, "k")
	s := newSession(t, url, `stty cols 60; "$LOCKER" watch k --interval 100ms; echo "code $?"`)
	s.shows(t, `"k" held by`)
	eventually(t, "it has looked several times", func() bool { return strings.Count(s.screen.String(), "\r\x1b[K") > 5 })
	for _, line := range strings.Split(s.screen.String(), "\r\x1b[K") {
		assert.NotContains(t, line, "\n")
		assert.LessOrEqual(t, len([]rune(line)), 60, line)
	}
	s.shows(t, "…")
	require.NoError(t, lease.Unlock(t.Context()))
	s.shows(t, fmt.Sprintf(", fence %d\r\n", lease.Fence()))
	s.shows(t, `"k" free`)
	s.types(t, "\x03")
	s.shows(t, "code 0")
}

// Help and doctor keep to the width of the terminal, and break no words.
func TestHelpOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `stty cols 60; "$LOCKER" run --help; "$LOCKER" doctor; echo "code $?"`)
	s.shows(t, "code")
	for _, line := range strings.Split(s.screen.String(), "\r\n") {
		if !strings.HasPrefix(line, "  locker run ") { // an example
			assert.LessOrEqual(t, len([]rune(line)), 60, line)
		}
	}
}

// TestColours checks that colours are used on a terminal only, and not if a setting switches them off.
func TestColours(t *testing.T) {
	_, inside := openTerminal(t)
	defer inside.Close()
	for name, tt := range map[string]struct {
		app     *app
		painted bool
	}{
		"terminal":   {&app{environ: []string{"TERM=xterm"}}, true},
		"NO_COLOR":   {&app{environ: []string{"TERM=xterm", "NO_COLOR=1"}}, false},
		"NO_COLOR=":  {&app{environ: []string{"TERM=xterm", "NO_COLOR="}}, true},
		"--no-color": {&app{environ: []string{"TERM=xterm"}, noColor: true}, false},
		"--json":     {&app{environ: []string{"TERM=xterm"}, json: true}, false},
		"dumb":       {&app{environ: []string{"TERM=dumb"}}, false},
		"no TERM":    {&app{}, false},
	} {
		assert.Equal(t, tt.painted, tt.app.style(inside).bad("x") != "x", name)
		assert.Equal(t, "x", tt.app.style(&bytes.Buffer{}).bad("x"), name)
	}
}

// TestReleaseAsks checks that release shows the owner on a terminal, and takes the lock from this owner only, after a
// confirmation.
func TestReleaseAsks(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	lease := heldBy(t, url, "k")
	s := newSession(t, url, `
		for i in 1 2; do "$LOCKER" release k; echo "code $?"; done
		"$LOCKER" release k </dev/null; echo "code $?"`)
	s.shows(t, lease.Token()[:8]+"…")
	s.shows(t, "[y/N]")
	s.types(t, "\n")
	s.shows(t, "nothing was released")
	s.shows(t, "code 1")
	require.NoError(t, lease.Extend(t.Context()))
	s.types(t, "y\n")
	s.shows(t, `released "k", taken from `)
	s.shows(t, "code 0")
	assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	s.shows(t, "nothing to release")
}

// TestWatchOnATerminal checks that watch updates one line.
func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	s := newSession(t, url, `"$LOCKER" watch k; echo "code $?"`)
	s.shows(t, `"k" free`)
	lease := heldBy(t, url, "k")
	s.shows(t, "unless renewed, owner "+lease.Token()[:8])
	s.types(t, "\x03")
	s.shows(t, "code 0")

	down := newSession(t, "redis://127.0.0.1:1", `"$LOCKER" watch k`)
	down.shows(t, `"k" unknown: 127.0.0.1:1: dial tcp`) // the reason comes before the end of the line
	down.types(t, "\x03")
}

//go:build unix

package cli

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Ctrl-C ends a command that asks a store which hangs as it ends any program that does not catch it, for which a shell
// says 130. The store would not answer for longer than the test lasts.
func TestInterruptEndsWhatAsksAStoreThatHangs(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"ls"}, {"inspect", "k"}} {
		hangs, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, err := hangs.Accept()
			if err == nil {
				accepted <- conn
			}
		}()
		p := run(t, "redis://"+hangs.Addr().String()+"?timeout=1h", args...)
		conn := <-accepted
		_, err = conn.Read(make([]byte, 1)) // its first request is sent
		require.NoError(t, err)
		p.interrupted(t)
		_ = conn.Close()
		_ = hangs.Close()
	}
}

// Ctrl-C ends a list of which some is printed.
func TestInterruptEndsAList(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	s.Cmd(t, "EVAL", "for i = 1, 100000 do redis.call('SET', 'lock:k' .. i, 'somebody', 'PX', 600000) end", "0")
	p := run(t, url, "ls")
	eventually(t, "locks are printed", func() bool { return strings.Contains(p.out.String(), "somebody") })
	p.interrupted(t)
	assert.Less(t, strings.Count(p.out.String(), "\n"), 100_000, "the list was over before")
}

// interrupted sends SIGINT to the process, which ends it.
func (p *process) interrupted(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	<-p.done
	status := p.ProcessState.Sys().(syscall.WaitStatus)
	assert.True(t, status.Signaled() && status.Signal() == syscall.SIGINT, "%v\n%s", p.ProcessState, p.err.String())
}

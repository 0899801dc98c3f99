//go:build unix

package cli

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/steady"
)

// TestDev checks that the servers of dev work, and that they end with the command, in whatever way it ends.
func TestDev(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "told to end": syscall.SIGTERM,
		"killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := command(t, "", "dev", "--nodes", "3", "--json")
			p.Env = append(p.Env, "TMPDIR="+p.Dir)
			p.begin(t)
			eventually(t, "it prints the URL", func() bool { return strings.HasSuffix(p.out.String(), "}\n") })
			dev := decode[struct {
				URL   string
				Nodes []struct{ PID int }
			}](t, p.out.String())
			require.Len(t, dev.Nodes, 3)
			lease := heldBy(t, dev.URL, "k")
			steady.Unlock(t, lease)
			require.NoError(t, p.Process.Signal(end))
			if end == syscall.SIGKILL {
				<-p.done
			} else {
				p.exits(t, 0)
			}
			for _, n := range dev.Nodes {
				gone(t, n.PID)
			}
			filesGo(t, p.Dir)
		})
	}
}

func TestDevSaysWhichServerHasEnded(t *testing.T) {
	t.Parallel()
	p := command(t, "", "dev", "--nodes", "1", "--json")
	p.Env = append(p.Env, "TMPDIR="+p.Dir)
	p.begin(t)
	eventually(t, "it prints the URL", func() bool { return strings.HasSuffix(p.out.String(), "}\n") })
	dev := decode[struct{ Nodes []struct{ PID int } }](t, p.out.String())
	require.NoError(t, syscall.Kill(dev.Nodes[0].PID, syscall.SIGKILL))
	p.says(t, "has ended")
	filesGo(t, p.Dir)
}

func filesGo(t *testing.T, dir string) {
	t.Helper()
	eventually(t, "its files are gone", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0
	})
}

// TestDevWithoutRedis checks that dev simulates the servers, and that locks on them expire and can be released by
// force.
func TestDevWithoutRedis(t *testing.T) {
	t.Parallel()
	p := command(t, "", "dev", "--nodes", "3")
	p.Env = append(p.Env, "PATH=/nowhere")
	p.begin(t)
	p.says(t, "Ctrl-C")
	p.says(t, "redis-server is not installed")
	eventually(t, "it prints a URL", func() bool { return strings.HasSuffix(p.out.String(), "\n") })
	url := strings.TrimPrefix(strings.TrimSpace(p.out.String()), "export LOCKER_URL=")
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	defer l.Close()
	steady.Lock(t, l, "k", locker.TTL(time.Second), locker.NoRenewal())
	lease := steady.Lock(t, l, "k")
	code, stdout, stderr := call(nil, "release", "k", "--yes", "--url", url)
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, "released \"k\"")
	eventually(t, "its owner has lost it", func() bool { return errors.Is(lease.Extend(t.Context()), locker.ErrLost) })
	steady.Unlock(t, steady.Lock(t, l, "k"))
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.exits(t, 0)
}

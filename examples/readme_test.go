package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

// aroundTheLeader is what a reader adds to the README's leader.
const aroundTheLeader = `package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

PROGRAM

func serve(ctx context.Context, number uint64) error {
	fmt.Println("leads:", number > 0)
	if err := os.Mkdir(os.Getenv("TMPDIR")+"/leads", 0o700); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	if err := run(); err != nil {
		panic(err)
	}
}
`

// TestReadmeLeads checks that the leader in README.md leads when it is copied, and gives up the lock on SIGTERM.
func TestReadmeLeads(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, code, _ := strings.Cut(string(page), "## Let one of several processes lead\n\n```go\n")
	code, _, _ = strings.Cut(code, "```")
	require.Contains(t, code, "import (", "the leader in README.md has no imports")
	s := redistest.Start(t)
	code = strings.Replace(aroundTheLeader, "PROGRAM", strings.ReplaceAll(code, "localhost:6379", s.Addr()), 1)
	source := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(source, []byte(code), 0o600))
	path := filepath.Join(t.TempDir(), "readme")
	args := slices.Concat([]string{"build", "-ldflags=-s -w", "-o", path}, buildFlags, []string{source})
	out, err := exec.Command("go", args...).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, code)

	p := launch(t, path, nil)
	require.Eventually(t, func() bool {
		_, err := os.Stat(p.env("TMPDIR") + "/leads")
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	assert.Len(t, s.Keys(t, "lock:shard-7"), 1)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.succeeds(t, "leads")
	assert.Equal(t, "leads: true\n", p.stdout.String())
	assert.Empty(t, s.Keys(t, "lock:shard-7"))
}

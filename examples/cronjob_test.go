package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/redistest"
)

// TestCronjob: the machine whose clock is ahead runs the job, although it is done long before the others come.
func TestCronjob(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	script, err := filepath.Abs("cronjob/three-machines.sh")
	require.NoError(t, err)
	var said string
	for range 5 { // half a second ahead is less than some machines stall for
		cmd := exec.CommandContext(t.Context(), script)
		cmd.Env = []string{"PATH=" + binaries + ":" + os.Getenv("PATH"), "LOCKER_URL=" + url("goredis", s), "GORACE=atexit_sleep_ms=0"}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err)
		lines := slices.Collect(strings.Lines(string(out)))
		slices.Sort(lines) // each tells of its end when it comes to it
		if said = strings.Join(lines, ""); !strings.Contains(said, "machine B: the report") && !strings.Contains(said, "machine C: the report") {
			break
		}
	}
	assert.Regexp(t, "^machine A: exit code 0\nmachine A: the report is written, with token [0-9]+\n"+
		"machine B: exit code 75\nmachine C: exit code 75\n$", said)
}

package examples_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

func TestCronjob(t *testing.T) {
	t.Parallel()
	buildModule(t, "../cmd/locker")
	s := redistest.Start(t, "--requirepass", "hunter2")
	ranByTheFirst(t, url("goredis", s), cronjob(t, url("goredis", s)))
}

func cronjob(t *testing.T, url string) *program {
	t.Helper()
	return launch(t, "examples/cronjob/three-machines.sh", []string{"LOCKER_URL=" + url})
}

// ranByTheFirst waits for the end. It checks that the machine whose clock is ahead has run the job, although the job
// was done long before the others came.
func ranByTheFirst(t *testing.T, url string, p *program) {
	t.Helper()
	for try := 1; ; try++ { // some machines stall for longer than half a second
		require.Zero(t, p.wait(t), p.stderr.String())
		if try == 5 || strings.Contains(p.stdout.String(), "machine A: exit code 0") {
			break
		}
		assert.LessOrEqual(t, strings.Count(p.stdout.String(), "exit code 0"), 1, p.stdout.String())
		p = cronjob(t, url)
	}
	lines := slices.Collect(strings.Lines(p.stdout.String()))
	slices.Sort(lines) // the machines end in any order
	assert.Regexp(t, "^machine A: exit code 0\nmachine A: the report is written, with token [0-9]+\n"+
		"machine B: exit code 75\nmachine C: exit code 75\n$", strings.Join(lines, ""))
	assert.Empty(t, p.stderr.String())
}

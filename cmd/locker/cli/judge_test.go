//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/played"
)

// logs writes audit logs to files.
func logs(t *testing.T, lines ...string) (names []string) {
	t.Helper()
	dir := t.TempDir()
	for _, log := range played.Play(t, lines...) {
		names = append(names, filepath.Join(dir, fmt.Sprintf("%d.jsonl", log.Client)))
		require.NoError(t, os.WriteFile(names[len(names)-1], []byte(log.Text), 0o600))
	}
	return names
}

func TestJudge(t *testing.T) {
	t.Parallel()
	fine := logs(t, "0-2 a lock 7 until 20", "3-4 a unlock", "5-6 b lock 8 until 30", "7 b unlock")
	broken := logs(t, "0-2 a lock 7 until 20", "2 b missing", "3-5 b lock 8 until 30")

	code, out, stderr := call(nil, append([]string{"judge"}, fine...)...)
	assert.Zero(t, code)
	assert.Equal(t, "0 findings; 2 holds were judged, of 2 processes, in 8 lines\n"+
		"Processes were not compared by their clocks: use --clock-error, with 0s for one machine\n", out)
	assert.Empty(t, stderr)

	code, out, _ = call(nil, append([]string{"judge", "--clock-error", "1ms"}, broken...)...)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "1 times, lines are missing")
	for _, text := range []string{
		`two held the lock at once (ME)`, `key "k": host-a:1 (process-a) had it from`, "with token 7; and meanwhile, for",
		"2026-11-01T00:00:00.005Z " + broken[1] + ":2 acquired, ok\n", "1 findings; 2 holds",
	} {
		assert.Contains(t, out, text)
	}

	code, out, _ = call(nil, append([]string{"judge", "--json", "--clock-error", "0s"}, broken...)...)
	assert.Equal(t, 1, code)
	v := decode[judgeJSON](t, out)
	assert.Equal(t, "ME", v.Findings[0].Rule)
	assert.Equal(t, uint64(8), v.Findings[0].Lines[1].Fence)
	assert.Equal(t, "0s", *v.ClockError)
	assert.Equal(t, 1, v.Gaps)

	late := logs(t, "0-2 a lock 7 until 20", "27 a done")
	code, out, _ = call(nil, append([]string{"judge", "--clock-error", "0s"}, late...)...)
	assert.Zero(t, code, out)
	late = logs(t, "0-2 a lock 7 until 20", "127 a done")
	code, out, _ = call(nil, append([]string{"judge", "--clock-error", "0s"}, late...)...)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "a loss was told late (DONE)")

	var lines []string
	for n := range 30 {
		lines = append(lines, fmt.Sprintf("%d-%d a lock %d until %d", 9*n, 9*n+1, n+9, 9*n+8), "1-2 b lock 99 until 999")
	}
	code, out, _ = call(nil, append([]string{"judge"}, logs(t, lines...)...)...)
	assert.Equal(t, 1, code)
	assert.Regexp(t, "(?s)and [0-9]+ more of this kind, of this key.*[0-9]{2} findings; 60 holds", out)

	apart := logs(t, "0-2 a lock 7 until 20", "3-5 b lock 8 until 600 store r", "20 a done", "150-160 a unlock notheld")
	code, out, _ = call(nil, append([]string{"judge"}, apart...)...)
	assert.Zero(t, code)
	for _, text := range []string{
		"a holder went on after it was told of its loss (WENT ON)", "called Unlock 130ms later",
		"(STORES)\n  key \"k\": it was locked in r by host-b:1 (process-b); and in s by host-a:1 (process-a)\n",
		"1 further stores",
	} {
		assert.Contains(t, out, text)
	}
	_, out, _ = call(nil, append([]string{"judge", "--json"}, apart...)...)
	assert.Len(t, decode[judgeJSON](t, out).Remarks, 2)

	none := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(none, []byte("hello\n"), 0o600))
	code, _, stderr = call(nil, "judge", none)
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "nothing to judge")
	code, _, _ = call(nil, "judge", none+"2")
	assert.Equal(t, 2, code)
	code, _, _ = call(nil, "judge")
	assert.Equal(t, 64, code)
	code, _, _ = call(nil, "judge", "--clock-error", "-1s", none)
	assert.Equal(t, 64, code)
}

// An incident: the files of the locks were deleted while a command ran, and another one began. The logs tell.
func TestAnIncidentIsFoundFromTheLogsOfRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "locks.jsonl")
	url := "file:" + dir + "?audit=" + log
	first := run(t, url, "run", "--key", "report", "--ttl", "10m", "--", "sh", "-c", "echo $$ >pid; sleep 600")
	first.pid(t, "pid")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	run(t, url, "run", "--key", "report", "--wait", "0", "--", "true").exits(t, 0)
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	<-first.done
	code, out, stderr := call(nil, "judge", "--json", "--clock-error", "0s", log)
	assert.Equal(t, 1, code, stderr)
	v := decode[judgeJSON](t, out)
	assert.Contains(t, fmt.Sprint(v.Findings), "two held the lock at once", out)
	assert.Equal(t, 2, v.Holds)
	assert.Zero(t, v.Open, out)
	assert.Len(t, v.Stores, 1)
	for line := range strings.Lines(string(must(os.ReadFile(log)))) {
		assert.True(t, json.Valid([]byte(line)), line)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

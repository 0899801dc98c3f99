// Package examples_test runs the example programs as a user would.
package examples_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

var (
	buildFlags []string // -race if the test has it
	binaries   string   // the directory of the programs
	redisURL   = "redis+%s://:hunter2@%s"
	drivers    = []string{"goredis", "redigo", "rueidis"}
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		buildFlags = nil // linking a program with the race detector takes twice as long
	}
	os.Exit(func() int {
		var err error
		if binaries, err = os.MkdirTemp("", "examples"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(binaries)
		for _, dir := range []string{"quickstart", "config", "fencing", "leader", "cron"} {
			if err := build(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		redistest.DefaultSignals()
		return m.Run()
	}())
}

// build puts the program of a directory into binaries. It is go run that copies it: the go command keeps what it links
// in order to run it, for the next time, and not what it links for go build. Nobody debugs these programs. Without
// symbols, linking them takes half the time.
func build(dir string) error {
	args := slices.Concat([]string{"run", "-C", dir, "-ldflags=-s -w"}, buildFlags,
		[]string{"-exec", "cp", ".", filepath.Join(binaries, filepath.Base(dir))})
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=") // without the workspace and flags of this module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

// program is one run of an example.
type program struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
	writes         begun  // to stdout
	warns          string // a regular expression for the first lines on stderr
}

// begun is closed when something is written to it.
type begun chan struct{}

func (b begun) Write(text []byte) (int, error) {
	select {
	case <-b:
	default:
		close(b)
	}
	return len(text), nil
}

// start starts an example. Of its environment only env matters.
func start(t *testing.T, name string, env []string, args ...string) *program {
	t.Helper()
	return launch(t, filepath.Join(binaries, name), env, args...)
}

// launch is start for a command that is not built, at the root of the repository.
func launch(t *testing.T, path string, env []string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.CommandContext(t.Context(), path, args...), writes: make(begun)}
	p.Dir, p.Env = "..", append([]string{
		"TMPDIR=" + t.TempDir(), "GORACE=atexit_sleep_ms=0",
		"PATH=" + binaries + ":" + os.Getenv("PATH"), // for scripts
	}, env...)
	p.Stdout, p.Stderr = io.MultiWriter(&p.stdout, p.writes), &p.stderr
	require.NoError(t, p.Start())
	return p
}

// env returns the value of a variable of the environment.
func (p *program) env(name string) string {
	for _, v := range p.Env {
		if value, found := strings.CutPrefix(v, name+"="); found {
			return value
		}
	}
	return ""
}

// wait waits for the end and returns the exit code.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	err := p.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	assert.NotContains(t, p.stdout.String()+p.stderr.String(), "hunter2")
	return p.ProcessState.ExitCode()
}

// succeeds waits for the end. It checks that the program succeeded, with want as its last line.
func (p *program) succeeds(t *testing.T, want string) {
	t.Helper()
	code := p.wait(t)
	require.Zero(t, code, p.stdout.String()+p.stderr.String())
	assert.Regexp(t, "^"+p.warns+"$", p.stderr.String())
	lines := strings.Split(strings.TrimSpace(p.stdout.String()), "\n")
	assert.Regexp(t, want, lines[len(lines)-1])
}

// fails waits for the end. It checks that the exit code is 1, with one line on stderr that contains want.
func (p *program) fails(t *testing.T, want string) {
	t.Helper()
	assert.Equal(t, 1, p.wait(t), p.stdout.String()+p.stderr.String())
	assert.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
	assert.Contains(t, p.stderr.String(), want)
}

func url(driver string, s *redistest.Server) string { return fmt.Sprintf(redisURL, driver, s.Addr()) }

const ok = `^ok: 40 turns, none overlapped, tokens only grew, the counter is 40$`

func TestQuickstartInMemory(t *testing.T) {
	t.Parallel()
	p := start(t, "quickstart", nil)
	p.succeeds(t, ok)
	turn := regexp.MustCompile(`(?m)^worker [1-4]  token \d+  from \d+\.\d{3}s to \d+\.\d{3}s, for \d+ms$`)
	assert.Len(t, turn.FindAllString(p.stdout.String(), -1), 40)
	left, err := filepath.Glob(p.env("TMPDIR") + "/*")
	require.NoError(t, err)
	assert.Empty(t, left, "temporary files")
}

func TestQuickstartOnRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			start(t, "quickstart", []string{"LOCKER_URL=" + url(driver, s) + "?ttl=2s&prefix=" + driver + ":"}).succeeds(t, ok)
		})
	}
}

// TestQuickstartProcesses lets one process for each driver contend for the same lock at once.
func TestQuickstartProcesses(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	journal := filepath.Join(t.TempDir(), "journal")
	var ps []*program
	for _, driver := range drivers {
		ps = append(ps, start(t, "quickstart", []string{"LOCKER_URL=" + url(driver, s), "LOCKER_JOURNAL=" + journal}))
	}
	for _, p := range ps {
		p.succeeds(t, `^ok: \d+ turns, none overlapped`)
	}
	text, err := os.ReadFile(journal)
	require.NoError(t, err)
	changes, last := 0, ""
	holders := regexp.MustCompile(`(?m)^start \d+ (\d+)/`).FindAllStringSubmatch(string(text), -1)
	assert.Len(t, holders, 120)
	for _, h := range holders {
		if h[1] != last {
			changes, last = changes+1, h[1]
		}
	}
	assert.Greater(t, changes, len(drivers), "the processes ran one after the other")
}

// TestQuickstartNoticesOverlap runs processes with different prefixes. They do not exclude each other, and the journal
// shows it.
func TestQuickstartNoticesOverlap(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	journal := filepath.Join(t.TempDir(), "journal")
	a := start(t, "quickstart", []string{"LOCKER_URL=" + url("goredis", s) + "?prefix=a:", "LOCKER_JOURNAL=" + journal})
	b := start(t, "quickstart", []string{"LOCKER_URL=" + url("redigo", s) + "?prefix=b:", "LOCKER_JOURNAL=" + journal})
	a.fails(t, "VIOLATION: "+journal)
	b.fails(t, "VIOLATION: "+journal)
}

func TestQuickstartWrongURL(t *testing.T) {
	t.Parallel()
	for u, want := range map[string]string{
		"reddis://:hunter2@h":     `unknown scheme "reddis": did you mean redis?`,
		"redis+nope://:hunter2@h": `unknown driver "nope" (known: goredis, redigo, rueidis`,
		"redis://:x/hunter2@h":    "write @ as %40",
		"memory:?ttl=10":          "ttl: a number without a unit",
	} {
		start(t, "quickstart", []string{"LOCKER_URL=" + u}).fails(t, want)
	}
}

func TestQuickstartRedisDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	s.Kill()
	for _, driver := range drivers {
		start(t, "quickstart", []string{"LOCKER_URL=" + url(driver, s)}).fails(t, s.Addr())
	}
}

func TestQuickstartInterrupted(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, driver := range drivers {
		journal := filepath.Join(t.TempDir(), "journal")
		lines := func(event string) int {
			text, _ := os.ReadFile(journal)
			return bytes.Count(text, []byte(event))
		}
		p := start(t, "quickstart", []string{"LOCKER_URL=redis+" + driver + "://" + s.Addr(), "LOCKER_JOURNAL=" + journal})
		require.Eventually(t, func() bool { return lines("start") > lines("end") && lines("end") > 2 }, 20*time.Second,
			time.Millisecond)
		begin := time.Now()
		require.NoError(t, p.Process.Signal(syscall.SIGINT))
		assert.Equal(t, 130, p.wait(t), p.stderr.String())
		assert.Less(t, time.Since(begin), 5*time.Second)
		assert.Contains(t, p.stdout.String(), "interrupted: ")
		assert.Empty(t, p.stderr.String())
		assert.Equal(t, lines("start"), lines("end"), "a turn was cut short")
		assert.Less(t, lines("end"), 40)
		assert.Zero(t, s.Cmd(t, "EXISTS", "lock:quickstart"), "the lock was left behind")
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	write := func(lines ...string) string {
		path := filepath.Join(t.TempDir(), "l.yaml")
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
		return path
	}
	ps := map[string]*program{"memory:": start(t, "config", nil)}
	for _, driver := range drivers {
		path := write("backend: redis", "ttl: 2s", "prefix: "+driver, "redis:", "  driver: "+driver,
			"  addr: "+s.Addr(), "  password: hunter2")
		ps["redis+"+driver+"://:[REDACTED]@"+s.Addr()+"?prefix="+driver+"&ttl=2s"] = start(t, "config", nil, "-config", path)
		inMemory := []string{"LOCKER_URL=memory:", "LOCKER_PREFIX=" + driver}
		ps["memory:?prefix="+driver] = start(t, "config", inMemory, "-config", path)
	}
	for from, p := range ps {
		p.succeeds(t, `^ok: 3 workers took turns, 15 in all$`)
		assert.Contains(t, p.stdout.String(), "locks from "+from+"\n")
	}
	start(t, "config", nil, "-config", write("backend: redis", "redis:", "  addr: "+s.Addr(), "  pasword: hunter2")).
		fails(t, `l.yaml:4: redis: unknown field "pasword": did you mean password?`)
}

// TestConfigComments checks that the settings that are commented out in locker.yaml are valid, too.
func TestConfigComments(t *testing.T) {
	text, err := os.ReadFile("config/locker.yaml")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "backend: memory\n")
	require.True(t, found)
	path := filepath.Join(t.TempDir(), "l.yaml")
	rest = regexp.MustCompile(`(?m)^# `).ReplaceAllString(rest, "")
	for _, backend := range []string{"redis", "redlock"} {
		require.NoError(t, os.WriteFile(path, []byte("backend: "+backend+"\n"+rest), 0o600))
		p := start(t, "config", nil, "-config", path)
		assert.Equal(t, 1, p.wait(t))
		assert.Equal(t, "config: "+backend+".password_file: file not found: /run/secrets/redis\n"+
			"config: "+backend+".tls.ca_file: file not found: /etc/ssl/redis-ca.pem\n", p.stderr.String())
	}
}

// TestFencing runs the program, which fails by itself if a late write is accepted where it must not be.
func TestFencing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	inMemory := start(t, "fencing", nil)
	onRedis := start(t, "fencing", []string{"LOCKER_URL=" + url("redigo", s)})
	account := redistest.Start(t)
	withPackage := start(t, "fencing", []string{"LOCKER_URL=" + url("goredis", s), "LOCKER_ACCOUNT=" + account.Addr()})
	inMemory.fenced(t)
	onRedis.fenced(t)
	withPackage.succeeds(t, `^ok: no late write was accepted`)
	assert.Contains(t, withPackage.stdout.String(), "8. Package fence")
	assert.Contains(t, withPackage.stdout.String(), `the fencing token is stale`)
	assert.Equal(t, "110", account.Cmd(t, "GET", "{fencing}:balance"))
}

// fenced waits for the end. It checks that late writes were refused where they had to be, and nowhere else.
func (p *program) fenced(t *testing.T) {
	t.Helper()
	p.succeeds(t, `^ok: no late write was accepted`)
	for line, times := range map[string]int{
		`Anna \(lock lost: expired\) writes 105: stale token: refused`:  3,
		`Anna \(lock lost: expired\) writes 105: accepted`:              3, // as the acts without a fence show
		`Anna does not write \(locker: verify .*: lock lost: expired\)`: 1,
		`an update is lost`: 3,
		`as it should be`:   4,
	} {
		assert.Len(t, regexp.MustCompile(line).FindAllString(p.stdout.String(), -1), times, "%s\n%s", line, p.stdout.String())
	}
}

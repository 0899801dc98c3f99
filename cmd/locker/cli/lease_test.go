//go:build unix

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
)

// pipeline has commands in one directory, with locks in files.
type pipeline struct {
	*testing.T
	dir, url string
}

func newPipeline(t *testing.T) *pipeline {
	t.Helper()
	t.Parallel()
	return &pipeline{t, t.TempDir(), "file:" + t.TempDir()}
}

func (p *pipeline) start(args ...string) *process {
	p.Helper()
	c := command(p.T, p.url, args...)
	c.Dir = p.dir
	return c.begin(p.T)
}

// exits runs a command until it ends.
func (p *pipeline) exits(code int, args ...string) *process {
	p.Helper()
	c := p.start(args...)
	c.exits(p.T, code)
	return c
}

func (p *pipeline) acquire(args ...string) {
	p.Helper()
	p.exits(0, append([]string{"acquire", "--key", "deploy", "--out", "lease"}, args...)...)
}

// held reports whether the lock is taken.
func (p *pipeline) held() bool {
	p.Helper()
	code, out, stderr := call([]string{"LOCKER_URL=" + p.url}, "inspect", "deploy", "--json")
	require.Equal(p, 0, code, stderr)
	return decode[lockJSON](p.T, out).State != "free"
}

// files lists what is in the directory.
func (p *pipeline) files() (names []string) {
	p.Helper()
	entries, err := os.ReadDir(p.dir)
	require.NoError(p, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (p *pipeline) write(name, text string) {
	p.Helper()
	require.NoError(p, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o700))
}

func (p *pipeline) read(name string) string {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	require.NoError(p, err)
	return strings.TrimSpace(string(text))
}

// The script of docs/pipelines.md runs, and each step has a greater token. Nobody else gets the lock between its steps.
func TestPipelineOfThePage(t *testing.T) {
	t.Run("files", func(t *testing.T) { pipelineOfThePage(t, newPipeline(t)) })
	t.Run("redis", func(t *testing.T) {
		p := newPipeline(t)
		_, p.url = server(t)
		pipelineOfThePage(t, p)
	})
}

func pipelineOfThePage(t *testing.T, p *pipeline) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/pipelines.md")
	require.NoError(t, err)
	_, script, found := strings.Cut(string(page), "```sh\n")
	script, _, ends := strings.Cut(script, "```\n")
	require.True(t, found && ends)
	for _, name := range []string{"migrate", "restart"} {
		p.write(name, "#!/bin/sh\nlocker run --key deploy --wait 0 -- true\n"+
			"echo $? $LOCKER_KEY $LOCKER_FENCE >"+name+".out\n")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "bin"), 0o700))
	require.NoError(t, os.Symlink(exe, filepath.Join(p.dir, "bin", "locker")))
	c := command(t, p.url)
	c.Cmd.Path, c.Cmd.Args, c.Dir = "/bin/sh", []string{"sh", "-c", script}, p.dir
	c.Env = append(c.Env, "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"), "TMPDIR="+t.TempDir())
	c.begin(t).exits(t, 0)
	first, second := strings.Fields(p.read("migrate.out")), strings.Fields(p.read("restart.out"))
	for _, of := range [][]string{first, second} {
		assert.Equal(t, []string{strconv.Itoa(exit.Held), "deploy"}, of[:2])
	}
	one, err := strconv.ParseUint(first[2], 10, 64)
	require.NoError(t, err)
	two, err := strconv.ParseUint(second[2], 10, 64)
	require.NoError(t, err)
	assert.Greater(t, two, one)
	assert.False(t, p.held())
	assert.Contains(t, c.out.String(), "released")
}

// The lease is in no other file, nobody else can read it, no command prints it, and each step writes another one.
func TestLeaseIsASecret(t *testing.T) {
	p := newPipeline(t)
	said := p.exits(0, "acquire", "--key", "deploy", "--out", "lease").err.String()
	secrets := []string{p.read("lease")}
	said += p.exits(0, "run", "--lease", "lease", "--", "env").out.String()
	secrets = append(secrets, p.read("lease"))
	assert.NotEqual(t, secrets[0], secrets[1])
	info, err := os.Stat(filepath.Join(p.dir, "lease"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	p.write("damaged", secrets[1][:40])
	said += p.exits(exit.Data, "run", "--lease", "damaged", "--", "true").err.String()
	require.NoError(t, os.Remove(filepath.Join(p.dir, "damaged")))
	said += p.exits(0, "release", "--lease", "lease", "--json").out.String()
	assert.Contains(t, said, `"released": true`)
	p.write("copy", secrets[1])
	said += p.exits(exit.Lost, "run", "--lease", "copy", "--", "true").err.String()
	for _, secret := range secrets {
		assert.NotContains(t, said, secret[20:40])
	}
	assert.Equal(t, []string{"copy"}, p.files())
}

// A lease that cannot be used says why, and starts no command.
func TestLeaseThatIsNoUse(t *testing.T) {
	p := newPipeline(t)
	refused := func(code int, says string, args ...string) {
		t.Helper()
		c := p.exits(code, append(args, "--", "touch", "started")...)
		assert.Contains(t, c.err.String(), says)
		assert.NotContains(t, p.files(), "started")
	}
	refused(exit.NoInput, "no such file", "run", "--lease", "lease")
	p.exits(exit.NoInput, "release", "--lease", "lease")
	p.write("garbage", "something else\n")
	refused(exit.Data, "does not begin like one", "run", "--lease", "garbage")
	refused(exit.Usage, "--lease is empty", "run", "--lease", "")
	refused(exit.Usage, "exclude each other", "run", "--lease", "garbage", "--key", "k")

	p.acquire()
	p.write("copy", p.read("lease"))
	refused(exit.Lost, "another store", "run", "--lease", "lease", "--url", "file:"+t.TempDir())
	refused(exit.Config, "cannot pass", "run", "--lease", "lease", "--url", "nats://127.0.0.1:1")
	runs := p.start("run", "--lease", "lease", "--", "sh", "-c", "echo >up; read x <go || sleep 60")
	runs.wrote(t, "up")
	refused(exit.Lost, "was used before", "run", "--lease", "lease")
	refused(exit.Lost, "was used before", "run", "--lease", "copy")
	p.exits(exit.Lost, "release", "--lease", "copy")
	assert.True(t, p.held())
	require.NoError(t, runs.Process.Signal(syscall.SIGTERM))
	runs.exits(t, 128+int(syscall.SIGTERM))
	assert.False(t, p.held())

	p.acquire("--ttl", "100ms")
	eventually(t, "the lock ends", func() bool { return !p.held() })
	refused(exit.Lost, "its TTL is over", "run", "--lease", "lease")
	p.exits(exit.Lost, "release", "--lease", "lease")
}

// Acquire takes no lock for a file that it cannot write, and leaves none if it cannot write the file in the end.
func TestAcquireNeedsAFile(t *testing.T) {
	p := newPipeline(t)
	p.write("exists", "mine")
	require.NoError(t, os.Symlink("/dev/null", filepath.Join(p.dir, "link")))
	for out, code := range map[string]int{
		"exists": exit.Usage, "-": exit.Usage, "/dev/stdout": exit.Usage, "/dev/null": exit.Usage, "link": exit.Usage,
		"": exit.Usage, ".": exit.Usage, "none/lease": exit.OSErr,
	} {
		c := p.exits(code, "acquire", "--key", "deploy", "--out", out)
		assert.NotContains(t, c.err.String(), "stays locked", out)
		assert.False(t, p.held(), out)
		if out == "/dev/stdout" || out == "link" {
			assert.Contains(t, c.err.String(), "an ordinary file only", out)
		}
	}
	p.exits(exit.Usage, "acquire", "--out", "lease")
	p.exits(exit.Config, "acquire", "--key", "deploy", "--out", "lease", "--url", "memory:")
	assert.Equal(t, []string{"exists", "link"}, p.files())
	assert.Equal(t, "mine", p.read("exists"))

	l, err := config.Open(t.Context(), p.url)
	require.NoError(t, err)
	defer l.Close()
	lease, err := l.Lock(t.Context(), "deploy", locker.TTL(time.Minute))
	require.NoError(t, err)
	p.exits(exit.Held, "acquire", "--key", "deploy", "--out", "lease", "--wait", "0")
	waits := p.start("acquire", "--key", "deploy", "--out", "lease")
	waits.says(t, "waiting for")
	p.write("lease", "somebody else's")
	require.NoError(t, lease.Unlock(t.Context()))
	waits.exits(t, exit.OSErr)
	assert.Contains(t, waits.err.String(), "the lock was released")
	assert.False(t, p.held())
	assert.Equal(t, "somebody else's", p.read("lease"))
	assert.Equal(t, []string{"exists", "lease", "link"}, p.files())
}

// If a step fails, is stopped or loses the lock, the lock is free, and no later step works.
func TestStepThatFails(t *testing.T) {
	p := newPipeline(t)
	const waits = "echo >up; read x <go || sleep 60"
	for name, c := range map[string]struct {
		script string
		do     func(step *process)
		code   int
	}{
		"fails":      {script: "exit 7", code: 7},
		"terminated": {waits, func(s *process) { _ = s.Process.Signal(syscall.SIGTERM) }, 128 + int(syscall.SIGTERM)},
		"Ctrl-C":     {waits, func(s *process) { _ = s.Process.Signal(syscall.SIGINT) }, 128 + int(syscall.SIGINT)},
		"no folder":  {script: "rm -rf ../gone/folder", code: exit.OSErr},
		"lost": {"trap 'exit 0' TERM; echo >up; while :; do sleep 0.3; done", func(*process) {
			p.exits(0, "release", "deploy", "--yes")
		}, exit.Lost},
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(p.dir, "gone/folder"), 0o700))
		file := filepath.Join(p.dir, "gone/folder/lease")
		p.exits(0, "acquire", "--key", "deploy", "--out", file)
		script := strings.ReplaceAll(c.script, "../gone", filepath.Join(p.dir, "gone"))
		step := p.start("run", "--lease", file, "--ttl", "6s", "--", "sh", "-c", script)
		if c.do != nil {
			step.wrote(t, "up")
			c.do(step)
		}
		step.exits(t, c.code)
		assert.False(t, p.held(), name)
		p.exits(exit.NoInput, "run", "--lease", file, "--", "true")
		_ = os.Remove(filepath.Join(p.dir, "up"))
	}
}

// A command that ends with 0 after a signal has ended well.
func TestStepThatEndsWellAfterASignal(t *testing.T) {
	p := newPipeline(t)
	p.acquire()
	step := p.start("run", "--lease", "lease", "--", "sh", "-c",
		"trap 'exit 0' TERM; echo >up; while :; do sleep 0.3; done")
	step.wrote(t, "up")
	require.NoError(t, step.Process.Signal(syscall.SIGTERM))
	step.exits(t, 0)
	p.exits(0, "release", "--lease", "lease")
	assert.False(t, p.held())
}

// kill kills a process so that it can do nothing about it.
func kill(t *testing.T, c *process) {
	t.Helper()
	require.NoError(t, c.Process.Kill())
	<-c.done
}

// Wherever the pipeline is killed, the lock ends with its TTL, for others that want it, and no later step works.
func TestPipelineIsKilledAtEachStep(t *testing.T) {
	const ttl = "1500ms"
	steps := func(p *pipeline, n int) {
		p.Helper()
		p.acquire("--ttl", ttl)
		for range n {
			p.exits(0, "run", "--lease", "lease", "--ttl", ttl, "--", "true")
		}
	}
	for name, dies := range map[string]func(p *pipeline){
		"acquire, while it waits": func(p *pipeline) {
			p.exits(0, "acquire", "--key", "deploy", "--out", "other", "--ttl", ttl)
			waits := p.start("acquire", "--key", "deploy", "--out", "lease", "--ttl", ttl)
			waits.says(p.T, "waiting for")
			kill(p.T, waits)
		},
		"after acquire":        func(p *pipeline) { steps(p, 0) },
		"after the first step": func(p *pipeline) { steps(p, 1) },
		"before the release":   func(p *pipeline) { steps(p, 2) },
		"a step": func(p *pipeline) {
			steps(p, 1)
			step := p.start("run", "--lease", "lease", "--ttl", ttl, "--", "sh", "-c", "echo $$ >pid; sleep 60")
			pid := step.pid(p.T, "pid")
			kill(p.T, step)
			gone(p.T, pid)
		},
		"a step, before its command": func(p *pipeline) {
			steps(p, 0)
			step := p.start("run", "--lease", "lease", "--ttl", ttl, "--", "sleep", "60")
			text := p.read("lease")
			eventually(p.T, "the lease is used", func() bool { return step.guards() > 0 })
			kill(p.T, step)
			assert.Equal(p, text, p.read("lease"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPipeline(t)
			dies(p)
			// Somebody else gets the lock, and has it meanwhile.
			other := p.start("run", "--key", "deploy", "--", "sh", "-c", "echo >mine; read x <go || sleep 60")
			other.wrote(t, "mine")
			late := p.start("run", "--lease", "lease", "--", "touch", "late")
			<-late.done
			assert.Contains(t, []int{exit.Lost, exit.NoInput}, late.ProcessState.ExitCode(), late.err.String())
			late = p.start("release", "--lease", "lease")
			<-late.done
			assert.Contains(t, []int{exit.Lost, exit.NoInput}, late.ProcessState.ExitCode(), late.err.String())
			assert.NotContains(t, p.files(), "late")
			assert.True(t, p.held())
			require.NoError(t, other.Process.Signal(syscall.SIGTERM))
			other.exits(t, 128+int(syscall.SIGTERM))
		})
	}
}

// guards returns how many processes p has started.
func (p *process) guards() int {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(p.Process.Pid)).Output()
	return len(strings.Fields(string(out)))
}

//go:build unix

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
)

// TestWhichSourceWins checks that the environment overrides the file, and the flags override both.
func TestWhichSourceWins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "l.yaml")
	require.NoError(t,
		os.WriteFile(file, []byte("backend: redis\nttl: 1s\nredis: {addr: from.file, password: hunter2}\n"), 0o600))
	for want, tt := range map[string]struct{ env, args []string }{
		"redis://:[REDACTED]@from.file:6379?ttl=1s": {nil, []string{"--config", file}},
		"redis://:[REDACTED]@from.file:6379?ttl=2s": {[]string{"LOCKER_TTL=2s"}, []string{"--config", file}},
		"redis://from.env:6379?ttl=2s": {[]string{"LOCKER_URL=redis://from.env", "LOCKER_TTL=2s"},
			[]string{"--config", file}},
		"redis://from.env:6379": {[]string{"LOCKER_URL=redis://from.env"}, nil},
		"redis://from.flag:6379": {[]string{"LOCKER_URL=redis://from.env", "LOCKER_TTL=2s"},
			[]string{"--url", "redis://from.flag"}},
		"memory:": {[]string{"LOCKER_BACKEND=memory"}, nil},
	} {
		code, stdout, stderr := call(tt.env, append([]string{"config", "check"}, tt.args...)...)
		assert.Zero(t, code, stderr)
		assert.Equal(t, "ok: "+want+"\n", stdout)
	}
}

// The command accepts the configuration of a program that traces its locks, although it traces nothing itself.
func TestConfigWithTracing(t *testing.T) {
	env := []string{"LOCKER_URL=memory:?tracing=true&retry=true&log=warn"}
	code, stdout, stderr := call(env, "config", "check")
	assert.Zero(t, code, stderr)
	assert.Equal(t, "ok: memory:?log=warn&retry=true&tracing=true\n", stdout)
}

func TestConfigPrintHidesPasswords(t *testing.T) {
	env := []string{"LOCKER_URL=redlock://u:hunter2@a,b,c?ttl=3s"}
	code, stdout, stderr := call(env, "config", "print")
	assert.Zero(t, code, stderr)
	assert.Equal(t, "backend: redlock\nttl: 3s\nredlock:\n  username: u\n  password: '[REDACTED]'\n  nodes:\n    - "+
		"addr: a:6379\n    - addr: b:6379\n    - addr: c:6379\n", stdout)
	_, stdout, _ = call(env, "config", "print", "--json")
	assert.NotContains(t, stdout, "hunter2")
	var c config.Config
	assert.ErrorContains(t, json.Unmarshal([]byte(stdout), &c), "this is the mask")
}

func TestConfigMistakes(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		code int
		last string // line of stderr
	}{
		"all at once": {[]string{"config", "check", "--url", "reddis://:hunter2@h?x=1"}, 78,
			"locker: 2 problems: see locker --help for the forms\n"},
		"nothing": {[]string{"config", "check"}, 78, "or use --url or --config\n"},
		"a file": {[]string{"config", "check", "--url", "redis://h?password_file=/no/such"}, 78,
			"file not found: /no/such\n"},
		"no certificate": {[]string{"config", "check", "--url", "rediss://h?tls_ca_file=/dev/null"}, 78,
			"config: redis.tls.ca_file: no PEM certificate in /dev/null\n"},
		"no file": {[]string{"config", "check", "--config", "/no/such"}, 78,
			"see locker --help for the forms\n"},
		"both": {[]string{"config", "check", "--url", "memory:", "--config", "f"}, 64,
			"use only one of them: see --help\n"},
		"slip": {[]string{"cofnig"}, 64,
			`locker: unknown command "cofnig": did you mean config?: see locker --help` + "\n"},
		"slip below": {[]string{"config", "chek"}, 64, "did you mean check?: see locker config --help\n"},
		"empty": {[]string{"config", "print", "--url", ""}, 64,
			"locker: --url is empty: see locker config print --help\n"},
		"help for what": {[]string{"help", "runn"}, 64,
			`locker: unknown command "runn": did you mean run?: see locker help --help` + "\n"},
		"help too deep": {[]string{"help", "config", "chek"}, 64, "did you mean check?: see locker help --help\n"},
		"no such shell": {[]string{"completion", "tcsh"}, 64,
			`locker: unknown command "tcsh": see locker completion --help` + "\n"},
		"no key": {[]string{"inspect"}, 64,
			"locker: no key: give the key of the lock: see locker inspect --help\n"},
		"an empty key": {[]string{"watch", ""}, 64,
			"locker: no key: give the key of the lock: see locker watch --help\n"},
		"a long key": {[]string{"inspect", strings.Repeat("k", locker.MaxKey+1)}, 64,
			"longer than 65536 bytes: see locker inspect --help\n"},
		"two keys": {[]string{"release", "a", "b"}, 64,
			"a key with spaces needs quotes: see locker release --help\n"},
		"one of several keys is empty": {[]string{"inspect", "--key", "a", "--key", ""}, 64,
			"locker: no key: give the key of the lock: see locker inspect --help\n"},
		"a key and --key": {[]string{"inspect", "--key", "a", "b"}, 64,
			"locker: unexpected argument \"b\" beside --key: see locker inspect --help\n"},
		"a reserved key": {[]string{"inspect", "{a}:lockqueue", "--url", "redis://localhost:1?prefix="}, 64,
			"are reserved for what belongs to a lock: choose another key\n"},
		"too many": {[]string{"version", "x"}, 64, "see locker version --help\n"},
		"JSON": {[]string{"--json", "--bogus"}, 64,
			`{"error":"unknown flag: --bogus","next":"see locker --help","code":64}` + "\n"},
		"JSON, not ours": {[]string{"run", "--", "x", "--json"}, 78, "or use --url or --config\n"},
	} {
		code, stdout, stderr := call(nil, tt.args...)
		assert.Equal(t, tt.code, code, name)
		assert.Empty(t, stdout, name)
		assert.True(t, strings.HasSuffix(stderr, tt.last), "%s: %s", name, stderr)
		assert.NotContains(t, stderr, "hunter2", name)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := call(nil, "version")
	assert.Zero(t, code)
	assert.Regexp(t, `^locker \S+\n(commit .*\n)?go1\S+ \S+, drivers: goredis, redigo, rueidis, valkey\n$`, stdout)
	_, short, _ := call(nil, "--version")
	assert.Equal(t, stdout, short)
	_, stdout, _ = call(nil, "version", "--json")
	var v buildInfo
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	assert.Equal(t, []string{"goredis", "redigo", "rueidis", "valkey"}, v.Drivers)
}

// TestCompletion asks the program for completions, as the shells do.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, _ := call(nil, "completion", shell)
		assert.Zero(t, code)
		assert.NotEmpty(t, stdout)
	}
	_, stdout, _ := call(nil, "__complete", "run", "--on-lost", "")
	assert.Contains(t, stdout, "notify\t")
	_, stdout, _ = call(nil, "__complete", "config", "")
	assert.Contains(t, stdout, "check\t")
}

func TestHelpHasExamplesAndExitCodes(t *testing.T) {
	code, stdout, _ := call(nil, "help", "run")
	assert.Zero(t, code)
	for _, text := range []string{"--on-lost", "LOCKER_FENCE", "Exit codes:", "Examples:", "--wait"} {
		assert.Contains(t, stdout, text)
	}
	assert.NotContains(t, stdout, "(default )")
	code, stdout, _ = call(nil, "help", "config", "check")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "locker config check")
	_, root, _ := call(nil)
	assert.Contains(t, root, "Run a command while holding a lock")
}

// slowly is a Locker that calls closed when it is closed.
type slowly struct {
	locker.Locker
	closed func()
}

func (s slowly) Close() error {
	s.closed()
	return nil
}

// said is a writer that passes on what is written.
type said chan string

func (s said) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}

// TestErrorsComeBeforeTheEnd checks that an error is printed before Close has returned. Closing can take seconds while
// servers do not answer.
func TestErrorsComeBeforeTheEnd(t *testing.T) {
	stderr := make(said, 10)
	before := ""
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: stderr}
	a.opened = append(a.opened, slowly{closed: func() {
		select {
		case before = <-stderr:
		case <-time.After(closeLimit / 2): // tells that nothing comes
		}
	}})
	assert.Equal(t, exit.Config, a.main(t.Context(), []string{"inspect", "k"}))
	assert.Contains(t, before, "or use --url or --config")
}

// The scheme of a backend from outside may begin like those of Valkey. It chooses no Redis driver.
func TestSchemeThatOnlyBeginsLikeValkey(t *testing.T) {
	config.Register("valkeyish", config.Kind[struct{}]{
		Parse: func(*struct{}, config.Location, config.Report) {},
		Open: func(context.Context, *struct{}, string) (*locker.Client, error) {
			return nil, errors.ErrUnsupported
		},
	})
	for url, want := range map[string]string{"valkey://h": "valkey", "redis://h": "", "valkeyish://h": ""} {
		c, err := config.Parse(url)
		require.NoError(t, err, url)
		assert.Equal(t, want, c.Redis.Driver, url)
	}
}

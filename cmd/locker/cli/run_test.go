//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/cmd/locker/internal/supervise"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestStreamsAreTheCommandsOwn(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := command(t, url, "run", "--key", "k", "--", "sh", "-c",
		`tr a-z A-Z; echo problem >&2; printf '<%s>' "$@"; exit 7`, "sh", "a b", "--wait", "*")
	p.Stdin = strings.NewReader("some text\n")
	p.begin(t).exits(t, 7)
	assert.Equal(t, "SOME TEXT\n<a b><--wait><*>", p.out.String(), "no shell has touched the arguments")
	assert.Equal(t, "problem\n", p.err.String())
	free(t, s, "k")
}

// TestEnvironment checks the variables of the command. The owner's token is not among them, because it would let the
// command release the lock.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	const list = `ls -l /proc/self/fd >fds`
	p := run(t, url, "run", "-k", "k", "--", "sh", "-c",
		`env >env.tmp; `+list+`; mv env.tmp env; read x <go || sleep 60`)
	env := p.wrote(t, "env")
	lines := strings.Split(env, "\n")
	assert.Contains(t, lines, "LOCKER_KEY=k")
	assert.Contains(t, lines, "LOCKER_STORE=redis")
	value := strings.Split(s.Cmd(t, "GET", "lock:k").(string), "|")
	assert.Contains(t, lines, "LOCKER_FENCE="+strings.TrimLeft(value[0], "0"))
	assert.NotContains(t, env, value[1])

	// The program that runs this test may have left files open, too.
	bare := command(t, url)
	bare.Cmd = &exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", list}, Dir: t.TempDir(), Env: bare.Env,
		Stderr: &bare.err}
	bare.begin(t).exits(t, 0)
	want, fds := bare.wrote(t, "fds"), p.wrote(t, "fds")
	assert.Equal(t, strings.Count(want, "pipe:")+1, strings.Count(fds, "pipe:"),
		"LOCKER_FD is the one file more: %s\n%s", want, fds)
	assert.Equal(t, strings.Count(want, "socket:"), strings.Count(fds, "socket:"), "connections are not the command's")
}

// The variables of systemd that name the process that it has started name the command. Those that name another one
// stay. Files of the socket activation are the command's, too.
func TestVariablesOfSystemdNameTheCommand(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	for _, do := range []string{"run", "elect"} {
		p := command(t, url)
		args := []string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 WATCHDOG_PID=$$ OTHER_PID=$$ exec "$0" "$@" 3<"$0"`, p.Path,
			do, "-k", do, "--", "sh", "-c", `echo "$LISTEN_PID $WATCHDOG_PID" >pids; echo $$ >own; echo "$OTHER_PID" >other
				echo $LISTEN_FDS $(readlink /proc/self/fd/3) "$*" >rest; sleep 60`, "sh", "a b", "c"}
		p.Cmd.Path, p.Cmd.Args = "/bin/sh", args
		p.begin(t)
		own, holder := p.wrote(t, "own"), strconv.Itoa(p.Process.Pid)
		assert.Equal(t, own+" "+own, p.wrote(t, "pids"))
		assert.Equal(t, holder, p.wrote(t, "other"))
		assert.Equal(t, "1 "+args[3]+" a b c", p.wrote(t, "rest"))
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		p.exits(t, exit.Signal+int(syscall.SIGTERM))
	}
	p := command(t, url, "run", "-k", "k", "--", "sh", "-c", `echo "$LISTEN_PID" >pid; exit 3`)
	p.Env = append(p.Env, "LISTEN_PID=1")
	p.begin(t).exits(t, 3)
	assert.Equal(t, "1", p.wrote(t, "pid"))
}

// TestSeveralKeys checks that a command runs under all locks, and does not start if one is held.
func TestSeveralKeys(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "run", "-k", "b", "--key", "a", "-k", "b", "--", "sh", "-c",
		`printf '%s\n%s\n' "$LOCKER_KEY" "$LOCKER_FENCE" >env.tmp; mv env.tmp env; read x <go || sleep 60`)
	lines := strings.Split(p.wrote(t, "env"), "\n")
	want := []string{"a", "b"}
	for _, key := range []string{"a", "b"} {
		value := strings.Split(s.Cmd(t, "GET", "lock:"+key).(string), "|")
		want = append(want, strings.TrimLeft(value[0], "0"))
	}
	assert.Equal(t, want, lines)
	other := run(t, url, "run", "-k", "c", "-k", "b", "--wait", "0", "--", "true")
	other.exits(t, exit.Held)
	assert.Contains(t, other.err.String(), `"b"`)
	free(t, s, "c")
	run(t, url, "run", "-k", "a", "-k", "", "--", "true").exits(t, exit.Usage)
}

// TestPermits checks that as many commands run as the key has permits, each with a number of its own, and that inspect
// shows them.
func TestPermits(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	permits := func(args ...string) *process {
		return run(t, url, append([]string{"run", "-k", "export", "--permits", "3", "--wait", "0"}, args...)...)
	}
	const waits = `echo "$LOCKER_SLOT" >slot.tmp; mv slot.tmp slot; read x <go || sleep 60`
	one := permits("--", "sh", "-c", waits).wrote(t, "slot")
	two := permits("--weight", "2", "--", "sh", "-c", waits).wrote(t, "slot")
	assert.Equal(t, []string{"0", "1", "2"}, slices.Sorted(slices.Values(strings.Fields(one+" "+two))))
	fourth := permits("--", "true")
	fourth.exits(t, exit.Held)
	assert.Contains(t, fourth.err.String(), "all 3 permits are held, one of them by ")
	code, out, _ := call([]string{"LOCKER_URL=" + url}, "inspect", "export", "--permits", "3")
	assert.Zero(t, code)
	assert.Contains(t, out, "{export}#permits")
	assert.Equal(t, 1+2, strings.Count(out, "held"), out) // of the group, and of both holders
	assert.Regexp(t, `(?m)^(0–1|1–2) +held`, out)
	free(t, s, "export") // other keys are other locks
	for _, wrong := range [][]string{
		{"--permits", "0"}, {"--permits", "5000"}, {"--weight", "2"}, {"--permits", "2", "--weight", "3"},
		{"--permits", "2", "-k", "another"},
	} {
		run(t, url, append(append([]string{"run", "-k", "k"}, wrong...), "--", "true")...).exits(t, exit.Usage)
	}
}

// TestShared checks that readers run beside each other, and beside no writer, and that inspect shows them.
func TestShared(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	const waits = `echo runs >runs; read x <go || sleep 60`
	readers := []*process{
		run(t, url, "run", "-k", "config", "--shared", "--", "sh", "-c", waits),
		run(t, url, "run", "-k", "config", "--shared", "--", "sh", "-c", waits),
	}
	for _, p := range readers {
		p.wrote(t, "runs")
	}
	run(t, url, "run", "-k", "config", "--exclusive", "--wait", "0", "--", "true").exits(t, exit.Held)
	code, out, _ := call([]string{"LOCKER_URL=" + url}, "inspect", "config", "--shared")
	assert.Zero(t, code)
	assert.Equal(t, 2, strings.Count(out, "shared  held"), out)
	run(t, url, "run", "-k", "other", "--exclusive", "--wait", "0", "--", "true").exits(t, 0)
	run(t, url, "run", "-k", "k", "--exclusive", "--shared", "--", "true").exits(t, exit.Usage)
}

// TestInheritedFilesAreLeftAlone checks that files which run has inherited keep their numbers. The command knows these
// numbers, as of a job server of make, or of a socket of systemd.
func TestInheritedFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	p := command(t, url, "run", "-k", "k", "--", "sh", "-c", `cat <&3; cat <&4; echo "$LOCKER_FD"`)
	for _, text := range []string{"three ", "four "} {
		require.NoError(t, os.WriteFile(p.file(text), []byte(text), 0o600))
		f, err := os.Open(p.file(text))
		require.NoError(t, err)
		defer f.Close()
		p.ExtraFiles = append(p.ExtraFiles, f)
	}
	p.begin(t).exits(t, 0)
	assert.Regexp(t, `^three four \d+\n$`, p.out.String())
}

// TestExitCodesStay checks the codes by their numbers, which scripts of users have. The other tests have the names.
func TestExitCodesStay(t *testing.T) {
	for code, want := range map[int]int{
		exitWarn: 1, exitFail: 2, // of doctor
		exit.Usage: 64, exit.Data: 65, exit.Unavailable: 69, exit.Software: 70, exit.OSErr: 71, exit.Held: 75,
		exit.Config: 78, exit.Lost: 79, exit.NotRunnable: 126, exit.NotFound: 127, exit.Signal: 128,
	} {
		assert.Equal(t, want, code)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	s.Cmd(t, "SET", "lock:held", "somebody", "PX", time.Hour.Milliseconds()) // longer than any machine needs for this test
	s.Cmd(t, "RPUSH", "lock:list", "x")
	secret := redistest.Start(t, "--requirepass", "other")
	dead := redistest.Start(t)
	dead.Kill()
	notExecutable := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(notExecutable, []byte("#!/bin/sh\n"), 0o600))
	noInterpreter := t.TempDir() + "/script"
	require.NoError(t, os.WriteFile(noInterpreter, []byte("#!/no/such\n"), 0o700))
	sh := func(script string) []string { return []string{"-k", "k", "--", "sh", "-c", script} }
	for name, tt := range map[string]struct {
		url  string
		args []string
		code int
		says string // part of a line of stderr; empty: stderr is empty
	}{
		"all is well":          {url, sh("exit 0"), 0, ""},
		"the command's":        {url, sh("exit 75"), 75, ""},
		"the command's, large": {url, sh("exit 255"), 255, ""},
		"killed":               {url, sh("kill -9 $$"), 128 + 9, ""},
		"terminated":           {url, sh("kill $$"), 128 + 15, ""},
		"held": {url, []string{"-k", "held", "--wait", "0", "--", "true"}, 75,
			`trylock "held": held by another owner for `},
		"held, quietly": {url, []string{"-k", "held", "--wait", "0", "-q", "--", "true"}, 75, ""},
		"held for too long": {url, []string{"-k", "held", "--wait", "3s", "--", "true"}, 75,
			"wait longer with --wait"},
		"not a lock": {url, []string{"-k", "list", "--", "true"}, 65, "choose another key"},
		"server down": {"redis://" + dead.Addr(), []string{"-k", "k", "--", "true"}, 69,
			"start redis-server"},
		"no quorum": {"redlock://" + dead.Addr() + "," + s.Addr() + ",localhost:1",
			[]string{"-k", "k", "--wait", "0", "--", "true"}, 69, dead.Addr()},
		"wrong password": {"redis://:hunter2@" + secret.Addr(), []string{"-k", "k", "--", "true"}, 69,
			"WRONGPASS"},
		"no command": {url, []string{"-k", "k"}, 64, "no command: give it after --"},
		"no key":     {url, []string{"--", "true"}, 64, "--key"},
		// The two dashes after the command belong to the command.
		"something before --": {url, []string{"-k", "k", "true", "--", "true"}, 0, ""},
		"unknown flag":        {url, []string{"-k", "k", "--bogus", "--", "true"}, 64, "unknown flag: --bogus"},
		"flag of the command": {url, []string{"-k", "k", "sh", "-c", "exit 3"}, 3, ""},
		"wait for what":       {url, []string{"-k", "k", "--wait", "30", "--", "true"}, 64, "use 30s, 0 or forever"},
		"a TTL of a month":    {url, []string{"-k", "k", "--ttl", "720h", "--", "true"}, 64, "--ttl 720h0m0s"},
		"a TTL of the URL": {url + "?ttl=4s", []string{"-k", "k", "--grace", "3s", "--", "true"}, 64,
			"half of the TTL of 4s"},
		"grace over max-hold": {url, []string{"-k", "k", "--max-hold", "1s", "--grace", "1s", "--", "true"}, 64,
			"not less than --max-hold"},
		"grace before 0": {url, []string{"-k", "k", "--grace", "-1s", "--", "true"}, 64,
			"--grace -1s: it is 0 or more"},
		"on-lost what": {url, []string{"-k", "k", "--on-lost", "cry", "--", "true"}, 64,
			"term, kill or notify"},
		"no configuration":    {"", []string{"-k", "k", "--", "true"}, 78, "set LOCKER_URL"},
		"bad configuration":   {"reddis://h", []string{"-k", "k", "--", "true"}, 78, "did you mean redis?"},
		"not executable":      {url, []string{"-k", "k", "--", notExecutable}, 126, "permission denied"},
		"a directory":         {url, []string{"-k", "k", "--", "/"}, 126, "is it executable?"},
		"no such command":     {url, []string{"-k", "k", "--", "no-such-command"}, 127, "look at PATH"},
		"no such file":        {url, []string{"-k", "k", "--", "/no/such"}, 127, "/no/such"},
		"no such interpreter": {url, []string{"-k", "k", "--", noInterpreter}, 127, noInterpreter},
		// A command that cannot be executed is reported without waiting for the lock.
		"held, not executable": {url, []string{"-k", "held", "--", notExecutable}, 126, "permission denied"},
		"server down, no such": {"redis://" + dead.Addr(), []string{"-k", "k", "--", "no-such-command"}, 127,
			"look at PATH"},
		"released after a fail": {url, []string{"-k", "k", "--wait", "0", "--", "true"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := strings.ReplaceAll(name, " ", "-")
			args := append([]string{"run"}, tt.args...)
			if args[2] == "k" {
				args[2] = key
			}
			var code int
			var stdout, stderr string
			if tt.says == "" || tt.code >= 126 {
				p := run(t, tt.url, args...)
				p.exits(t, tt.code)
				code, stdout, stderr = tt.code, p.out.String(), p.err.String()
			} else { // what fails before the command is to begin needs no process
				code, stdout, stderr = call([]string{"LOCKER_URL=" + tt.url}, args...)
			}
			assert.Equal(t, tt.code, code, stderr)
			assert.Empty(t, stdout)
			assert.NotContains(t, stderr, "hunter2")
			if tt.says == "" {
				assert.Empty(t, stderr)
				free(t, s, key)
			} else {
				assert.Contains(t, stderr, tt.says)
				lines := strings.Split(strings.TrimSpace(stderr), "\n")
				assert.True(t, strings.HasPrefix(lines[len(lines)-1], "locker: "), stderr)
			}
		})
	}
}

func TestErrorsAsJSON(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	s.Cmd(t, "SET", "lock:held", "somebody", "PX", 60_000)
	p := run(t, url, "run", "-k", "held", "--wait", "0", "--json", "--", "true")
	p.exits(t, 75)
	var e struct {
		Error, Next string
		Code        int
	}
	require.NoError(t, json.Unmarshal([]byte(p.err.String()), &e), p.err.String())
	assert.Contains(t, e.Error, "held by another owner")
	assert.NotEmpty(t, e.Next)
	assert.Equal(t, 75, e.Code)
}

// TestCronTick runs the same tick on two machines. The first has finished the job before the second asks for the lock.
func TestCronTick(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	for tick := range 5 {
		key := fmt.Sprintf("tick-%d", tick)
		var ps [2]*process
		for i := range ps {
			ps[i] = run(t, url, "run", "-k", key, "--wait", "0", "--min-hold", "1m", "--", "sh", "-c", "echo ran")
		}
		ran := ""
		for _, p := range ps {
			<-p.done
			ran += p.out.String() + fmt.Sprint(p.ProcessState.ExitCode(), ";")
		}
		assert.Contains(t, []string{"ran\n0;75;", "75;ran\n0;"}, ran)
		left, ok := s.Cmd(t, "PTTL", "lock:"+key).(int64)
		require.True(t, ok)
		assert.Greater(t, left, int64(20_000), "min-hold lasts longer than the command and the process")
	}
}

func TestGraceFitsIntoTheLease(t *testing.T) {
	for _, tt := range []struct{ ttl, configured, maxHold, grace, want, validity time.Duration }{
		{grace: -1, want: 5 * time.Second, validity: 30 * time.Second},
		{ttl: 6 * time.Second, grace: -1, want: 2 * time.Second, validity: 6 * time.Second},
		{configured: 9 * time.Second, grace: -1, want: 3 * time.Second, validity: 9 * time.Second},
		{ttl: 6 * time.Second, configured: 9 * time.Second, grace: 3 * time.Second, want: 3 * time.Second,
			validity: 6 * time.Second},
		{maxHold: 4 * time.Second, grace: -1, want: 2 * time.Second, validity: 30 * time.Second},
		{grace: 0, want: 0, validity: 30 * time.Second},
	} {
		o := &runOptions{ttl: tt.ttl, Options: supervise.Options{MaxHold: tt.maxHold, Grace: tt.grace}}
		require.NoError(t, o.checkTTL(tt.configured))
		assert.Equal(t, tt.want, o.Grace)
		assert.Equal(t, tt.validity, o.Validity)
		// When a renewal begins, two thirds of the TTL are left. The renewal is given up after a sixth of it. The
		// command gets no signal before that.
		assert.Less(t, o.Grace+o.Margin(), tt.validity*2/3-tt.validity/100-2*time.Millisecond)
	}
	o := &runOptions{wait: "forever", Options: supervise.Options{
		Keys: []string{"k"}, OnLost: "term", Grace: -1, Args: []string{"sh"},
	}}
	require.NoError(t, o.check(&config.Config{Backend: "memory"}))
	assert.Negative(t, o.MaxWait)
}

//go:build unix

package cli

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the output of the commands in docs/cli.md anew")

// TestDocs runs the commands in the checked part of docs/cli.md and compares their output with the page. Addresses,
// tokens, times and the server differ from run to run, so they are not compared.
func TestDocs(t *testing.T) {
	t.Parallel()
	const path = "../../../docs/cli.md"
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, begins := strings.Cut(string(page), "<!-- checked: ")
	text, after, ends := strings.Cut(rest, "<!-- to here -->")
	require.True(t, begins && ends, "%s has no part to be checked", path)
	d := &doc{t: t}
	blocks := regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	got := blocks.ReplaceAllStringFunc(text, func(block string) string {
		return "```console\n" + d.run(blocks.FindStringSubmatch(block)[1]) + "```"
	})
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+"<!-- checked: "+got+"<!-- to here -->"+after), 0o600))
		return
	}
	assert.Equal(t, normal(text), normal(got))
}

// doc runs the commands of a document, one after another.
type doc struct {
	t      *testing.T
	url    string
	holder *process // of the lock
}

// run returns a block with the output of its commands.
func (d *doc) run(block string) string {
	var b strings.Builder
	for line := range strings.Lines(block) {
		words, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if !ok {
			continue // output of an earlier run
		}
		b.WriteString("$ " + words + "\n")
		inBackground, ok := strings.CutSuffix(words, " &")
		if !ok && strings.HasPrefix(words, "locker watch ") {
			b.WriteString(d.watch(words))
			continue
		}
		if !ok {
			b.WriteString(d.output(words))
			continue
		}
		p := command(d.t, d.url, strings.Fields(inBackground)[1:]...)
		p.Env = append(p.Env, d.slowMachine()...)
		p.begin(d.t)
		if strings.Contains(line, " dev ") {
			p.says(d.t, "Ctrl-C")
			eventually(d.t, "it says where", func() bool { return strings.HasSuffix(p.out.String(), "\n") })
			d.url = strings.TrimPrefix(strings.TrimSpace(p.out.String()), "export LOCKER_URL=")
			b.WriteString(p.out.String() + p.err.String())
			continue
		}
		d.holder = p
		eventually(d.t, "it has the lock",
			func() bool { return strings.Contains(d.output("locker inspect demo"), "held") })
	}
	return b.String()
}

// watch runs locker watch until it has shown that the lock is free, and then sends it a Ctrl-C. The holder gets its
// SIGTERM only after watch has shown it.
func (d *doc) watch(words string) string {
	p := command(d.t, d.url, strings.Fields(words)[1:]...)
	p.Env = append(p.Env, d.slowMachine()...)
	p.begin(d.t)
	eventually(d.t, "it shows the holder", func() bool { return strings.Contains(p.out.String(), " held ") })
	require.NoError(d.t, d.holder.Process.Signal(syscall.SIGTERM))
	eventually(d.t, "it shows that the lock is free",
		func() bool { return strings.HasSuffix(p.out.String(), " free\n") })
	require.NoError(d.t, p.Process.Signal(os.Interrupt))
	p.exits(d.t, 0)
	return p.out.String() + "^C\n"
}

// slowMachine returns settings with which a command succeeds even if the machine is busy with other tests. The commands
// before locker dev contact no server and get none.
func (d *doc) slowMachine() []string {
	if *update || d.url == "" {
		return nil
	}
	return []string{"LOCKER_REDLOCK_BUDGET=2m", "LOCKER_TTL=10m"}
}

func (d *doc) output(command string) string {
	exe, err := os.Executable()
	require.NoError(d.t, err)
	dir := d.t.TempDir()
	require.NoError(d.t, os.Symlink(exe, dir+"/locker"))
	sh := exec.Command("bash", "-c", command)
	sh.Env = []string{asLocker + "=1", "GOGC=400", "GORACE=atexit_sleep_ms=0", "PATH=" + dir + ":" + os.Getenv("PATH"),
		"LOCKER_URL=" + d.url}
	sh.Env = append(sh.Env, d.slowMachine()...)
	out, _ := sh.CombinedOutput() // some of the commands are meant to fail
	return string(out)
}

// normal replaces the parts of a text that differ from run to run.
func normal(text string) string {
	for _, r := range []struct{ pattern, by string }{
		{`(?ms)^(locker: )?export LOCKER_URL=\S+$`, "export LOCKER_URL=URL"},
		{`(version +)(Redis|Valkey|Redict) [0-9.]+`, "${1}SERVER"},
		{`(127\.0\.0\.1|localhost):\d+`, "ADDR"},
		{`[A-Za-z0-9_-]{8}…`, "TOKEN…"},
		{`"owner": "[^"]*"`, `"owner": TOKEN`},
		{`run_id \w+`, "run_id ID"},
		{`\b(held by|from) [\w.-]+:\d+`, "$1 LABEL"},
		{`"label": "[^"]*"`, `"label": LABEL`},
		{`\d+(\.\d+)?( ?(µs|ms|s)\b|m\d+s)?`, "#"},
		{` +`, " "},
		// Less is known of a node before its answer, or before the first renewal.
		{`(?m)^ADDR (free|held) .*$`, "ADDR as it may be"},
		{`the bound is #, `, ""},
		{`(?m)^# checks: .*$`, "checks"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.by)
	}
	return text
}

//go:build unix

package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// leaderScript is a command that appends its term to a file, and runs until SIGTERM.
const leaderScript = `trap 'echo "$LOCKER_FENCE ends" >>terms; exit 3' TERM
	echo "$LOCKER_FENCE" >>terms
	while :; do sleep 0.1; done`

// terms waits until the command has been started n times, and returns the numbers of its terms.
func (p *process) terms(t *testing.T, n int) (terms []int) {
	t.Helper()
	eventually(t, "the command is started "+strconv.Itoa(n)+" times", func() bool {
		terms = nil
		text, _ := os.ReadFile(p.file("terms"))
		for line := range strings.Lines(string(text)) {
			if term, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && strings.HasSuffix(line, "\n") {
				terms = append(terms, term)
			}
		}
		return len(terms) >= n
	})
	return terms
}

// Two candidates: the first is told to end, and the second leads. Each says who leads.
func TestElectHandsOn(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	elect := func() *process { return run(t, url, "elect", "-k", "k", "--", "sh", "-c", leaderScript) }
	first := elect()
	one := first.terms(t, 1)[0]
	label := func(p *process) string {
		host, err := os.Hostname()
		require.NoError(t, err)
		return host + ":" + strconv.Itoa(p.Process.Pid)
	}
	first.says(t, label(first)+` leads "k", in term `+strconv.Itoa(one))
	second := elect()
	second.says(t, label(first)+` leads "k", in term `+strconv.Itoa(one))
	second.notWritten(t, "terms")

	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	first.exits(t, 3)
	text, err := os.ReadFile(first.file("terms"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "ends", "the command has had SIGTERM")
	two := second.terms(t, 1)[0]
	assert.Greater(t, two, one)
	second.says(t, label(second)+` leads "k", in term `+strconv.Itoa(two))
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	second.exits(t, 3)
	free(t, s, "k")
}

// The lock is taken away, which the next renewal notices. The command is stopped, and started again in the next term.
func TestElectGoesOnAfterALoss(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "elect", "-k", "k", "--ttl", "6s", "--", "sh", "-c", leaderScript)
	p.terms(t, 1)
	s.Cmd(t, "DEL", "lock:k")
	terms := p.terms(t, 2)
	assert.Greater(t, terms[1], terms[0])
	p.says(t, "waiting to lead again")
	text, err := os.ReadFile(p.file("terms"))
	require.NoError(t, err)
	assert.Regexp(t, `^\d+\n\d+ ends\n\d+\n$`, string(text), "never two at once")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.exits(t, 3)
}

// A command that ends by itself is started again in a term of its own.
func TestElectStartsTheCommandAnew(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "elect", "-k", "k", "--", "sh", "-c", `echo "$LOCKER_FENCE" >>terms; exit 7`)
	terms := p.terms(t, 3)
	assert.Greater(t, terms[2], terms[1])
	p.says(t, "exit code 7")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
	case <-t.Context().Done():
	}
	assert.Contains(t, []int{7, 128 + 15}, p.ProcessState.ExitCode())
	free(t, s, "k")
}

// With --permits, several candidates lead, each with a number of its own, and the next one gets the number of the one
// that ends.
func TestElectWithSeveralLeaders(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	elect := func() *process {
		return run(t, url, "elect", "-k", "k", "--permits", "2", "--", "sh", "-c", `trap 'exit 3' TERM
			echo "$LOCKER_SLOT" >slot.tmp; mv slot.tmp slot
			while :; do sleep 0.1; done`)
	}
	leads := func(p *process) (slot string) {
		slot = p.wrote(t, "slot")
		p.says(t, `this machine leads "k", in term `)
		p.says(t, ", with permit "+slot+"\n")
		return slot
	}
	first, second := elect(), elect()
	one, two := leads(first), leads(second)
	assert.ElementsMatch(t, []string{"0", "1"}, []string{one, two})
	third := elect()
	eventually(t, "the third waits", func() bool { return s.Cmd(t, "EXISTS", "lock:{k}#permits:lockqueue:t") == int64(1) })
	third.notWritten(t, "slot")
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	first.exits(t, 3)
	assert.Equal(t, one, leads(third))
	for _, p := range []*process{second, third} {
		assert.NotContains(t, p.err.String(), "not known who leads")
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		p.exits(t, 3)
	}
	run(t, url, "elect", "-k", "k", "--permits", "0", "--", "true").exits(t, exit.Usage)
}

// A signal ends a candidate that waits, and a mistake ends it at once.
func TestElectEnds(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	s.Cmd(t, "SET", "lock:k", "somebody", "PX", 60_000)
	p := run(t, url, "elect", "-k", "k", "--", "true")
	p.says(t, `leads "k"`)
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.exits(t, 128+2)
	s.Cmd(t, "RPUSH", "lock:list", "x")
	run(t, url, "elect", "-k", "list", "--", "true").exits(t, 65)
	p = run(t, strings.Replace(url, "//", "//nobody:wrong@", 1), "elect", "-k", "k", "--", "true")
	p.says(t, `check the password of user "nobody"`)
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.exits(t, 128+2)
	run(t, url, "elect", "-k", "k").exits(t, 64)
	run(t, url, "elect", "--", "true").exits(t, 64)
	run(t, url, "elect", "-k", "k", "--", "no-such-command").exits(t, 127)
}

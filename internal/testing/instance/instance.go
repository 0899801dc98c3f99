// Package instance makes a test binary play instances of a program: processes of their own, which tests lead step by
// step, stop, and kill.
//
// A package that uses it has a TestMain that calls Main first.
package instance

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// env contains the arguments of an instance. A test binary without it runs tests.
const env = "LOCKER_TEST_INSTANCE"

// separator is between the arguments.
const separator = "\x1f"

// Main calls play and exits, if the process is an instance. Otherwise it returns. What play returns as an error is
// printed as a line that begins with "error: ".
func Main(play func(me *Self, args []string) error) {
	args, ok := os.LookupEnv(env)
	if !ok {
		return
	}
	me := &Self{bufio.NewReader(os.Stdin)}
	if err := play(me, strings.Split(args, separator)); err != nil {
		me.Say("error: %v", err)
	}
	os.Exit(0)
}

// Self is what an instance knows of its test.
type Self struct{ in *bufio.Reader }

// Say prints a line for the test.
func (*Self) Say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Ask prints a line and waits until the test calls GoOn. It returns at once if the test is over.
func (s *Self) Ask(format string, args ...any) {
	s.Say(format, args...)
	_, _ = s.in.ReadString('\n')
}

// Process is an instance, as its test sees it.
type Process struct {
	*testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	lines *bufio.Scanner
	seen  []string
}

// Start starts an instance with args, which must not contain newlines. It is killed at the end of the test, and after
// two minutes, also if it is stopped. What it prints to stderr goes to that of the test.
func Start(t *testing.T, args ...string) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, os.Args[0]) //nolint:gosec // it is this test binary
	cmd.Env = append(os.Environ(), env+"="+strings.Join(args, separator), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{T: t, cmd: cmd, stdin: in, lines: bufio.NewScanner(out)}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return p
}

// Says waits for a line that begins with text, passes over others, and returns the rest of it. The test fails if the
// instance ends before it has said that.
func (p *Process) Says(text string) string {
	p.Helper()
	for {
		line, ok := p.Line()
		if !ok {
			p.Fatalf("the instance has not said %q, but: %q", text, p.seen)
		}
		if rest, ok := strings.CutPrefix(line, text); ok {
			return rest
		}
	}
}

// Line waits for the next line. It returns false at the end of the instance.
func (p *Process) Line() (string, bool) {
	if !p.lines.Scan() {
		return "", false
	}
	p.seen = append(p.seen, p.lines.Text())
	return p.lines.Text(), true
}

// GoOn makes the instance return from Ask.
func (p *Process) GoOn() { _, _ = io.WriteString(p.stdin, "\n") }

// Signal sends a signal to the instance.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill kills the instance, and waits until it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

// Wait waits until the instance has ended by itself. The test fails if it has ended otherwise.
func (p *Process) Wait() {
	p.Helper()
	if err := p.cmd.Wait(); err != nil {
		p.Errorf("the instance: %v", err)
	}
}

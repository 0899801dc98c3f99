package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/trials/history"
)

// planEnv is a variable that makes the test binary a player in a process of its own.
const planEnv = "FAULTS_TEST_PLAN"

// account is the report of a player at its end.
type account struct {
	Client int
	Lines  string // of its log, if it has been in a process of its own; all have the clock of the machine
	Wrong  int64
	Stall  time.Duration
	Err    string
}

// playChild is the main function of the other process. It executes each line of stdin and answers it with a line. It
// ends when stdin ends.
func playChild() {
	var p player
	fail := func(err error) {
		if err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv(planEnv)), &p.plan))
	r, err := dialResource(p.Resource)
	fail(err)
	fail(p.start(history.New(), r))
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "finish":
			p.finish()
			fail(out.Encode("finished"))
		case "close":
			a := p.settle()
			p.history.Wait()
			a.Client, a.Lines = p.ID, p.history.Lines()
			fail(out.Encode(a))
			return
		}
	}
}

// process is a player in another process.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Write([]byte) (int, error) }
	out *json.Decoder
}

func startChild(t *testing.T, p plan) *process {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	c := &process{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), planEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	leash, err := child.NewLeash(c.cmd.Process.Pid, "")
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		if err == nil {
			leash.Off()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, json.NewDecoder(bufio.NewReader(out))
	return c
}

func (c *process) signal(sig syscall.Signal) { _ = c.cmd.Process.Signal(sig) }

// tell sends a line. read reads the answer to it. They are two methods so that several children can work concurrently.
func (c *process) tell(line string) { _, _ = c.in.Write([]byte(line + "\n")) }

func (c *process) read(answer any) {
	c.t.Helper()
	// A child that hangs is killed, so that the test ends with its own failure.
	t := time.AfterFunc(hangLimit, func() { _ = c.cmd.Process.Kill() })
	defer t.Stop()
	if err := c.out.Decode(answer); err != nil {
		c.t.Fatalf("a player's process has not answered within %v: %v", hangLimit, err)
	}
}

//go:build unix

package child

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asParent is a variable that makes the test binary a program that starts children without end.
const asParent = "TEST_AS_PARENT"

func TestMain(m *testing.M) {
	if mark := os.Getenv(asParent); mark != "" {
		for {
			if _, err := Spawn("tail", "", nil, []string{"-f", mark}); err != nil {
				panic(err)
			}
			fmt.Println()
		}
	}
	goleak.VerifyTestMain(m)
}

// TestChildrenEndWithTheirParent kills a parent at any moment, also between the start of a child and the start of its
// watcher.
func TestChildrenEndWithTheirParent(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), asParent+"="+mark, "GORACE=atexit_sleep_ms=0")
		out, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it has started one child and starts the next
			t.Error(err)
		}
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		_ = parent.Process.Kill()
		_ = parent.Wait()
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := running(t, mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			for _, pid := range left {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			t.Fatalf("still running: %v", left)
		}
	}
}

// A process of the child that is stopped goes on when the watcher has killed the child, so that it can end, too.
func TestStoppedProcessesOfAChildGoOn(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	parent := exec.Command("/bin/sh", "-c", `/bin/sh -c 'kill -STOP $$; : >"$0"' "$0" & wait`, mark)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := func() bool {
		out, _ := exec.Command("ps", "-o", "stat=", "--ppid", strconv.Itoa(parent.Process.Pid)).Output()
		return bytes.HasPrefix(out, []byte("T"))
	}
	until(t, "the process is stopped", stopped)
	l, err := NewLeash(parent.Process.Pid, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.stdin.Close()
	_ = l.watcher.Wait()
	_ = parent.Wait()
	until(t, "the process goes on", func() bool {
		_, err := os.Stat(mark)
		return err == nil
	})
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// running lists the processes with arg among their arguments.
func running(t *testing.T, arg string) (pids []int) {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(out) {
		if strings.Contains(string(line), arg) {
			pid, err := strconv.Atoi(strings.Fields(string(line))[0])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

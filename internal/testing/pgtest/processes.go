package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// children sends a signal to the processes of the server's connections and of its background work, and returns their
// IDs. Call with mu held.
func (s *Server) children(sig syscall.Signal) (pids []int) {
	out, _ := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(s.proc.Pid())).Output()
	for _, field := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(field); err == nil {
			_ = syscall.Kill(pid, sig)
			pids = append(pids, pid)
		}
	}
	return pids
}

// Kill ends the server at once (SIGKILL), with all its processes. Killing a dead server has no effect.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return
	}
	s.proc.Signal(syscall.SIGSTOP) // so that it starts no more processes
	dying := s.children(syscall.SIGKILL)
	s.proc.Kill()
	// A server that is started again refuses to while one of them still has the shared memory.
	for end := time.Now().Add(10 * time.Second); slices.ContainsFunc(dying, lives) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	s.proc, s.paused = nil, false
}

// lives reports whether a process has not ended. One that has ended may be a zombie.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

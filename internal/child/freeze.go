//go:build unix

package child

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// freezeTimeout bounds Freeze.
const freezeTimeout = 30 * time.Second

// Freeze stops the child (SIGSTOP). It returns when all threads of the child have stopped, which can take a while on a
// busy machine: until then, threads that have not seen the signal go on.
func (p *Process) Freeze() {
	p.Signal(syscall.SIGSTOP)
	for end := time.Now().Add(freezeTimeout); stillRuns(p.Pid()) && time.Now().Before(end); {
		<-time.After(time.Millisecond)
	}
}

// stillRuns reports whether a thread of the process runs. It knows only of Linux, and says no elsewhere.
func stillRuns(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if _, rest, ok := strings.Cut(string(text), ") "); err == nil && ok && !strings.HasPrefix(rest, "T") {
			return true
		}
	}
	return false
}

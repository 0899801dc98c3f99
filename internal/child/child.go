//go:build unix

// Package child starts processes that cannot outlive this one.
package child

import (
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// Process is a child that cannot outlive this process.
//
// Processes die in ways that run no clean-up: SIGKILL, a panic in a goroutine, a test's time-out. So a small shell watches
// each child: its stdin is a pipe whose other end only this process holds, and when that end closes without a word
// the shell ends the child. The kernel's own means, PR_SET_PDEATHSIG, was rejected: it exists on Linux only and
// fires when the thread that started the child ends, which in Go says nothing about the process.
type Process struct {
	cmd     *exec.Cmd
	watcher *exec.Cmd
	leash   io.WriteCloser // the watcher's stdin
	gone    chan struct{}  // closed when the child has been reaped and the watcher dismissed
}

// watch ends the child $1 and removes its directory $2 when stdin closes before a line arrives.
const watch = `read -r line || { kill -9 "$1"; rm -rf -- "$2"; }`

// Spawn starts binary with its files in dir. Both children get a process group of their own, so that a Ctrl-C at the
// terminal ends this process alone and the watcher the rest, a frozen server included.
func Spawn(binary, dir string, args []string) (*Process, error) {
	p := &Process{cmd: exec.Command(binary, args...), gone: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.watcher = exec.Command("/bin/sh", "-c", watch, "locker-watcher", strconv.Itoa(p.Pid()), dir)
	p.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	leash, err := p.watcher.StdinPipe()
	if err == nil {
		err = p.watcher.Start()
	}
	if err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return nil, err
	}
	p.leash = leash
	go p.reap()
	return p, nil
}

// reap waits for the child and dismisses the watcher, which must not be left with a process id that the kernel may
// give to somebody else.
func (p *Process) reap() {
	defer close(p.gone)
	_ = p.cmd.Wait()
	_, _ = io.WriteString(p.leash, "dismissed\n")
	_ = p.leash.Close()
	_ = p.watcher.Wait()
}

// Pid returns the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal goes through os.Process, which knows whether the child has been reaped: no stranger is hit.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Exited reports whether the child is gone.
func (p *Process) Exited() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Kill ends the child (SIGKILL) and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// Gone returns a channel that is closed when the child is gone.
func (p *Process) Gone() <-chan struct{} { return p.gone }

//go:build unix

// Package child starts processes that cannot outlive this one.
package child

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// Process is a child that cannot outlive this process.
type Process struct {
	cmd   *exec.Cmd
	leash *Leash
	gone  chan struct{} // closed when the child has been reaped and the watcher dismissed
}

// Leash ends a child when this process is gone.
//
// Processes die in ways that run no clean-up: SIGKILL, a panic in a goroutine, a test's time-out. So a small shell
// watches each child: its stdin is a pipe whose other end only this process holds, and when that end closes without a
// word the shell ends the child. The kernel's own means, PR_SET_PDEATHSIG, was rejected: it exists on Linux only and
// fires when the thread that started the child ends, which in Go says nothing about the process.
type Leash struct {
	watcher *exec.Cmd
	stdin   io.WriteCloser // the watcher's
}

// watch ends the child $1 and removes its directory $2 when stdin closes before a line arrives.
const watch = `read -r line || { kill -9 "$1"; [ -z "$2" ] || rm -rf -- "$2"; }`

// NewLeash puts a child on a leash: when this process ends, so does the child, frozen or not, and dir is removed (""
// for none). The leash must be taken off when the child has been reaped.
func NewLeash(pid int, dir string) (*Leash, error) {
	l := &Leash{watcher: exec.Command("/bin/sh", "-c", watch, "locker-watcher", strconv.Itoa(pid), dir)}
	// A process group of its own, so that a Ctrl-C at the terminal ends this process alone and the watcher the rest.
	l.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if l.stdin, err = l.watcher.StdinPipe(); err != nil {
		return nil, err
	}
	return l, l.watcher.Start()
}

// Off dismisses the watcher, which must not be left with a process id that the kernel may give to somebody else.
func (l *Leash) Off() {
	_, _ = io.WriteString(l.stdin, "dismissed\n")
	_ = l.stdin.Close()
	_ = l.watcher.Wait()
}

// gate becomes the child when it reads a line, and nothing when stdin closes without one: until the watcher is there,
// the end of this process would leave the child behind.
const gate = `read -r line && exec "$@" </dev/null`

// Spawn starts binary with its files in dir, in a process group of its own for the same reason as the watcher. env is
// added to this process's environment.
func Spawn(binary, dir string, env, args []string) (*Process, error) {
	path, err := exec.LookPath(binary)
	if err != nil { // the shell would only say so by its exit code
		return nil, err
	}
	p := &Process{cmd: exec.Command("/bin/sh", "-c", gate, "locker-gate", path), gone: make(chan struct{})}
	p.cmd.Args = append(p.cmd.Args, args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Env = append(os.Environ(), env...)
	opener, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if p.leash, err = NewLeash(p.Pid(), dir); err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return nil, err
	}
	_, _ = io.WriteString(opener, "go\n") // or the child is dead, which reap sees
	_ = opener.Close()
	go p.reap()
	return p, nil
}

// reap waits for the child.
func (p *Process) reap() {
	defer close(p.gone)
	_ = p.cmd.Wait()
	p.leash.Off()
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

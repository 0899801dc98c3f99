//go:build unix

// Package child starts processes that cannot outlive this process.
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
	gone  chan struct{} // closed when the child has been reaped and the watcher has been dismissed
}

// Leash ends a child when this process ends.
//
// A process may end without any clean-up: by SIGKILL, by a panic in a goroutine, by a test's time-out. So a small
// shell, the watcher, watches each child. Its stdin is a pipe, and only this process has the other end. If that end is
// closed before a line was written, the shell kills the child. PR_SET_PDEATHSIG of the kernel was rejected. It exists
// on Linux only, and it acts when the thread ends that has started the child, although the process may go on in Go.
type Leash struct {
	watcher *exec.Cmd
	stdin   io.WriteCloser // stdin of the watcher
}

// watch kills the child $1 and removes its directory $2 if stdin is closed before a line arrives. Processes of the
// child that are stopped go on, as those of a PostgreSQL that a test has frozen. They could not notice that the child
// has ended.
const watch = `read -r line || {
	own=$(pgrep -P "$1")
	kill -9 "$1"
	[ -z "$own" ] || kill -CONT $own
	[ -z "$2" ] || rm -rf -- "$2"
}`

// NewLeash starts a watcher for a child. When this process ends, the child is killed, even if it is stopped, and dir is
// removed unless it is empty. Call Off when the child has been reaped.
func NewLeash(pid int, dir string) (*Leash, error) {
	l := &Leash{watcher: exec.Command("/bin/sh", "-c", watch, "locker-watcher", strconv.Itoa(pid), dir)}
	// The watcher has a process group of its own. A Ctrl-C at the terminal then ends only this process, and the watcher
	// ends the child.
	l.watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if l.stdin, err = l.watcher.StdinPipe(); err != nil {
		return nil, err
	}
	return l, l.watcher.Start()
}

// Off dismisses the watcher, because the kernel may give the process id of the child to another process.
func (l *Leash) Off() {
	_, _ = io.WriteString(l.stdin, "dismissed\n")
	_ = l.stdin.Close()
	_ = l.watcher.Wait()
}

// gate is a script that becomes the child when it reads a line. If stdin is closed without a line, it ends. It waits
// until the watcher runs, because without the watcher the child would survive the end of this process.
const gate = `read -r line && exec "$@" </dev/null`

// Spawn starts binary with its files in dir, in a process group of its own, for the same reason as the watcher. env is
// added to the environment of this process.
func Spawn(binary, dir string, env, args []string) (*Process, error) {
	path, err := exec.LookPath(binary)
	if err != nil { // the shell would report this by its exit code only
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
	_, _ = io.WriteString(opener, "go\n") // if the child is dead, reap notices it
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

// Signal sends a signal to the child. os.Process knows whether the child has been reaped, so the signal reaches no
// other process.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Exited reports whether the child has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// Kill ends the child (SIGKILL) and returns when it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// Gone returns a channel that is closed when the child has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

//go:build unix

package supervise

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// terminal is the job control of a shell. It lets a command in its own process group read from the terminal and receive
// Ctrl-C and Ctrl-Z. The zero value does nothing: locker keeps the terminal, and passes on what it gets from it.
type terminal struct {
	there bool
	given bool // to the command
	own   int  // process group
}

// findTerminal finds the terminal of this job. If the output is redirected, for example to a pager, another program may
// be using the terminal, so it is not handed over.
func findTerminal() *terminal {
	t := &terminal{own: unix.Getpgrp()}
	_, in := foreground(0)
	_, out := foreground(1)
	t.there = in && out
	return t
}

// foreground returns the foreground process group of fd, if fd is the controlling terminal.
func foreground(fd int) (group int, ok bool) {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return group, err == nil
}

// give hands the terminal over to a process group, if this process has it.
func (t *terminal) give(group int) {
	if t.with(t.own) {
		t.given = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, group) == nil
	}
}

// with reports whether a process group has the terminal.
func (t *terminal) with(group int) bool {
	has, ok := foreground(0)
	return t.there && ok && has == group
}

// take takes the terminal back. A background process that does so is stopped unless it ignores SIGTTOU. This process
// ignores SIGTTOU only now, after the guard was started, because the guard would inherit that.
func (t *terminal) take() {
	if t.given {
		signal.Ignore(unix.SIGTTOU)
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, t.own)
		t.given = false
	}
}

// stop stops this process until SIGCONT arrives, as SIGTSTP would do if it were not caught.
func stop() { _ = unix.Kill(os.Getpid(), unix.SIGSTOP) }

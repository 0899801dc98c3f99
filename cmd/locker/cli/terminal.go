//go:build unix

package cli

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// terminal is what a shell does with a terminal and a job, so that a command in a process group of its own can read from the
// terminal, and Ctrl-C and Ctrl-Z reach it. The zero value does nothing.
type terminal struct {
	there bool
	given bool // to the command
	own   int  // process group
}

// findTerminal finds the terminal that belongs to this job. If the output goes elsewhere, to a pager for instance, that
// one may be using the terminal, so it is left where it is.
func findTerminal() *terminal {
	t := &terminal{own: unix.Getpgrp()}
	_, in := foreground(0)
	_, out := foreground(1)
	t.there = in && out
	return t
}

// foreground returns the process group that has the terminal behind fd, if that is the controlling terminal.
func foreground(fd int) (group int, ok bool) {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return group, err == nil
}

// give hands the terminal over to a process group, if this one has it.
func (t *terminal) give(group int) {
	if t.with(t.own) {
		t.given = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, group) == nil
	}
}

// with says whether a process group has the terminal.
func (t *terminal) with(group int) bool {
	has, ok := foreground(0)
	return t.there && ok && has == group
}

// take takes it back. Who does that from the background is stopped unless it ignores SIGTTOU, which must not be so
// before the guard is started: it would be inherited.
func (t *terminal) take() {
	if t.given {
		signal.Ignore(unix.SIGTTOU)
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, t.own)
		t.given = false
	}
}

// stop stops this process, as SIGTSTP would if it were not caught, until SIGCONT comes.
func stop() { _ = unix.Kill(os.Getpid(), unix.SIGSTOP) }

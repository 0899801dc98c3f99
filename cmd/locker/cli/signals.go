//go:build unix

package cli

import (
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ending are the signals that end a wait for the lock.
var ending = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT}

// heeded returns the signals that are caught: those that a terminal, an operator or a service manager may send. Signals
// that were ignored when this program was started, for example by nohup, stay ignored, for the command as well.
func heeded() []os.Signal {
	all := append(slices.Clone(ending), unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP)
	return append(slices.DeleteFunc(all, signal.Ignored), unix.SIGCONT) // SIGCONT takes effect even if it is ignored
}

// pass passes a signal to the command.
func (h *holder) pass(sig syscall.Signal) {
	o := order{Do: doSignal, Signal: int(sig)}
	switch sig {
	case unix.SIGTERM:
		o = order{Do: doStop}
	case unix.SIGPIPE:
		return
	case unix.SIGTSTP:
		h.suspended = true
	case unix.SIGCONT: // of the shell's fg
		if h.group != 0 {
			h.terminal.give(h.group)
		}
	}
	_ = send(h.orders, o)
}

// stopped handles a command that was stopped, for example with Ctrl-Z. locker stops as well, so that the shell sees a
// stopped job. The lock is not renewed during this time, and the guard kills the command before another owner can get
// the lock.
func (h *holder) stopped(sig syscall.Signal) {
	switch wants := sig == unix.SIGTTIN || sig == unix.SIGTTOU; {
	case wants && h.terminal.with(h.group): // the command read before it had the terminal, and has it now
	case !h.suspended && !h.terminal.there: // somebody stopped the command alone
		return
	default:
		h.suspended = false
		h.terminal.take()
		h.pause()
		h.terminal.give(h.group)
	}
	_ = send(h.orders, order{Do: doSignal, Signal: int(unix.SIGCONT)})
}

// pause stops this process and returns after SIGCONT. The threads of a process do not stop at the same time. A thread
// that continued too early would continue the command, which would read from the terminal and be stopped again.
func (h *holder) pause() {
	early := []os.Signal{}
	for len(h.signals) > 0 {
		if sig := <-h.signals; sig != unix.SIGCONT { // an earlier SIGCONT does not count
			early = append(early, sig)
		}
	}
	stop()
	for sig := range h.signals {
		if sig == unix.SIGCONT {
			break
		}
		early = append(early, sig)
	}
	for _, sig := range early {
		h.pass(sig.(syscall.Signal))
	}
}

//go:build unix

package cli

import (
	"os"
	"os/signal"
	"slices"

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

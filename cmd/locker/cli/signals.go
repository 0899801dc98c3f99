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

// heeded returns the signals that are caught: all that a command might get from a terminal, an operator or a service
// manager. What was ignored when this program was started, by nohup for instance, stays so, for the command as well.
func heeded() []os.Signal {
	all := append(slices.Clone(ending), unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP)
	return append(slices.DeleteFunc(all, signal.Ignored), unix.SIGCONT) // which takes effect in any case
}

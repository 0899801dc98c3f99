package redistest

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals makes the processes that tests start begin with the default for signals that this one ignores: under
// nohup, or in the background of a shell, tests inherit that, and so would all that they start and send signals to. This
// process goes on ignoring them.
func DefaultSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // a signal that is handled is none that is ignored after exec
		}
	}
}

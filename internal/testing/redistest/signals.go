package redistest

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals resets ignored signals for the processes that tests start. Under nohup, or in the background of a
// shell, tests inherit ignored signals and would pass them on. This process continues to ignore them.
func DefaultSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // a signal that is handled is not ignored after exec
		}
	}
}

//go:build unix

package supervise

import (
	"encoding/json"
	"io"
	"os"
	"time"
)

// The holder, which has the lock, and the guard, which has the command, exchange lines of JSON through two pipes. A
// pipe is closed when its process ends, in whatever way, so each process notices the end of the other.

// order is a message from the holder to the guard.
type order struct {
	Do     string `json:"do"`
	Signal int    `json:"signal,omitempty"` // doSignal
	// KillBy is the time by which the command must have ended, for doStart and doExtend.
	KillBy instant `json:"kill_by,omitempty"`
	// The other fields are for doStart.
	Path   string        `json:"path,omitempty"`
	Args   []string      `json:"args,omitempty"`
	OnLost string        `json:"on_lost,omitempty"`
	Grace  time.Duration `json:"grace,omitempty"`
}

const (
	doStart  = "start"  // run the command
	doExtend = "extend" // the lock was renewed
	doSignal = "signal" // pass a signal on
	doStop   = "stop"   // end the command: SIGTERM, and SIGKILL after the grace period
	doLost   = "lost"   // the lock is lost
)

// news is a message from the guard to the holder.
type news struct {
	Is   string `json:"is"`
	Pid  int    `json:"pid,omitempty"`  // isStarted
	Code int    `json:"code,omitempty"` // isFailed and isOver: the exit code; isStopped: the signal
	Text string `json:"text,omitempty"` // isFailed
}

const (
	isReady   = "ready"   // to start the command
	isStarted = "started" // the command
	isFailed  = "failed"  // it could not be started
	isStopped = "stopped" // by a signal such as SIGTSTP
	isLost    = "lost"    // the command has been notified of the loss
	isOver    = "over"    // the command and all its processes have ended
)

// instant is a time in nanoseconds on a clock that all processes of a machine share.
type instant int64

func instantOf(t time.Time) instant { return instant(clock() + time.Until(t)) }

func (i instant) time() time.Time { return time.Now().Add(time.Duration(i) - clock()) }

func send[T any](f *os.File, v T) error { return json.NewEncoder(f).Encode(v) }

// receive returns a channel with the messages from f, which is closed at the end of f.
func receive[T any](f io.Reader) <-chan T {
	c := make(chan T)
	go func() {
		defer close(c)
		for d := json.NewDecoder(f); ; {
			var v T
			if d.Decode(&v) != nil {
				return
			}
			c <- v
		}
	}()
	return c
}

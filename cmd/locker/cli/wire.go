//go:build unix

package cli

import (
	"encoding/json"
	"io"
	"os"
	"time"
)

// The holder, which has the lock, and the guard, which has the command, talk through two pipes, in lines of JSON. Pipes end
// when a process does, however it ends, which is the point.

// order is what the holder tells the guard.
type order struct {
	Do     string `json:"do"`
	Signal int    `json:"signal,omitempty"` // doSignal
	// KillBy is when the command must be gone, as instant says: of doStart and doExtend.
	KillBy instant `json:"kill_by,omitempty"`
	// The rest is of doStart.
	Path   string        `json:"path,omitempty"`
	Args   []string      `json:"args,omitempty"`
	OnLost string        `json:"on_lost,omitempty"`
	Grace  time.Duration `json:"grace,omitempty"`
}

const (
	doStart  = "start"  // run the command
	doExtend = "extend" // the lock was renewed
	doSignal = "signal" // pass a signal on
	doStop   = "stop"   // somebody wants the command to end: SIGTERM, and SIGKILL after the grace
	doLost   = "lost"   // the lock is lost
)

// news is what the guard tells the holder.
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
	isLost    = "lost"    // to the command: it has been told, and there is no way back
	isOver    = "over"    // it has ended, and all that it has started
)

// instant is a moment on a clock that all processes of a machine share, in nanoseconds.
type instant int64

func instantOf(t time.Time) instant { return instant(clock() + time.Until(t)) }

func (i instant) time() time.Time { return time.Now().Add(time.Duration(i) - clock()) }

func send[T any](f *os.File, v T) error { return json.NewEncoder(f).Encode(v) }

// receive passes on what comes from f until it ends, and closes the channel then.
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

package redistest

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// Log is a logger that keeps what it is told, from the level debug on.
type Log struct {
	*slog.Logger
	mu   sync.Mutex
	text bytes.Buffer
}

// NewLog returns an empty Log.
func NewLog() *Log {
	l := new(Log)
	l.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return l
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the lines that were logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Evicting answers INFO as a server that evicts locks and counters, and refuses the other commands.
func Evicting(cmds []drivers.Command) []drivers.Reply {
	replies := drivers.Refused("NOPERM no", len(cmds))
	for i, cmd := range cmds {
		if cmd[0] == "INFO" {
			replies[i] = "redis_version:7.0.15\r\nrole:master\r\naof_enabled:1\r\nmaxmemory_policy:allkeys-lru"
		}
	}
	return replies
}

// Late is a client that ignores its context, and answers after a second as Evicting does.
type Late struct{}

// Do implements drivers.Driver.
func (Late) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	time.Sleep(time.Second)
	return Evicting(cmds), nil
}

// Close implements drivers.Driver.
func (Late) Close() error { return nil }

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"
)

// storage stands for what the leader works on: a log to which the candidates of all processes append. It keeps the
// rule of fencing tokens: every reader ignores a line with a token smaller than one before it. A storage that can
// compare and write in one step, like a database, refuses such a write at once: see examples/fencing.
type storage struct {
	*os.File
	temporary bool

	mu       sync.Mutex
	seen     int64  // how many bytes were read
	greatest uint64 // the greatest token in it
}

var errStale = errors.New("the storage knows a greater token: somebody else leads")

// openStorage opens the log at path, or a temporary one if there is no path.
func openStorage(path string) (*storage, error) {
	if path == "" {
		f, err := os.CreateTemp("", "leader-*.journal")
		return &storage{File: f, temporary: true}, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	return &storage{File: f}, err
}

// Close closes the log, and removes it if it is temporary.
func (s *storage) Close() error {
	if s.temporary {
		defer os.Remove(s.Name())
	}
	return s.File.Close()
}

// write appends a line, in one system call, so that lines of several processes do not mix. Then it checks whether a
// line with a greater token came before.
func (s *storage) write(ctx context.Context, token uint64, who string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := fmt.Fprintf(s, "%d %s %d\n", token, who, time.Now().UnixMicro()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := io.ReadAll(io.NewSectionReader(s, s.seen, math.MaxInt64-s.seen))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var t uint64
		if _, err := fmt.Sscan(line, &t); err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		s.greatest = max(s.greatest, t)
	}
	s.seen += int64(len(text))
	if s.greatest > token {
		return errStale
	}
	return nil
}

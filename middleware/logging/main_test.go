package logging_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/logging"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal is a logger whose output a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
	seen int // number of lines that news has returned
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(j, &slog.HandlerOptions{Level: level}))
}

func (j *journal) all() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// firstFence is the clock of a bubble at its beginning, and so what tokens of package memory begin at.
const firstFence = 946684800000000

// news returns the records since the last call of news.
func (j *journal) news(t *testing.T) (records []map[string]any) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(j.all(), "\n"), "\n")
	for _, line := range lines[min(j.seen, len(lines)):] {
		if line == "" {
			continue
		}
		j.seen++
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		delete(r, "time")
		if fence, ok := r["fence"].(float64); ok {
			r["fence"] = fence - firstFence
		}
		records = append(records, r)
	}
	return records
}

// wantNews checks the records since the last call of news. Each of want has a level, a message and attributes. An
// attribute with the value * may have any value.
func (j *journal) wantNews(t *testing.T, want ...string) {
	t.Helper()
	got := j.news(t)
	for i, r := range got {
		text := fmt.Sprint(r["level"], " ", r["msg"])
		delete(r, "level")
		delete(r, "msg")
		for _, name := range slices.Sorted(maps.Keys(r)) {
			value := fmt.Sprint(r[name])
			if i < len(want) && strings.Contains(want[i], name+"=*") {
				value = "*"
			}
			text += " " + name + "=" + value
		}
		if i >= len(want) || text != want[i] {
			t.Errorf("record %d is\n\t%s", i, text)
			if i < len(want) {
				t.Errorf("want\n\t%s", want[i])
			}
		}
	}
	if len(got) < len(want) {
		t.Errorf("not logged: %q", want[len(got):])
	}
}

// store is a memory backend whose calls a test can fail, and which knows all owner tokens.
type store struct {
	backend.Backend

	mu     sync.Mutex
	err    error // of every call; nil: none
	tokens []string
}

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *store) call(req backend.Request, next func() error) error {
	s.mu.Lock()
	s.tokens = append(s.tokens, req.Token)
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return next()
}

func (s *store) Acquire(ctx context.Context, req backend.Request) (g backend.Grant, err error) {
	err = s.call(req, func() (err error) {
		g, err = s.Backend.Acquire(ctx, req)
		return err
	})
	return g, err
}

func (s *store) Extend(ctx context.Context, req backend.Request) error {
	return s.call(req, func() error { return s.Backend.Extend(ctx, req) })
}

func (s *store) Release(ctx context.Context, req backend.Request) error {
	return s.call(req, func() error { return s.Backend.Release(ctx, req) })
}

// steal takes the lock away from l.
func (s *store) steal(t *testing.T, l locker.Lease) {
	t.Helper()
	if err := s.Backend.Release(t.Context(), backend.Request{Key: l.Key(), Token: l.Token()}); err != nil {
		t.Fatal(err)
	}
}

var errDown = fmt.Errorf("%w: connection refused", locker.ErrUnavailable)

// bubble runs f in virtual time with a Client whose locks are logged, at the given level and above. No owner token may
// be in the output, whatever f does.
func bubble(t *testing.T, level slog.Level, opts []logging.Option,
	f func(t *testing.T, j *journal, s *store, l locker.Locker)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s := &store{Backend: memory.NewBackend()}
		c := locker.NewClient(s)
		f(t, &j, s, locker.Wrap(c, logging.New(j.logger(level), opts...)))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if len(s.tokens) == 0 {
			t.Error("no token was used")
		}
		for _, token := range s.tokens {
			if strings.Contains(j.all(), token[:8]) {
				t.Errorf("an owner token was logged: %s in %s", token, j.all())
			}
		}
	})
}

func mustLock(t *testing.T, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, l locker.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

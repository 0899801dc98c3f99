package single_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/single"
)

// warnings is what a logger was told.
type warnings struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *warnings) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func TestSettingsAreWarnedOfOnce(t *testing.T) {
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "volatile-lru")
		var w warnings
		l := closing(t, single.New(build(t, s.Addr()), single.Name("cache"),
			single.Logger(slog.New(slog.NewTextHandler(&w, nil)))))
		eventually(t, 20*time.Second, "a warning", func() bool { return w.String() != "" })
		lease, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"level=WARN", "volatile-lru", "servers=[cache]", "exclusion (E1)", "noeviction"} {
			if !strings.Contains(w.String(), part) {
				t.Errorf("%s is not in %s", part, &w)
			}
		}
		if n := strings.Count(w.String(), "\n"); n != 1 {
			t.Errorf("%d warnings: %s", n, &w)
		}
	})
}

// New does not wait for a server that is silent, and neither does Close.
func TestLookAtASilentServer(t *testing.T) {
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		d := build(t, s.Addr())
		s.Pause()
		defer s.Resume()
		var w warnings
		start := time.Now()
		l := single.New(d, single.Logger(slog.New(slog.NewTextHandler(&w, nil))), single.Timeout(time.Minute))
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("it took %v", took)
		}
		if w.String() != "" {
			t.Errorf("warned of %s", &w)
		}
	})
}

// unasked fails the test if it is asked.
type unasked struct{ t *testing.T }

func (u unasked) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	u.t.Errorf("asked for %q", cmds)
	return drivers.Refused("ERR", len(cmds)), nil
}

func (unasked) Close() error { return nil }

func TestWithoutLoggerNewSendsNothing(t *testing.T) {
	if err := single.New(unasked{t}).Close(); err != nil {
		t.Fatal(err)
	}
}

// late is a client that ignores its context, and answers after a second.
type late struct{}

func (late) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	time.Sleep(time.Second)
	replies := drivers.Refused("NOPERM no", len(cmds))
	replies[1] = "redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n"
	return replies, nil
}

func (late) Close() error { return nil }

// Close ends the look: nothing is logged afterwards.
func TestCloseEndsTheLook(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var log warnings
		l := single.New(late{}, single.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if log.String() != "" {
			t.Errorf("warned of %s", &log)
		}
	})
}

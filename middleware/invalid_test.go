package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/semaphore"
	"github.com/golocker/locker/single"
)

// silent is a server that must not receive a request for a lock.
type silent struct{ t *testing.T }

func (s silent) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if cmds[0][0] != "INFO" { // Redlock uses it to tell its nodes apart
		s.t.Errorf("sent: %v", cmds[0])
	}
	return nil, errors.New("down")
}

func (s silent) Close() error { return nil }

// Constructors have no error to return. What cannot be used is an error of each call, which names it, and nothing is
// sent. A time that is not positive is the default.
func TestWrongOptionsFailEachCall(t *testing.T) {
	three := func() []drivers.Driver { return []drivers.Driver{silent{t}, silent{t}, silent{t}} }
	quiet := redlock.Logger(slog.New(slog.DiscardHandler))
	for _, tt := range []struct {
		open func(good locker.Locker) locker.Locker
		want string // none: it is the default
	}{
		{func(locker.Locker) locker.Locker { return single.New(silent{t}, single.Guard(-1)) }, "guard"},
		{func(locker.Locker) locker.Locker { return single.New(silent{t}, single.Guard(1)) }, "guard"},
		{func(locker.Locker) locker.Locker { return single.New(silent{t}, single.WaitReplicas(-1, 0)) }, "WaitReplicas(-1)"},
		{func(locker.Locker) locker.Locker { return redlock.New(nil, quiet) }, "no nodes"},
		{func(locker.Locker) locker.Locker { return redlock.New(slices.Repeat(three(), 11), quiet) }, "33 nodes"},
		{func(locker.Locker) locker.Locker { return redlock.New(three(), quiet, redlock.Budget(-1)) }, "budget"},
		{func(locker.Locker) locker.Locker { return redlock.New(three(), quiet, redlock.Guard(-1)) }, "guard"},
		{func(locker.Locker) locker.Locker { return redlock.New(three(), quiet, redlock.Names("a")) }, "1 names"},
		{func(locker.Locker) locker.Locker { return redlock.New(three(), quiet, redlock.Names("a", "b", "a")) }, `"a"`},
		{func(l locker.Locker) locker.Locker { return locker.Wrap(l, locker.Defaults(locker.TTL(-1))) }, "TTL"},
		{func(l locker.Locker) locker.Locker { return locker.Wrap(l, locker.Defaults(locker.Patience(-1))) }, "Patience"},
		{func(l locker.Locker) locker.Locker { return semaphore.New(l, 0) }, "permits"},
		{func(l locker.Locker) locker.Locker { return semaphore.New(l, semaphore.MaxPermits+1) }, "permits"},
		{func(l locker.Locker) locker.Locker { return semaphore.New(l, 2).Weight(3) }, "permits"},
		{func(l locker.Locker) locker.Locker {
			return locker.Wrap(l, retry.New(retry.For(-1), retry.PerSecond(-1)))
		}, ""},
		{func(l locker.Locker) locker.Locker { return locker.Wrap(l, retry.New(retry.Backoff(-1, -1))) }, ""},
		{func(l locker.Locker) locker.Locker { return locker.Wrap(l, logging.New(nil, logging.LongWait(-1))) }, ""},
		{func(locker.Locker) locker.Locker {
			return record.New(recordstore.New(), record.Poll(-1), record.Timeout(-1))
		}, ""},
	} {
		good := memory.New()
		l := tt.open(good)
		lease, err := l.TryLock(t.Context(), "k")
		switch {
		case tt.want != "" && (!errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%v, want an error that matches ErrInvalid and has %q", err, tt.want)
		case tt.want == "" && err != nil:
			t.Error(err)
		case err == nil:
			_ = lease.Unlock(t.Context())
		}
		if c, ok := l.(*locker.Client); ok {
			if _, err := c.Inspect(t.Context(), "k"); tt.want != "" && !errors.Is(err, locker.ErrInvalid) {
				t.Errorf("Inspect: %v, want an error that matches ErrInvalid", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		_ = good.Close()
	}
}

// A key that the store does not support is an error of the caller. It is not an outage, and is not retried.
func TestReservedKeysAreRefusedAtOnceAndNotRetried(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *locker.Client{
		"single": func(t *testing.T) *locker.Client { return single.New(silent{t}, single.Prefix("")) },
		"redlock": func(t *testing.T) *locker.Client {
			c := redlock.New([]drivers.Driver{silent{t}, silent{t}, silent{t}}, redlock.Prefix(""),
				redlock.Logger(slog.New(slog.DiscardHandler)))
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				c := open(t)
				l := locker.Wrap(c, retry.New())
				const key = "{a}:lockqueue"
				_, locked := l.Lock(t.Context(), key)
				_, tried := l.TryLock(t.Context(), key)
				_, seen := c.Inspect(t.Context(), key)
				_, taken := c.ForceRelease(t.Context(), key, "")
				for what, err := range map[string]error{"Lock": locked, "TryLock": tried, "Inspect": seen,
					"ForceRelease": taken} {
					if !errors.Is(err, locker.ErrInvalid) || errors.Is(err, locker.ErrUnavailable) {
						t.Errorf("%s: %v, want an error that matches ErrInvalid and not ErrUnavailable", what, err)
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

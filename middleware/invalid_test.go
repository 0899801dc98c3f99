package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/redlock"
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

// A key that the store does not support is an error of the caller. It is not an outage, and is not retried.
func TestReservedKeysAreRefusedAtOnceAndNotRetried(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *locker.Client{
		"single": func(t *testing.T) *locker.Client { return single.New(silent{t}, single.Prefix("")) },
		"redlock": func(t *testing.T) *locker.Client {
			c, err := redlock.New([]drivers.Driver{silent{t}, silent{t}, silent{t}}, redlock.Prefix(""),
				redlock.Logger(slog.New(slog.DiscardHandler)))
			if err != nil {
				t.Fatal(err)
			}
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

package conform

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lock of another store than Redis is removed by force, if it shows its locks.
func TestLearnTellsHowALockIsRemoved(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		able := memory.NewBackend()
		for name, tt := range map[string]struct {
			store backend.Backend
			can   bool
		}{"able": {able, true}, "with the required methods only": {struct{ backend.Backend }{able}, false}} {
			h, remove, err := Deployment{
				Open: func(int) (locker.Locker, error) { return locker.NewClient(tt.store), nil },
			}.learn(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if h.MinTTL > 0 || h.Granularity > 0 {
				t.Errorf("%s: it counts milliseconds, seen %+v", name, h)
			}
			if (remove != nil) != tt.can {
				t.Errorf("%s: releases by force: expected %t, seen %t", name, tt.can, remove != nil)
			}
		}
	})
}

// seconds is a store that rounds TTLs up to whole seconds.
type seconds struct{ backend.Backend }

func (s seconds) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.TTL = (req.TTL + time.Second - 1).Truncate(time.Second)
	return s.Backend.Acquire(ctx, req)
}

func TestLearnTellsThatAStoreCountsSeconds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		h, _, err := Deployment{
			Open: func(int) (locker.Locker, error) { return locker.NewClient(seconds{b}), nil },
		}.learn(t.Context())
		if err != nil || h.MinTTL != time.Second || h.Granularity != time.Second {
			t.Errorf("expected seconds, seen %v and %v, %v", h.MinTTL, h.Granularity, err)
		}
	})
}

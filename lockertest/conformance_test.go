package lockertest_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

// recorder knows the keys that were used, so that it can list what is left.
type recorder struct {
	*lockertest.Store
	keys sync.Map
}

func (r *recorder) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	r.keys.Store(req.Key, true)
	return r.Store.Acquire(ctx, req)
}

func (r *recorder) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	r.keys.Store(req.Key, true)
	return r.Store.Queue(ctx, req, wait)
}

func (r *recorder) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	for _, req := range reqs {
		r.keys.Store(req.Key, true)
	}
	return r.Store.AcquireMany(ctx, reqs, c)
}

func (r *recorder) left() []string {
	left := map[string]bool{}
	r.keys.Range(func(key, _ any) bool {
		if i, err := r.Inspect(context.Background(), key.(string)); err != nil || i.State != inspect.Free || i.Waiting > 0 {
			left[key.(string)] = true
		}
		return true
	})
	return slices.Collect(maps.Keys(left))
}

// The faults of the store are those that the suites ask for.
func TestConformance(t *testing.T) {
	h := conformance.Harness{}
	h.Store = func(testing.TB) conformance.Store {
		r := &recorder{Store: lockertest.NewStore()}
		return conformance.Store{
			Open:   func() backend.Backend { return r },
			Delete: func(key string) { _, _ = r.ForceRelease(context.Background(), key, "") },
			Down: func() func() {
				r.Down()
				return r.Up
			},
			Hang: func() func() {
				r.Delay(time.Hour)
				return func() { r.Delay(0) }
			},
			Left: r.left,
		}
	}
	t.Run("real time", func(t *testing.T) { conformance.RunLocker(t, h) })
	h.Bubble = virtual.Test
	t.Run("virtual time", func(t *testing.T) {
		conformance.RunBackend(t, h)
		conformance.RunSemaphore(t, h)
		conformance.RunRWLock(t, h)
	})
}

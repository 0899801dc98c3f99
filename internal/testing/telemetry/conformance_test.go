package telemetry_test

import (
	"context"
	"sync"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/tracing"
)

// forgetful is a memory backend that can lose a lock while it is held.
type forgetful struct {
	*memory.Backend
	owners sync.Map // tokens by key
}

func (f *forgetful) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	grant, err := f.Backend.Acquire(ctx, req)
	if err == nil {
		f.owners.Store(req.Key, req.Token)
	}
	return grant, err
}

func (f *forgetful) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	grant, err := f.Backend.Queue(ctx, req, wait)
	if err == nil {
		f.owners.Store(req.Key, req.Token)
	}
	return grant, err
}

func (f *forgetful) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	grants, err := f.Backend.AcquireMany(ctx, reqs, c)
	if err == nil {
		for _, req := range reqs {
			f.owners.Store(req.Key, req.Token)
		}
	}
	return grants, err
}

func (f *forgetful) lose(key string) {
	if token, ok := f.owners.Load(key); ok {
		_ = f.Release(context.Background(), backend.Request{Key: key, Token: token.(string)})
	}
}

// The Locker behaves with every configuration as it does without the middleware.
func TestConformance(t *testing.T) {
	for _, s := range []setup{setups[0], setups[3], setups[4]} { // no signals, metrics only, all signals
		t.Run(s.name, func(t *testing.T) {
			conformance.RunLocker(t, conformance.Harness{
				Bubble: virtual.Test,
				Store: func(testing.TB) conformance.Store {
					store := &forgetful{Backend: memory.NewBackend()}
					middleware := tracing.New(s.opts()...)
					return conformance.Store{
						Client: func() locker.Locker { return middleware(locker.NewClient(store)) },
						Delete: store.lose,
					}
				},
			})
		})
	}
}

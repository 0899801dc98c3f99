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

// Conform declares what a store can do, and nothing that it cannot do. That it serves waiters in order cannot be seen.
func TestLearnTellsWhatAStoreCanDo(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		able := memory.NewBackend()
		for name, tt := range map[string]struct {
			store backend.Backend
			can   bool
		}{"able": {able, true}, "with the required methods only": {struct{ backend.Backend }{able}, false}} {
			k, err := Deployment{
				Open: func(int) (locker.Locker, error) { return locker.NewClient(tt.store), nil },
			}.learn(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if k.FIFO || k.Unfenced || !k.Labels || k.MinTTL > 0 || k.Granularity > 0 {
				t.Errorf("%s: it counts milliseconds, and has tokens and labels, seen %+v", name, k.Harness)
			}
			if k.Verifies != tt.can || k.Wanted != tt.can || (k.remove != nil) != tt.can {
				t.Errorf("%s: proofs, news of waiters and releases by force: expected %t, seen %+v", name, tt.can, k)
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
		k, err := Deployment{
			Open: func(int) (locker.Locker, error) { return locker.NewClient(seconds{b}), nil },
		}.learn(t.Context())
		if err != nil || k.MinTTL != time.Second || k.Granularity != time.Second {
			t.Errorf("expected seconds, seen %v and %v, %v", k.MinTTL, k.Granularity, err)
		}
	})
}

package middleware_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
)

// counting counts what a store in memory is asked for.
type counting struct {
	*memory.Backend
	steps, single atomic.Int64
}

func (c *counting) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	c.steps.Add(1)
	return c.Backend.AcquireMany(ctx, reqs)
}

func (c *counting) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	c.single.Add(1)
	return c.Backend.Acquire(ctx, req)
}

func (c *counting) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	c.single.Add(1)
	return c.Backend.Queue(ctx, req)
}

// Behind all middleware, several locks are acquired in one step, and their leases are those of the middleware.
func TestStepBehindMiddleware(t *testing.T) {
	for _, order := range orders() {
		t.Run(name(order, "memory"), func(t *testing.T) {
			b := &counting{Backend: memory.NewBackend()}
			c := locker.NewClient(b)
			defer c.Close()
			l := wrap(c, order)
			lease, err := locker.LockAll(t.Context(), l, []string{"b", "a"})
			if err != nil {
				t.Fatal(err)
			}
			if steps, single := b.steps.Load(), b.single.Load(); steps != 1 || single != 0 {
				t.Errorf("%d steps and %d single attempts, want one step", steps, single)
			}
			if err := locker.Verify(t.Context(), lease); err != nil {
				t.Error(err)
			}
			if err := lease.Extend(t.Context()); err != nil {
				t.Error(err)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

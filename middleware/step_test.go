package middleware_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/tracing"
)

// counting counts what a store in memory is asked for.
type counting struct {
	*memory.Backend
	steps, single atomic.Int64
}

func (c *counting) AcquireMany(
	ctx context.Context, reqs []backend.Request, choice backend.Choice,
) ([]*backend.Grant, error) {
	c.steps.Add(1)
	return c.Backend.AcquireMany(ctx, reqs, choice)
}

func (c *counting) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	c.single.Add(1)
	return c.Backend.Acquire(ctx, req)
}

func (c *counting) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	c.single.Add(1)
	return c.Backend.Queue(ctx, req, wait)
}

// No keys are an error, and no panic.
func TestStepWithoutKeys(t *testing.T) {
	for _, order := range orders() {
		c := memory.New()
		l := wrap(locker.Wrap(c, tracing.New(tracing.WithTracerProvider(sampler{}), tracing.WithMeterProvider(listener{}),
			tracing.WithKeyClass(func(string) string { return "class" }), tracing.WithKey(tracing.Full))), order)
		for _, keys := range [][]string{nil, {}} {
			if _, err := l.(locker.ManyLocker).TryLockMany(t.Context(), locker.Many{Keys: keys}); err == nil {
				t.Errorf("%s: TryLockMany without keys returns no error", name(order, "memory"))
			}
			if _, err := locker.LockAll(t.Context(), l, keys); !errors.Is(err, locker.ErrInvalid) {
				t.Errorf("%s: LockAll without keys: %v", name(order, "memory"), err)
			}
		}
		_ = c.Close()
	}
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

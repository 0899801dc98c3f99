package retry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/retry"
)

// flaky is a store that fails the first calls.
type flaky struct {
	*memory.Backend
	failures int
}

func (f *flaky) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if f.failures--; f.failures >= 0 {
		return backend.Grant{}, errors.New("connection refused")
	}
	return f.Backend.Acquire(ctx, req)
}

func Example() {
	ctx := context.Background()
	store := &flaky{memory.NewBackend(), 3}
	c := locker.NewClient(store)
	defer c.Close()
	l := locker.Wrap(c, retry.New(retry.For(30*time.Second), retry.PerSecond(500)))

	lease, err := l.TryLock(ctx, "orders:42")
	fmt.Println(err)
	fmt.Println(lease.Unlock(ctx))

	store.failures = 1000
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = l.TryLock(ctx, "orders:42")
	fmt.Println(errors.Is(err, locker.ErrUnavailable), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// <nil>
	// <nil>
	// true true
}

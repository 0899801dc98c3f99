package logging_test

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/logging"
)

// fragile is a handler that panics with its nth record.
type fragile struct {
	slog.Handler
	n *atomic.Int64
}

func (f fragile) Handle(ctx context.Context, r slog.Record) error {
	if f.n.Add(-1) == 0 {
		panic("handler")
	}
	return f.Handler.Handle(ctx, r)
}

// Whichever record a handler panics with, no lock stays taken.
func TestHandlerThatPanicsLeavesNoLock(t *testing.T) {
	keys := []string{"a", "b"}
	for name, use := range map[string]func(ctx context.Context, l locker.Locker) (locker.Lease, error){
		"Lock":    func(ctx context.Context, l locker.Locker) (locker.Lease, error) { return l.Lock(ctx, "a") },
		"TryLock": func(ctx context.Context, l locker.Locker) (locker.Lease, error) { return l.TryLock(ctx, "a") },
		"LockAll": func(ctx context.Context, l locker.Locker) (locker.Lease, error) { return locker.LockAll(ctx, l, keys) },
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				panicked := false
				virtual.Test(t, func(t *testing.T) {
					store, left := memory.NewBackend(), new(atomic.Int64)
					left.Store(int64(n))
					c, other := locker.NewClient(store), locker.NewClient(store)
					handler := slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})
					l := locker.Wrap(c, logging.New(slog.New(fragile{handler, left})))
					func() {
						defer func() { panicked = recover() != nil }()
						lease, err := use(t.Context(), l)
						if err != nil {
							t.Error(err)
							return
						}
						_ = lease.Unlock(t.Context())
					}()
					time.Sleep(time.Second)
					lease, err := locker.TryLockAll(t.Context(), other, keys)
					if err != nil {
						t.Fatalf("after a panic with record %d: %v", n, err)
					}
					mustUnlock(t, lease)
					_, _ = c.Close(), other.Close()
				})
				if !panicked {
					if n < 3 {
						t.Errorf("%d records", n-1)
					}
					return
				}
			}
		})
	}
}

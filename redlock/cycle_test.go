package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/steady"
)

// lockAll locks key on all nodes of c. On a machine that stalls, an attempt may find no majority within its budget, or
// the time of one node may be over before it has answered. Then lockAll tries again.
func (c cluster) lockAll(t testing.TB, l locker.Locker, key string, opts ...locker.Option) (lease locker.Lease) {
	t.Helper()
	opts = append([]locker.Option{locker.TTL(longTTL)}, opts...)
	eventually(t, time.Minute, "it is on all nodes", func() (all bool) {
		var err error
		if lease, err = l.Lock(t.Context(), key, opts...); errors.Is(err, locker.ErrNoQuorum) {
			return false
		} else if err != nil {
			t.Fatal(err)
		}
		// The client may not know yet that all have granted.
		if all = within(5*time.Second, func() bool { return len(c.locks(t)) == len(c) }); !all {
			_ = lease.Unlock(t.Context())
		}
		return all
	})
	return lease
}

// cycle locks and unlocks key, which nobody else wants.
func cycle(t testing.TB, l locker.Locker, key string) {
	t.Helper()
	if err := steadyCycle(t.Context(), l, key); err != nil {
		t.Fatal(err)
	}
}

// steadyCycle is a cycle whose first attempt succeeds, and whose release may be answered late.
func steadyCycle(ctx context.Context, l locker.Locker, key string) error {
	lease, err := l.TryLock(ctx, key, locker.TTL(longTTL))
	if err != nil {
		return err
	}
	return steady.Release(lease)
}

// tryCycle is a cycle that may fail.
func tryCycle(ctx context.Context, l locker.Locker, key string) error {
	lease, err := l.TryLock(ctx, key, locker.TTL(longTTL))
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

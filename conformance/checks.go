package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// sentinels are the errors that an error of a Locker may match.
var sentinels = []error{
	locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrNoQuorum, locker.ErrUnavailable,
	locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// wantError checks that err is a *locker.Error that matches all of want and no other sentinel.
func wantError(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: expected an error that matches %q, seen none", what, want)
		return
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: expected an error that matches %q, seen %q", what, w, err)
		}
	}
	for _, s := range sentinels {
		if errors.Is(s, locker.ErrNoQuorum) && slices.Contains(want, locker.ErrUnavailable) {
			continue // a store of several nodes is unavailable in this way
		}
		if errors.Is(err, s) && !slices.Contains(want, s) {
			t.Errorf("%s: expected an error that does not match %q, seen %q", what, s, err)
		}
	}
	if e := (*locker.Error)(nil); !errors.As(err, &e) {
		t.Errorf("%s: expected a *locker.Error, seen %T %q", what, err, err)
	}
}

// lock acquires key, which must be free.
func lock(t testing.TB, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := time.Now()
	lease, err := l.TryLock(ctx, key, opts...)
	prompt(t, start)
	if err != nil {
		t.Fatalf("TryLock of the free lock %.40q: expected a lease, seen %v", key, err)
	}
	return lease
}

func unlock(t testing.TB, lease locker.Lease) {
	t.Helper()
	start := time.Now()
	err := lease.Unlock(t.Context())
	prompt(t, start)
	if err != nil {
		t.Errorf("Unlock of the held lock %.40q: expected no error, seen %q", lease.Key(), err)
	}
}

// wantHeld checks that l cannot acquire key.
func wantHeld(t testing.TB, l locker.Locker, key string) {
	t.Helper()
	start := time.Now()
	lease, err := l.TryLock(t.Context(), key)
	prompt(t, start)
	wantError(t, "TryLock of a held lock", err, locker.ErrHeld)
	if err == nil {
		_ = lease.Unlock(t.Context())
	}
}

// isDone reports whether the lease's Done is closed.
func isDone(l locker.Lease) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

// Package steady has steps of tests in real time that do not fail on a machine that stands still for some seconds. It
// is not for tests about time limits, or about what happens when a store does not answer.
package steady

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// limit is how long a step is repeated. A step that fails for so long does not fail because of the machine.
const limit = time.Minute

// Lock returns a lease on key, which may be held by somebody else at first. It tries again while the store is
// unavailable. Only the test's own goroutine may call it.
func Lock(t testing.TB, l locker.Locker, key string, opts ...locker.Option) (lease locker.Lease) {
	t.Helper()
	err := repeat(func() (err error) {
		lease, err = l.Lock(t.Context(), key, opts...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// Unlock releases lease, or fails the test. Any goroutine may call it.
func Unlock(t testing.TB, lease locker.Lease) {
	t.Helper()
	if err := Release(lease); err != nil {
		t.Error(err)
	}
}

// Release releases lease. The lease itself waits for the answer for a second, and then releases the lock in the
// background. So Release asks again, and returns nil if an earlier release may have been the one that was executed.
func Release(lease locker.Lease) error {
	return repeat(func() error {
		err := lease.Unlock(context.Background())
		if errors.Is(err, locker.ErrUnavailable) && strings.Contains(err.Error(), "an earlier release was not answered") {
			return nil
		}
		return err
	})
}

func repeat(step func() error) error {
	for end := time.Now().Add(limit); ; {
		err := step()
		if !errors.Is(err, locker.ErrUnavailable) || time.Now().After(end) {
			return err
		}
		<-time.After(10 * time.Millisecond)
	}
}

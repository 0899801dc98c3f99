package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/redlock"
)

// An owner that has died with a majority is not a holder for ever. A waiter asks the quorum every few seconds.
func TestADeadMajorityIsNotAHolder(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 3)
		holder, w := c.client(t, driver), c.client(t, driver, redlock.Budget(time.Second))
		c.lockAll(t, holder, "k")
		waits := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }})
		got := make(chan error, 1)
		go func() {
			_, err := w.Lock(ctx, "k", locker.TTL(longTTL), locker.Patience(time.Hour))
			got <- err
		}()
		<-waits
		c[0].Kill()
		c[1].Kill()
		err := <-got
		if !errors.Is(err, locker.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, locker.ErrHeld) {
			t.Errorf("%v, want an error that matches ErrNoQuorum and the context's, and not ErrHeld", err)
		}
	})
}

package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// A lease cannot be extended to a TTL above the guard: nodes that have forgotten the lock would grant it to somebody
// else before it ends. Nothing is sent, and the lease is as before.
func TestExtensionAboveTheGuard(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		c, other := g.client(), g.client()
		lease, err := c.TryLock(t.Context(), "k", locker.TTL(guarded/2))
		if err != nil {
			t.Fatal(err)
		}
		until, asked := lease.Until(), g.asked.Load()
		err = locker.ExtendTTL(t.Context(), lease, guarded+time.Millisecond)
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("above the guard: %v", err)
		}
		wantText(t, err, "TTL 10.001s is above the 10s that the restart guard allows")
		if now := g.asked.Load(); now != asked || !lease.Until().Equal(until) {
			t.Errorf("%d commands were sent, and Until moved by %v", now-asked, lease.Until().Sub(until))
		}
		time.Sleep(3 * guarded) // renewals keep to the old TTL
		if left := time.Until(lease.Until()); lease.Err() != nil || left > guarded/2 {
			t.Errorf("%v, and %v are left", lease.Err(), left)
		}
		if err := locker.ExtendTTL(t.Context(), lease, guarded); err != nil {
			t.Errorf("as long as the guard: %v", err)
		}
		if _, err := other.TryLock(t.Context(), "k", locker.TTL(guarded)); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("the lock is held: %v", err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		g.close(c, other)
	})
}

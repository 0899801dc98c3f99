package single_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// What a waiter leaves on the server when it gives up is nothing, if the server has answered all that it asked for.
func TestWaiterThatLeavesLeavesNothing(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		holder, waiter := closing(t, single.New(build(t, s.Addr()))), closing(t, single.New(build(t, s.Addr())))
		lease := mustTry(t, holder, locker.TTL(time.Minute))
		first := lockLater(t, waiter) // so that the subscription is there, and nobody looks again when it comes
		listening(t, s, 1)
		steady.Unlock(t, lease)
		take(t, first)
		lease = mustTry(t, holder, locker.TTL(time.Minute))
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			// The first answer has come.
			traced := lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { cancel() }})
			if _, err := waiter.Lock(traced, "k", locker.TTL(time.Hour)); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		eventually(t, 10*time.Second, "nobody is in the queue", func() bool { return queued(t, s) == 0 })
		if left := s.Fields(t, "{lock:k}:lockwait"); len(left) > 0 {
			t.Errorf("%d waiters have left, and %d tombstones", 50, len(left))
		}
		steady.Unlock(t, lease)
		nothingLeft(t, s)
	})
}

// An operator takes the lock from a waiter that is on its way to claim it: that is no outage, and it waits on in its
// place.
func TestForceReleaseAtTheHandOver(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		p := fault.New(t, s.Addr())
		holder := closing(t, single.New(build(t, s.Addr())))
		lease := mustTry(t, holder, locker.TTL(time.Minute))
		waiting := lockLater(t, closing(t, single.New(build(t, p.Addr()))))
		listening(t, s, 1)
		second := lockLater(t, closing(t, single.New(build(t, s.Addr()))))
		listening(t, s, 2)
		third := lockLater(t, closing(t, single.New(build(t, s.Addr()))))
		listening(t, s, 3)
		p.Handle(func(r fault.Request) fault.Action {
			if isClaim(r) {
				return fault.Hold
			}
			return fault.Pass
		})
		steady.Unlock(t, lease)
		p.Wait(t, isClaim)
		if _, err := holder.ForceRelease(t.Context(), "k", ""); err != nil {
			t.Fatal(err)
		}
		o := <-second
		if o.err != nil {
			t.Fatal(o.err)
		}
		p.Handle(nil)
		p.Release()
		eventually(t, 30*time.Second, "the waiter is in the queue again", func() bool { return queued(t, s) == 2 })
		steady.Unlock(t, o.lease)
		if first, last := take(t, waiting), take(t, third); first.After(last) {
			t.Error("the waiter has lost its place")
		}
		nothingLeft(t, s)
	})
}

package redlock

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// A waiter asks the quorum about every two seconds, and the node that keeps the queue three times a second. It cannot
// tell a lost message from a message that is yet to come.
func TestWaitersCostLittle(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newStreet(t)
		holder, waiter := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		const minute = 60
		begun := s.asked()
		time.AfterFunc(minute*time.Second, func() { _ = lease.Unlock(t.Context()) })
		looks := 0
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Woken: func(lockertrace.Wake) { looks++ }})
		next, err := waiter.Lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if n := s.asked() - begun; n > minute/2+2 || looks > 3*minute {
			t.Errorf("%d attempts and %d looks in a minute", n, looks)
		}
		_ = next.Unlock(t.Context())
		time.Sleep(time.Minute)
		s.close()
	})
}

package redlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// The node that keeps the queue may lack the lock, and tell a waiter only that others come first. The waiter then does
// not say that it waits for somebody without a label, but finds out who has the lock.
func TestWaitingNamesAHolderThatTheQueueDoesNotKnow(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newStreet(t)
		holder, waiter := s.client(), s.client()
		keeper := s.backends[0].keeper("k", nil)
		s.set(0, keeper, "dead")
		lease, err := holder.Lock(t.Context(), "k", locker.TTL(time.Minute), locker.Label("web-7:4211"))
		if err != nil {
			t.Fatal(err)
		}
		if first, err := s.backends[1].nodes[keeper].NewTurn("k").Ask(t.Context()); err != nil || !first.Mine {
			t.Fatal("somebody else has the turn:", first, err)
		}
		s.backends[1].hints.contend("k") // so that the waiter queues before it asks
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var labels []string
		ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(w lockertrace.Waiting) {
			labels = append(labels, w.Label)
		}})
		if _, err := waiter.Lock(ctx, "k"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		if len(labels) != 1 || labels[0] != "web-7:4211" {
			t.Errorf("the waiter was told of the holders %q", labels)
		}
		s.set(0, keeper, "")
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		s.close()
	})
}

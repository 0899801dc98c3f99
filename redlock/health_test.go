package redlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A node that an acquisition stopped waiting for may be in order, for example after a stall of this process. When the
// first node of an order says that the lock is held, the caller is told that, unless a majority has failed.
func TestNodesThatWereSlowAreNotTakenForFailed(t *testing.T) {
	for _, failed := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			s := newTestbed(t)
			holder, other := s.client(), s.client()
			lease, err := holder.Lock(t.Context(), "k", locker.TTL(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // all nodes have granted it
			b := s.backends[1]
			first := agreed("k", len(b.nodes))
			(allOf(len(b.nodes)) &^ only(first)).each(func(i int) {
				if b.health.silent(i); failed {
					b.health.failed(i)
				}
			})
			b.hints.note("k", true, 0) // so that it asks one node first
			_, err = other.TryLock(t.Context(), "k")
			if errors.Is(err, locker.ErrHeld) == failed || errors.Is(err, locker.ErrNoQuorum) != failed {
				t.Errorf("others failed %t: %v", failed, err)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
			s.close()
		})
	}
}

// A node that says that the lock is not free has answered, even if the caller has left and nothing more is sent to it.
func TestNodesThatAnswerLateAreNotTakenForFailed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		holder, other := s.client(), s.client()
		lease, err := holder.Lock(t.Context(), "k", locker.TTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // all nodes have granted it
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		if _, err := other.TryLock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		h := &s.backends[1].health
		if quiet, faulty := h.quiet.Load(), h.faulty.Load(); quiet|faulty != 0 {
			t.Errorf("nodes that count as quiet: %b, as faulty: %b", quiet, faulty)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		s.close()
	})
}

// What a node says to an attempt tells whether the node is in order. An attempt that was executed after its own
// clean-up was answered: Lock would say otherwise that there is no quorum, if two of five nodes are dead and a waiter
// has left the third one just now.
func TestAnswersTellWhetherANodeIsInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		s.client()
		b := s.backends[0]
		for _, tt := range []struct {
			vote    node.Vote
			inOrder bool
		}{
			{node.Vote{Granted: true}, true},
			{node.Vote{Err: &locker.HeldError{}}, true},
			{node.Vote{Err: fmt.Errorf("%w: %w", locker.ErrUnavailable, node.ErrGivenUp)}, true},
			{node.Vote{Err: fmt.Errorf("%w: %w", locker.ErrUnavailable, io.EOF)}, false},
		} {
			for _, before := range []bool{false, true} {
				b.health = health{}
				if !before {
					b.health.failed(0)
				}
				newAcquisition(t.Context(), b, backend.Request{Key: "k", TTL: time.Minute}, true).heard(0, &tt.vote)
				if got := !b.health.isFaulty(0); got != tt.inOrder {
					t.Errorf("%+v: in order before %t, now %t", tt.vote, before, got)
				}
			}
		}
		s.close()
	})
}

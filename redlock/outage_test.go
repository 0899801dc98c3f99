package redlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A waiter is told that the quorum is lost, and not of a holder that most nodes do not know any more. The same holds
// for callers that wait behind one another in a Client. Their patience counts from when the first of them noticed the
// loss.
func TestWhoWaitsIsToldThatTheQuorumIsLost(t *testing.T) {
	for _, state := range []string{"dead", "hung"} {
		for _, keeper := range []int{0, 1} { // whether the node that keeps the queue is among those that are down
			t.Run(fmt.Sprint(state, " keeper down=", keeper == 0), func(t *testing.T) {
				virtual.Test(t, func(t *testing.T) {
					s := newStreet(t)
					holder, w := s.client(), s.client()
					held, err := holder.Lock(t.Context(), "k", locker.TTL(time.Hour), locker.NoRenewal())
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					lock := func(w *locker.Client, d time.Duration, opts ...locker.Option) <-chan error {
						got := make(chan error, 1)
						ctx, cancel := context.WithTimeout(t.Context(), d)
						go func() {
							defer cancel()
							_, err := w.Lock(ctx, "k", opts...)
							got <- err
						}()
						time.Sleep(10 * time.Millisecond)
						return got
					}
					short, long := lock(w, 5*time.Second), lock(w, 25*time.Second)
					alone := lock(s.client(), 25*time.Second, locker.Patience(2*time.Second))
					time.Sleep(time.Second)
					for i := range 3 {
						s.set(everybody, (queueNode+keeper+i)%5, state)
					}
					err = <-short
					if !errors.Is(err, locker.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) ||
						errors.Is(err, locker.ErrHeld) {
						t.Errorf("after %v: %v", time.Since(begun), err)
					}
					err = <-alone // it is the second in the queue, and asks the quorum six seconds after it has begun to wait
					if took := time.Since(begun); !errors.Is(err, locker.ErrNoQuorum) || took > 10*time.Second {
						t.Errorf("with a patience of two seconds, after %v: %v", took, err)
					}
					err = <-long
					if !errors.Is(err, locker.ErrNoQuorum) || errors.Is(err, context.DeadlineExceeded) ||
						errors.Is(err, locker.ErrHeld) {
						t.Errorf("after %v: %v", time.Since(begun), err)
					}
					// A second, the time until it is noticed, and the patience, with the last attempts.
					if took := time.Since(begun); took < time.Second+locker.DefaultPatience ||
						took > 4*time.Second+locker.DefaultPatience+2*DefaultBudget {
						t.Errorf("it was given up after %v: %v", took, err)
					}
					for i := range s.nodes {
						s.set(everybody, i, "")
					}
					if err := held.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Minute)
					s.close()
				})
			})
		}
	}
}

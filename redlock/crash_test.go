package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A holder that dies right after it was given the turn is waited for until its TTL is over, or until the turn is, if
// that takes longer.
func TestWaiterTakesTheLockWhenTheNextHolderHasDied(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for held := time.Duration(0); held < 4*time.Second; held += 390 * time.Millisecond {
			t.Run(fmt.Sprintf("%v after %v", ttl, held), func(t *testing.T) {
				virtual.Test(t, func(t *testing.T) { nextHolderDies(t, ttl, held) })
			})
		}
	}
}

func nextHolderDies(t *testing.T, ttl, held time.Duration) {
	s := newStreet(t)
	type got struct {
		lease locker.Lease
		err   error
		at    time.Time
	}
	lock := func(c *locker.Client) <-chan got {
		locked := make(chan got, 1)
		go func() {
			l, err := c.Lock(t.Context(), "k", locker.TTL(ttl))
			locked <- got{l, err, time.Now()}
		}()
		time.Sleep(10 * time.Millisecond)
		return locked
	}
	first := <-lock(s.client())
	next, waits := lock(s.client()), lock(s.client())
	time.Sleep(held)
	if err := first.lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	dead := <-next
	s.setAll(1, "hung")

	last := <-waits
	if late := last.at.Sub(dead.at.Add(max(ttl, script.ClaimWindow))); late > 20*time.Millisecond {
		t.Errorf("%v late", late)
	}
	s.setAll(1, "")
	if err := last.lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	s.close()
}

// setAll puts the ways from a client to all nodes into a state.
func (s *street) setAll(client int, state string) {
	for i := range s.nodes {
		s.set(client, i, state)
	}
}

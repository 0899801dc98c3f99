package redlock

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
)

// Nobody waits for a minority that hangs or is dead. TestMinorityFails shows it with real servers and clients, whose
// speed differs from machine to machine.
func TestNobodyWaitsForAMinority(t *testing.T) {
	for _, states := range [][]string{{}, {"hung"}, {"dead"}, {"hung", "hung"}, {"dead", "hung"}, {"dead", "dead"}} {
		virtual.Test(t, func(t *testing.T) {
			s := newStreet(t)
			l := s.client()
			for i, state := range states {
				s.set(everybody, i, state)
			}
			for n := range 30 {
				start := time.Now()
				lease, err := l.TryLock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				if err := lease.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				// Two round trips, and once a millisecond for a node whose grant may still be under way.
				if took := time.Since(start); took > 2*time.Millisecond {
					t.Errorf("%q: cycle %d took %v", states, n, took)
				}
				time.Sleep(10 * time.Millisecond)
			}
			for i := range states {
				s.set(everybody, i, "")
			}
			time.Sleep(time.Minute)
			s.close()
		})
	}
}

package locker_test

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/crowd"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// Workers that lock random subsets of keys never wait for each other in a circle, never hold a part of what they asked
// for after a failure, and get growing tokens.
func TestCrowdOfLockAll(t *testing.T) {
	for name, wrap := range map[string]func(l locker.Locker) locker.Locker{
		"in one step": func(l locker.Locker) locker.Locker { return l },
		"one by one":  func(l locker.Locker) locker.Locker { return plain{l} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				b := memory.NewBackend()
				c := crowd.Crowd{TTL: 500 * time.Millisecond, Crash: 50, Open: func() (*locker.Client, locker.Locker) {
					c := locker.NewClient(b)
					return c, wrap(c)
				}}
				if lost := c.Run(t, crowd.Calls(2000)); lost > 0 {
					t.Errorf("%d leases were lost", lost)
				}
			})
		})
	}
}

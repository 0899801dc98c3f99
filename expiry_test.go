package locker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// The more leases may end at the same time, the earlier they begin to, so that the last one is told in time.
func TestManyLeasesThatEndTogetherEndEarlier(t *testing.T) {
	for n, want := range map[int]time.Duration{
		1: 0, 900: 0, 10_000: 80 * time.Millisecond, 50_000: 200 * time.Millisecond, // a tenth of the TTL at most
	} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				const ttl = 2 * time.Second
				c := locker.NewClient(memory.NewBackend())
				var lease locker.Lease
				for i := range n {
					lease = mustLock(t, c, fmt.Sprint(i), locker.TTL(ttl), locker.NoRenewal())
				}
				until := lease.Until()
				<-lease.Done()
				// One lease ends a hundredth of the TTL and a millisecond before Until; see margin.
				early := time.Until(until) - ttl/100 - time.Millisecond
				if early < want-want/10 || early > want {
					t.Errorf("the lease has ended %v earlier than a single one, want %v", early, want)
				}
				_ = c.Close()
			})
		})
	}
}

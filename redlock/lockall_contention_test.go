package redlock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/redlock"
)

// Workers lock random subsets of keys on a Redlock, one lock after the other, with a crash now and then. "trial crowd"
// makes 10,000 calls.
func TestCrowdOfLockAll(t *testing.T) {
	t.Parallel()
	servers := startCluster(t, 3)
	calls := contention.CrowdCalls(1200) / 10
	crowds := min(8, 1+calls/1000) // a crash stops most of a crowd until the TTL ends
	var all sync.WaitGroup
	for i := range crowds {
		prefix := redlock.Prefix(fmt.Sprintf("crowd-%d:", i))
		c := contention.Crowd{TTL: 3 * time.Second, Crash: 60, Open: func() (*locker.Client, locker.Locker) {
			l := client(t, "mixed", servers.addrs(), prefix)
			return l, l
		}}
		all.Go(func() { c.Run(t, calls/crowds) })
	}
	all.Wait()
}

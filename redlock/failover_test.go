package redlock_test

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
)

// A replica takes over from each node, and the addresses lead to it. Nobody closes a connection to the former nodes,
// which live on as replicas. Every Client leaves them, so that all new nodes have its next locks.
func TestClientsLeaveFormerNodes(t *testing.T) {
	t.Parallel()
	old := startCluster(t, 3)
	var next cluster
	var proxies []*fault.Proxy
	var addrs []string
	for _, s := range old {
		next = append(next, redistest.StartReplica(t, s))
		proxies = append(proxies, fault.New(t, s.Addr()))
		addrs = append(addrs, proxies[len(proxies)-1].Addr())
	}
	clients := map[string]*locker.Client{}
	for _, name := range append(drivers.Names(), "mixed") {
		clients[name] = client(t, name, addrs)
		eventually(t, 30*time.Second, name+": a lock from the former nodes", func() bool {
			return tryCycle(t.Context(), clients[name], name) == nil
		})
	}
	for i := range old {
		next[i].Cmd(t, "REPLICAOF", "NO", "ONE")
		old[i].Follow(t, next[i])
		proxies[i].Redirect(next[i].Addr())
	}
	for name, l := range clients {
		eventually(t, 30*time.Second, name+": a lock on all new nodes", func() bool {
			lease, err := l.TryLock(t.Context(), name, locker.TTL(longTTL))
			if err != nil {
				return false
			}
			on := within(time.Second, func() bool {
				for _, s := range next {
					if len(s.Keys(t, "lock:"+name)) == 0 {
						return false
					}
				}
				return true
			})
			return lease.Unlock(t.Context()) == nil && on
		})
	}
}

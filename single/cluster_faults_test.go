package single_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/single"
)

// keysOf returns two keys of each server of a simulated cluster.
func keysOf(servers int) [][]string {
	keys := make([][]string, servers)
	for i, missing := 0, 2*servers; missing > 0; i++ {
		key := fmt.Sprint(i)
		server := simnode.ServerOf(single.DefaultPrefix+key, servers)
		if len(keys[server]) < 2 {
			keys[server] = append(keys[server], key)
			missing--
		}
	}
	return keys
}

// One server of a cluster is down and another one hangs. Leases on the third one last, and calls take as long as ever.
func TestIllServersOfAClusterAreNotNoticedElsewhere(t *testing.T) {
	for name, opts := range map[string][]simnode.Option{"not direct": nil, "direct": {simnode.Direct(always)}} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				nodes, keys := simnode.NewNodes(3), keysOf(3)
				var wires [3]simnode.Wire
				network := func(i int) simnode.Network { return wires[i].DeliverInTime }
				c := single.New(simnode.Cluster(nodes, network, opts...))
				var leases [3]locker.Lease
				for i := range leases {
					var err error
					if leases[i], err = lock3s(c, keys[i][0]); err != nil {
						t.Fatal(err)
					}
				}
				up, resume := wires[0].Fail(), wires[1].Hang()
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				var callers sync.WaitGroup
				for range 5 { // more than may be in flight
					for _, key := range []string{keys[0][1], keys[1][1]} {
						callers.Go(func() {
							for ctx.Err() == nil {
								_, _ = c.TryLock(ctx, key)
								time.Sleep(10 * time.Millisecond)
							}
						})
					}
				}
				for ctx.Err() == nil {
					begun := time.Now()
					if err := cycle(c, keys[2][1]); err != nil {
						t.Error(err)
					}
					if took := time.Since(begun); took > time.Millisecond {
						t.Errorf("lock and unlock took %v", took)
					}
					time.Sleep(50 * time.Millisecond)
				}
				stop()
				callers.Wait()
				up()
				resume()
				for i, lease := range leases {
					if lost := lease.Err() != nil; lost != (i < 2) {
						t.Errorf("server %d: the lease is lost: %v, %v", i, lost, lease.Err())
					}
				}
				if err := leases[2].Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(3 * time.Second) // until all has been undone
				if left := nodes.Left(); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// lock3s locks key for three seconds, with a context that cannot be cancelled.
func lock3s(c *locker.Client, key string) (locker.Lease, error) {
	return c.Lock(context.Background(), key, locker.TTL(3*time.Second))
}

func cycle(c *locker.Client, key string) error {
	lease, err := lock3s(c, key)
	if err != nil {
		return err
	}
	return lease.Unlock(context.Background())
}

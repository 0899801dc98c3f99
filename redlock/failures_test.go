package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/redlock"
)

// A minority that hangs or is dead stops nobody, and nobody waits for it. To wait would cost the budget, or the time of
// an exchange, which are both long here. TestNobodyWaitsForAMinority measures the same in virtual time.
func TestMinorityFails(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		l := c.client(t, driver, redlock.Timeout(longTimeout))
		cycles := func(what string, alive ...int) {
			t.Helper()
			var took []time.Duration
			for range 30 {
				start := time.Now()
				cycle(t, l, "k")
				took = append(took, time.Since(start))
				// On nodes where the release is still in flight, the next cycle finds a lock that it takes for somebody
				// else's. It then does not wait for nodes that are late, and loses if too few others are left.
				for _, i := range alive {
					c[i : i+1].wantNoLocks(t)
				}
			}
			if best, worst := slices.Min(took), slices.Max(took); best > 250*time.Millisecond || worst > longTimeout/2 {
				t.Errorf("%s: a cycle takes from %v to %v", what, best, worst)
			}
		}
		cycles("healthy", 0, 1, 2, 3, 4)
		c[0].Pause()
		cycles("one hung", 1, 2, 3, 4)
		c[1].Pause()
		cycles("two hung", 2, 3, 4)
		c[0].Kill()
		cycles("one hung, one killed", 2, 3, 4)
		c[1].Kill()
		cycles("two killed", 2, 3, 4)
		c[0].Restart()
		c[2].Pause()
		eventually(t, 30*time.Second, "a node that is back replaces one that fails", func() bool {
			// While the node is not back, too few nodes answer to decide.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			return tryCycle(ctx, l, "k") == nil
		})
		c[2].Resume()
		c[1].Restart()
		c.wantNoLocks(t)
	})
}

// A lease survives the failure of a minority of its nodes: it can be extended and released. The same holds for leases
// that are acquired at the same time while nodes are busy, because nobody waits for all nodes and all are asked.
func TestMinorityFailsUnderALease(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		for name, fail := range map[string]func(*redistest.Server){"hung": (*redistest.Server).Pause,
			"killed": (*redistest.Server).Kill} {
			c := startCluster(t, 5)
			l := c.client(t, driver)
			leases := take(t, l, "k", 200, 8, locker.TTL(longTTL), locker.NoRenewal())
			eventually(t, 30*time.Second, "all leases are on all nodes",
				func() bool { return c.everywhere(t, "k", len(leases)) })
			fail(c[1])
			fail(c[3])
			for _, lease := range leases {
				// The answer of a node that has granted may still be on its way to the client.
				eventually(t, 30*time.Second, name+": it is extended", func() bool { return lease.Extend(t.Context()) == nil })
				steady.Unlock(t, lease)
			}
			if name == "hung" {
				c[1].Resume()
				c[3].Resume()
				c.wantNoLocks(t)
			} else {
				cluster{c[0], c[2], c[4]}.wantNoLocks(t)
			}
		}
	})
}

// An extension that finds no majority ends with the lease, not with its budget, which is long here.
func TestExtendEndsWithTheLease(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 3)
		l := c.client(t, driver)
		var lease locker.Lease
		eventually(t, 30*time.Second, "it is locked", func() bool {
			var err error
			lease, err = l.TryLock(t.Context(), "k", locker.TTL(2*time.Second), locker.NoRenewal())
			return err == nil
		})
		c[0].Pause()
		c[1].Pause()
		wantErr(t, lease.Extend(t.Context()), locker.ErrLost)
		c[0].Resume()
		c[1].Resume()
	})
}

func TestMajorityFails(t *testing.T) {
	t.Parallel()
	const budget = 300 * time.Millisecond
	tests := map[string]struct {
		fail    func(c cluster)
		restore func(c cluster)
		reasons []string // of nodes 0, 1, 2
	}{
		"killed": {
			func(c cluster) { c[0].Kill(); c[1].Kill(); c[2].Kill() },
			func(c cluster) { c[0].Restart(); c[1].Restart(); c[2].Restart() },
			[]string{"connection refused", "connection refused", "connection refused"},
		},
		"hung": {
			func(c cluster) { c[0].Pause(); c[1].Pause(); c[2].Pause() },
			func(c cluster) { c[0].Resume(); c[1].Resume(); c[2].Resume() },
			[]string{"no answer", "no answer", "no answer"},
		},
		"two killed, one hung": {
			func(c cluster) { c[0].Kill(); c[1].Kill(); c[2].Pause() },
			func(c cluster) { c[0].Restart(); c[1].Restart(); c[2].Resume() },
			[]string{"connection refused", "connection refused", "no answer"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				c := startCluster(t, 5)
				l := c.client(t, driver, redlock.Budget(budget), redlock.Timeout(longTimeout))
				eventually(t, 30*time.Second, "it works at first", func() bool { return tryCycle(t.Context(), l, "k") == nil })
				c.wantNoLocks(t)
				tt.fail(c)
				var err error
				try := func() {
					t.Helper()
					start := time.Now()
					_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
					if took := time.Since(start); took > longTimeout/2 {
						t.Errorf("took %v, with a budget of %v", took, budget)
					}
					wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
				}
				// The first attempts may meet connections that were there before the servers died.
				reason := func(i int) string { v := voteOf(t, err, c[i].Addr()); return fmt.Sprint(v.Outcome, " ", v.Err) }
				eventually(t, 30*time.Second, "the error gives the reasons", func() bool {
					try()
					for i, want := range tt.reasons {
						if !strings.Contains(reason(i), want) {
							return false
						}
					}
					return true
				})
				for i, want := range tt.reasons {
					wantText(t, err, c[i].Addr(), want)
				}
				if q := quorumError(t, err); q.Op != "acquire" || q.Need != 3 || len(q.Votes) != 5 {
					t.Errorf("%+v", q)
				}
				cluster{c[3], c[4]}.wantNoLocks(t)
				tt.restore(c)
				eventually(t, 30*time.Second, "it works when they are back", func() bool {
					return tryCycle(t.Context(), l, "k") == nil
				})
				c.wantNoLocks(t)
			})
		})
	}
}

// With a majority gone under a lease, its holder learns that nothing is certain any more, and the rest is cleaned up.
func TestMajorityFailsUnderALease(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 5)
		l := c.client(t, driver, redlock.Budget(300*time.Millisecond), redlock.Timeout(longTimeout))
		lease := c.lockAll(t, l, "k")
		for _, s := range c[:3] {
			s.Pause()
		}
		// Should the machine stall for as long as the budget, the other two have not answered in time either: then the
		// next try shows what is said of nodes that hang.
		asked := func(op string, f func(context.Context) error) {
			t.Helper()
			var err error
			eventually(t, 30*time.Second, op+" is answered by two", func() bool {
				err = f(t.Context())
				wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
				return strings.Contains(fmt.Sprint(err), op+": 2 of 5")
			})
			wantText(t, err, c[0].Addr()+" no answer", c[1].Addr()+" no answer", c[2].Addr()+" no answer")
		}
		asked("extend", func(ctx context.Context) error { return lease.Extend(ctx) })
		if lease.Err() != nil {
			t.Errorf("no answer is no loss: %v", lease.Err())
		}
		asked("release", lease.Unlock)
		for _, s := range c[:3] {
			s.Resume()
		}
		c.wantNoLocks(t)
	})
}

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

package single_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// handedOver are the ways to make the replica the master that leave the connections of subscribers open: they hang on
// what is a replica from then on.
var handedOver = map[string]func(t *testing.T, old, next *redistest.Server){"FAILOVER": failOver, "REPLICAOF": swap}

// failOver is done by swap on a server that does not know the command yet (Redis 6.0).
func failOver(t *testing.T, old, next *redistest.Server) {
	if _, err := old.Do("FAILOVER"); err != nil {
		swap(t, old, next)
		return
	}
	eventually(t, 30*time.Second, "the replica is the master", func() bool { return next.IsMaster() && !old.IsMaster() })
}

func swap(t *testing.T, old, next *redistest.Server) {
	eventually(t, 30*time.Second, "the replica has the lock and those who wait", func() bool {
		return next.Cmd(t, "EXISTS", "lock:k") == old.Cmd(t, "EXISTS", "lock:k") && queued(t, next) == queued(t, old)
	})
	next.Cmd(t, "REPLICAOF", "NO", "ONE")
	old.Follow(t, next)
}

// moveTo makes next the master, where new connections through p lead from then on, and commands with them.
// Subscriptions stay where they are.
func moveTo(
	t *testing.T, way func(t *testing.T, old, next *redistest.Server), p *fault.Proxy, old, next *redistest.Server,
) {
	t.Helper()
	way(t, old, next)
	p.Redirect(next.Addr())
	old.Cmd(t, "CLIENT", "KILL", "TYPE", "normal")
}

// replicated starts a master with a replica, and a proxy to the master.
func replicated(t *testing.T) (master, replica *redistest.Server, p *fault.Proxy) {
	t.Helper()
	master = redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica = redistest.StartReplica(t, master)
	eventually(t, 30*time.Second, "the replica follows", func() bool {
		role, _ := replica.Do("ROLE")
		r, ok := role.([]any)
		return ok && len(r) > 3 && r[3] == "connected"
	})
	confirms(t, master)
	return master, replica, fault.New(t, master.Addr())
}

// confirms waits until the master counts a replica, which takes up to a second after the replica has its data.
func confirms(t testing.TB, master *redistest.Server) {
	t.Helper()
	eventually(t, 30*time.Second, "the replica confirms", func() bool {
		n, _ := master.Do("WAIT", 1, 100)
		return n == int64(1)
	})
}

// Waiters follow a planned failover to the new master, with their subscriptions. The lock is handed to them there, in
// their order.
func TestWaitersFollowThePlannedFailover(t *testing.T) {
	t.Parallel()
	for name, way := range handedOver {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				old, next, p := replicated(t)
				lease := mustTry(t, closing(t, single.New(build(t, p.Addr()))), locker.TTL(time.Minute))
				var waiters []<-chan outcome
				for i := range 3 {
					waiters = append(waiters, lockLater(t, closing(t, single.New(build(t, p.Addr())))))
					listening(t, old, i+1)
				}
				moveTo(t, way, p, old, next)
				eventually(t, time.Minute, "all subscribe to the new master",
					func() bool { return connections(t, next) == len(waiters) })
				if n := connections(t, old); n > 0 {
					t.Errorf("%d subscriptions are left at the old master", n)
				}
				listening(t, next, len(waiters))
				newcomer := lockLater(t, closing(t, single.New(build(t, p.Addr()))))
				listening(t, next, len(waiters)+1)
				steady.Unlock(t, lease)
				var last time.Time
				for i, w := range append(waiters, newcomer) {
					at := take(t, w)
					if at.Before(last) {
						t.Errorf("waiter %d had the lock before the one in front of it", i)
					}
					last = at
				}
				nothingLeft(t, next)
			})
		})
	}
}

// The roles of two servers change, and the address that the clients have leads to the new master. Nobody closes a
// connection, so the clients themselves have to leave the former master, which refuses all that they write.
func TestClientsLeaveTheFormerMaster(t *testing.T) {
	t.Parallel()
	for how, way := range handedOver {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			old, next, p := replicated(t)
			clients := map[string]*locker.Client{}
			leases := map[string]locker.Lease{}
			for name, build := range builders {
				clients[name] = closing(t, single.New(build(t, p.Addr())))
				leases[name] = steady.Lock(t, clients[name], "held by "+name)
			}
			together := func(name string) error { // over several connections, if the client has them
				errs := make(chan error)
				for i := range 8 {
					go func() {
						lease, err := clients[name].TryLock(t.Context(), fmt.Sprint(name, i))
						if err == nil {
							err = lease.Unlock(t.Context())
						}
						errs <- err
					}()
				}
				var err error
				for range 8 {
					err = cmp.Or(<-errs, err)
				}
				return err
			}
			for name := range clients {
				eventually(t, 30*time.Second, name+" gets locks", func() bool { return together(name) == nil })
			}
			eventually(t, 30*time.Second, "the replica has the locks", func() bool {
				return len(next.Keys(t, "lock:held by *")) == len(leases)
			})
			way(t, old, next)
			p.Redirect(next.Addr())
			for name := range clients {
				failed := -1
				eventually(t, 30*time.Second, name+" gets locks from the new master", func() bool {
					failed++
					return together(name) == nil
				})
				t.Logf("%s: %d attempts failed", name, failed)
			}
			for name := range clients {
				eventually(t, 30*time.Second, name+" still has its lock", func() bool {
					return locker.Verify(t.Context(), leases[name]) == nil
				})
			}
		})
	}
}

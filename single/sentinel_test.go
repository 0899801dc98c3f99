package single_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	goredisclient "github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/single"
)

// go-redis writes to its process-wide logger when it cannot connect.
func init() { goredisclient.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// sentinelBuilders are the ways to reach the master that a sentinel names.
var sentinelBuilders = map[string]func(t testing.TB, sentinel string) drivers.Driver{
	"goredis": func(t testing.TB, sentinel string) drivers.Driver {
		c := goredisclient.NewFailoverClient(&goredisclient.FailoverOptions{
			MasterName: redistest.SentinelMaster, SentinelAddrs: []string{sentinel}, ContextTimeoutEnabled: true,
		})
		t.Cleanup(func() { _ = c.Close() })
		return goredisdriver.New(c)
	},
	"rueidis": func(t testing.TB, sentinel string) drivers.Driver {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{
			InitAddress: []string{sentinel}, Sentinel: rueidisclient.SentinelOption{MasterSet: redistest.SentinelMaster},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return rueidisdriver.New(c)
	},
	"goredis, from configuration": followed("goredis"),
	"rueidis, from configuration": followed("rueidis"),
}

func followed(name string) func(t testing.TB, sentinel string) drivers.Driver {
	return func(t testing.TB, sentinel string) drivers.Driver {
		d, err := drivers.Open(t.Context(), name, drivers.Config{
			Sentinel: &drivers.Sentinel{Master: redistest.SentinelMaster, Addrs: []string{sentinel}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
}

// A sentinel makes the replica the master: on an operator's word, and because the master is gone. Whether locks survive
// is up to the replica. What is promised: errors say that the store is unavailable and never that a free lock is held,
// those who wait and those who come get locks again, and tokens grow.
func TestFailoverBySentinel(t *testing.T) {
	t.Parallel()
	for _, name := range short.Part(t, 2, slices.Sorted(maps.Keys(sentinelBuilders))) {
		build := sentinelBuilders[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
			replica := redistest.StartReplica(t, master)
			sentinel := redistest.StartSentinel(t, master, replica)
			l := closing(t, single.New(build(t, sentinel.Addr())))
			waiter := closing(t, single.New(build(t, sentinel.Addr())))
			// A sentinel that a stall has surprised pauses for 30 s.
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			unlock := func(lease locker.Lease) {
				err := lease.Unlock(ctx)
				switch {
				case err == nil:
				case errors.Is(err, locker.ErrUnavailable), errors.Is(err, locker.ErrNotHeld):
					t.Logf("unlock: %v", err)
				default:
					t.Errorf("unlock: %v", err)
				}
			}

			last := uint64(0)
			for _, f := range []struct {
				next  *redistest.Server // the master then
				over  func()
				after func()
			}{
				{replica, func() {
					eventually(t, time.Minute, "the sentinel sees that the replica is fit", func() bool {
						if replica.IsMaster() { // by the sentinel's own doing, on a machine that stalls
							return true
						}
						_, err := sentinel.Do("SENTINEL", "FAILOVER", redistest.SentinelMaster)
						return err == nil
					})
				}, func() {
					// On a machine that stalls, the sentinel may give up a failover after the promotion. With a former
					// master that follows, it then sends clients to a replica for half a minute.
					eventually(t, time.Minute, "the sentinel names the new master", func() bool {
						named, err := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.SentinelMaster)
						if err == nil && fmt.Sprint(named) == fmt.Sprint(strings.Split(replica.Addr(), ":")) {
							return true
						}
						_, _ = sentinel.Do("SENTINEL", "FAILOVER", redistest.SentinelMaster) // refused while one is under way
						return false
					})
					master.Follow(t, replica) // which the sentinel would see to ten seconds later
				}},
				{master, replica.Kill, func() {}},
			} {
				var held locker.Lease
				eventually(t, 30*time.Second, "a lock", func() bool { // the client may still have to hear of the new master
					var err error
					held, err = l.Lock(ctx, "key", locker.TTL(3*time.Minute), locker.NoRenewal())
					if err != nil && !errors.Is(err, locker.ErrUnavailable) {
						t.Fatal(err)
					}
					return err == nil
				})
				if held.Fence() <= last {
					t.Errorf("token %d after %d", held.Fence(), last)
				}
				waiting := make(chan locker.Lease, 1)
				go func() {
					for ctx.Err() == nil { // Lock tolerates an outage of six seconds, and a busy machine may take longer
						if lease, err := waiter.Lock(ctx, "key"); err == nil {
							waiting <- lease
							return
						} else if !errors.Is(err, locker.ErrUnavailable) {
							t.Errorf("the waiter: %v", err)
						}
					}
					close(waiting)
				}()
				eventually(t, 30*time.Second, "somebody waits", func() bool {
					i, err := l.Inspect(ctx, "key")
					return err == nil && i.Waiting == 1
				})
				// Otherwise the next master could have the lock of the round before, whose release it has not heard of. It would
				// keep that for three minutes.
				eventually(t, 30*time.Second, "the next master has the lock", func() bool {
					value, err := f.next.Do("GET", single.DefaultPrefix+"key")
					return err == nil && strings.HasPrefix(fmt.Sprint(value), fmt.Sprint(held.Fence(), "|"))
				})
				f.over()
				failing, promoted := context.WithCancel(ctx)
				repeatedly(failing, func() {
					if f.next.IsMaster() {
						promoted()
					}
					lease, err := l.TryLock(ctx, "free")
					if err == nil {
						unlock(lease)
					} else if !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrHeld) {
						t.Errorf("trylock: %v", err)
					}
				})
				f.after()
				unlock(held)
				next := <-waiting
				if next == nil {
					for _, s := range []*redistest.Server{master, replica} {
						role, err := s.Do("ROLE")
						left, _ := s.Do("PTTL", single.DefaultPrefix+"key")
						t.Logf("%s: role %v, TTL of the lock %v, %v", s.Addr(), role, left, err)
					}
					named, err := sentinel.Do("SENTINEL", "MASTER", redistest.SentinelMaster)
					t.Logf("the sentinel: %v, %v", named, err)
					_, err = l.TryLock(t.Context(), "free")
					t.Logf("trylock by the holder's client: %v", err)
					t.Fatal("a waiter gets no lock from the new master")
				}
				if next.Fence() <= held.Fence() {
					t.Errorf("token %d after %d", next.Fence(), held.Fence())
				}
				last = next.Fence()
				eventually(t, 30*time.Second, "the lock is released", func() bool {
					err := next.Unlock(ctx)
					return !errors.Is(err, locker.ErrUnavailable)
				})
			}
			eventually(t, 30*time.Second, "locks are to be had as before", func() bool {
				lease, err := l.TryLock(ctx, "free")
				return err == nil && lease.Unlock(ctx) == nil
			})
		})
	}
}

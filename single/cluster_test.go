package single_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredisclient "github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// clusterBuilders are the ways to reach a cluster, with the clients' defaults but for what the driver's documentation
// says.
var clusterBuilders = map[string]func(t testing.TB, addrs []string) drivers.Driver{
	"goredis": func(t testing.TB, addrs []string) drivers.Driver {
		c := goredisclient.NewClusterClient(&goredisclient.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return goredisdriver.New(c)
	},
	"rueidis": func(t testing.TB, addrs []string) drivers.Driver {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: addrs})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return rueidisdriver.New(c)
	},
}

// clientBuilder makes a Client of a cluster, which is closed at the end of the test.
type clientBuilder func(opts ...single.Option) *locker.Client

// onCluster runs f with each driver, one after another on one cluster.
func onCluster(
	t *testing.T, f func(t *testing.T, c *redistest.Cluster, build clientBuilder), args ...string,
) {
	t.Helper()
	t.Parallel()
	c := redistest.StartCluster(t, 3, false, args...)
	for name, build := range clusterBuilders {
		t.Run(name, func(t *testing.T) {
			f(t, c, func(opts ...single.Option) *locker.Client {
				return closing(t, single.New(build(t, c.Addrs()), opts...))
			})
		})
	}
}

// Clients with different drivers on one cluster, too.
func conformCluster(t *testing.T) {
	t.Parallel()
	c, names := redistest.StartCluster(t, 3, false), slices.Sorted(maps.Keys(clusterBuilders))
	conformance.RunLocker(t, conformance.Harness{
		Store: func(t testing.TB) conformance.Store {
			prefix, n := backend.NewToken(), 0
			own := func(key string, cmd ...any) { c.Owner(t, c.Slot(t, prefix+key)).Cmd(t, cmd...) }
			return conformance.Store{
				Client: func() locker.Locker {
					n++
					build := clusterBuilders[names[n%len(names)]]
					return single.New(build(t, c.Addrs()), single.Prefix(prefix))
				},
				Delete: func(key string) { own(key, "DEL", prefix+key) },
				Foreign: func(key string) func() bool {
					own(key, "SET", prefix+key, "for ever")
					return nil
				},
			}
		},
	})
}

// keyOn returns a key whose lock is on a certain master, which no other call returns.
func keyOn(t *testing.T, c *redistest.Cluster, s *redistest.Server) string {
	for {
		if key := backend.NewToken(); c.Owner(t, c.Slot(t, single.DefaultPrefix+key)) == s {
			return key
		}
	}
}

// While a slot is on its way, its keys are in two places, and a script that needs several of them is refused. That is
// said, and nothing else: a lock is reported as held only because it is, and never as lost, and what could not be
// undone is when the slot has arrived.
func TestSlotMigratesUnderALock(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		l := build(single.Timeout(time.Second)) // a refused call is sent again for half of it
		from, to := c.Masters[0], c.Masters[1]
		key := keyOn(t, c, from)
		ctx := t.Context()
		held := steady.Lock(t, l, key, locker.TTL(time.Minute))
		waiting := make(chan locker.Lease, 1)
		waiter := build()
		go func() {
			lease, err := waiter.Lock(ctx, key, locker.TTL(time.Minute))
			if err != nil {
				t.Errorf("the waiter tolerates it, and keeps its position: %v", err)
			}
			waiting <- lease
		}()
		eventually(t, 30*time.Second, "somebody waits", func() bool {
			i, err := l.Inspect(ctx, key)
			return err == nil && i.Waiting == 1
		})

		m := c.Move(t, c.Slot(t, single.DefaultPrefix+key), to)
		stranger := build(single.Timeout(time.Second))
		for { // with each of its keys
			// All keys of the lock may be in one place.
			if _, err := stranger.TryLock(ctx, key); !errors.Is(err, locker.ErrHeld) {
				wantErr(t, err, locker.ErrUnavailable)
			}
			switch i, err := l.Inspect(ctx, key); {
			case err != nil:
				wantErr(t, err, locker.ErrUnavailable)
			case i.State != inspect.Held || i.Waiting != 1:
				t.Errorf("Inspect does not see that the lock is held, and waited for: %+v", i)
			}
			if err := held.Extend(ctx); err != nil {
				wantErr(t, err, locker.ErrUnavailable)
				if s := err.Error(); !strings.Contains(s, "TRYAGAIN") && !strings.Contains(s, "no answer") {
					t.Errorf("the reason is not said: %v", err) // a server that stalls gives none
				}
			}
			if !m.Key() {
				break
			}
		}
		if err := held.Err(); err != nil {
			t.Errorf("the lease is lost: %v", err)
		}
		if err := held.Unlock(ctx); err != nil {
			wantErr(t, err, locker.ErrUnavailable)
		}
		m.Finish()

		var next locker.Lease
		select {
		case next = <-waiting: // long before the TTL: the release goes on by itself
		case <-time.After(30 * time.Second):
			t.Fatal("the lock was not released when it could be")
		}
		if next == nil {
			return
		}
		if next.Fence() <= held.Fence() {
			t.Errorf("token %d after %d", next.Fence(), held.Fence())
		}
		steady.Unlock(t, next)
		eventually(t, 30*time.Second, "no lock is left", func() bool {
			return len(to.Keys(t, single.DefaultPrefix+key)) == 0 && len(from.Keys(t, "*"+key+"*")) == 0
		})
	})
}

// A client that knows one server says so of keys that are elsewhere. redigo knows no others.
func TestClientOfOneServerOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	for name, build := range builders {
		if knowsClusters.MatchString(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			here := c.Masters[0]
			l, other := closing(t, single.New(build(t, here.Addr()))), closing(t, single.New(build(t, here.Addr())))
			ctx, key := t.Context(), keyOn(t, c, c.Masters[1])
			for _, lock := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){l.Lock, l.TryLock} {
				_, err := lock(ctx, key)
				wantErr(t, err, locker.ErrUnavailable)
				if !strings.Contains(fmt.Sprint(err), "MOVED") {
					t.Errorf("the reason is not said: %v", err)
				}
			}
			if keys := c.Masters[1].Keys(t, "*"+key+"*"); len(keys) > 0 {
				t.Errorf("left behind: %q", keys)
			}
			// What is here works, messages included.
			key = keyOn(t, c, here)
			held, err := l.Lock(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = held.Unlock(ctx) }()
			next, err := other.Lock(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			steady.Unlock(t, next)
		})
	}
}

// repeatedly calls f until ctx ends, once a millisecond at most, not to take all of the machine: some errors come at
// once.
func repeatedly(ctx context.Context, f func()) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		f()
		<-tick.C
	}
}

// A master that hangs or is gone is missed by its own locks alone, whatever is wanted of it meanwhile.
func TestMasterFails(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(s *redistest.Server){
		"hangs": (*redistest.Server).Pause, "is gone": (*redistest.Server).Kill,
	} {
		t.Run(what, func(t *testing.T) {
			onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
				l, ctx := build(), t.Context()
				bad, good := c.Masters[0], c.Masters[1]
				missing, there := make([]string, 8), make([]string, 8)
				for i := range missing {
					missing[i], there[i] = keyOn(t, c, bad), keyOn(t, c, good)
				}
				lease, err := l.Lock(ctx, keyOn(t, c, good), locker.TTL(time.Minute), locker.NoRenewal())
				if err != nil {
					t.Fatal(err)
				}
				fail(bad)
				over, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				var wg sync.WaitGroup
				wg.Go(func() {
					repeatedly(over, func() {
						if err := lease.Extend(ctx); err != nil {
							t.Errorf("a lease on a master that is in order: %v", err)
						}
					})
				})
				for i := range missing {
					wg.Go(func() {
						repeatedly(over, func() {
							if _, err := l.TryLock(over, missing[i]); err == nil {
								t.Error("a lock from a master that does not answer")
							}
						})
					})
					wg.Go(func() {
						repeatedly(over, func() {
							lease, err := l.TryLock(ctx, there[i])
							if err == nil {
								err = steady.Release(lease)
							}
							if err != nil {
								t.Errorf("a master that is in order: %v", err)
							}
						})
					})
				}
				wg.Wait()
				steady.Unlock(t, lease)
				bad.Resume()
				if bad.Pid() == 0 {
					bad.Restart()
				}
				c.Await(t)
				for _, key := range missing {
					eventually(t, 30*time.Second, "the locks of the master are to be had again", func() bool {
						lease, err := l.TryLock(ctx, key)
						return err == nil && lease.Unlock(ctx) == nil
					})
				}
			}, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
		})
	}
}

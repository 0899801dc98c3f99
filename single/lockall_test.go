package single_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

func lockAll(t *testing.T, l locker.Locker, keys ...string) *locker.AllLease {
	t.Helper()
	lease, err := locker.LockAll(t.Context(), l, keys)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func unlockAll(t *testing.T, lease locker.Lease) {
	t.Helper()
	steady.Unlock(t, lease)
}

// Several locks that are free cost one call of one script.
func TestLockAllIsOneCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, name := range drivers.Names() {
		for i, opts := range [][]single.Option{nil, {single.Guard(time.Minute)}} {
			opts = append(opts, single.Prefix(name+string(rune('0'+i))))
			d := opened(name)(t, s.Addr())
			if err := single.Bootstrap(t.Context(), d, opts...); err != nil && i == 1 {
				t.Fatal(err)
			}
			l := closing(t, single.New(opened(name)(t, s.Addr()), opts...))
			_ = d.Close()
			// At first, the server does not know the scripts, and the guard sends one of its own.
			eventually(t, 30*time.Second, "one call of a script for five locks", func() bool {
				before := roundTrips(t, s)
				lease := lockAll(t, l, "e", "b", "d", "c", "a")
				n := roundTrips(t, s) - before
				if err := locker.Verify(t.Context(), lease); err != nil {
					t.Errorf("%s %d: %v", name, i, err)
				}
				unlockAll(t, lease)
				return n == 1
			})
		}
	}
}

// A step has up to 64 locks. More are acquired one after the other.
func TestLockAllOfMoreThanAStep(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := closing(t, single.New(opened("redigo")(t, s.Addr())))
	for n, want := range map[int]int{script.MaxStep: 1, script.MaxStep + 1: script.MaxStep + 1} {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		eventually(t, 30*time.Second, fmt.Sprintf("%d calls of scripts for %d locks", want, n), func() bool {
			before := roundTrips(t, s)
			lease := lockAll(t, l, keys...)
			calls := roundTrips(t, s) - before
			if len(lease.Keys()) != n {
				t.Errorf("%d of %d locks", len(lease.Keys()), n)
			}
			unlockAll(t, lease)
			return calls == want
		})
	}
}

// Behind a cluster, the locks of one slot are acquired in one step, and others one after the other.
func TestLockAllOnACluster(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, client clientBuilder) {
		l := client()
		unlockAll(t, lockAll(t, l, "{x}a", "{x}b"))
		owner := c.Owner(t, c.Slot(t, "lock:{x}a"))
		before := roundTrips(t, owner)
		lease := lockAll(t, l, "{x}a", "{x}b", "{x}c")
		if n := roundTrips(t, owner) - before; n != 1 {
			t.Errorf("%d calls of scripts for three locks of one slot", n)
		}
		unlockAll(t, lease)
		lease = lockAll(t, l, "a", "b", "c", "d")
		if keys := lease.Keys(); !slices.Equal(keys, []string{"a", "b", "c", "d"}) {
			t.Errorf("%v", keys)
		}
		unlockAll(t, lease)
	})
}

// Workers on a real server, with a crash now and then. "trial crowd" makes 100,000 calls, a part with each driver.
func TestCrowdOfLockAll(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	names := short.Part(t, 1, drivers.Names())
	calls := contention.CrowdCalls(400*len(names)) / len(names)
	// A crash stops most of a crowd until the TTL ends. So many calls are made by several crowds, with their own keys.
	crowds := min(8, 1+calls/1000)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			open := opened(name)
			var all sync.WaitGroup
			for i := range crowds {
				prefix := single.Prefix(fmt.Sprintf("crowd-%d:", i))
				c := contention.Crowd{TTL: 3 * time.Second, Crash: 150, Open: func() (*locker.Client, locker.Locker) {
					l := single.New(open(t, s.Addr()), prefix)
					return l, l
				}}
				all.Go(func() { c.Run(t, calls/crowds) })
			}
			all.Wait()
		})
	}
}

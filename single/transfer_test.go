package single_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
	"github.com/golocker/locker/transfer"
)

// passesOn has a lock of a passed on to b, and returns the lease of b.
func passesOn(t *testing.T, a, b *locker.Client, key string) locker.Lease {
	t.Helper()
	old, err := a.TryLock(t.Context(), key, locker.TTL(ttl), locker.Label("old"))
	if err != nil {
		t.Fatal(err)
	}
	return passed(t, a, b, old)
}

// passed has the lease of a passed on to b.
func passed(t *testing.T, a, b *locker.Client, old locker.Lease) locker.Lease {
	t.Helper()
	key := old.Key()
	text, err := transfer.Export(t.Context(), old, 0)
	if err != nil {
		t.Fatalf("Export of %q: %v", key, err)
	}
	if i, err := a.Inspect(t.Context(), key); err != nil || i.Label != "old" || i.Remaining > ttl {
		t.Errorf("%q was passed on, and is %+v, %v", key, i, err)
	}
	next, err := transfer.Resume(t.Context(), b, text, locker.TTL(ttl), locker.Label("new"))
	if err != nil {
		t.Fatalf("Resume of %q: %v", key, err)
	}
	if next.Fence() <= old.Fence() {
		t.Errorf("the token %d comes after %d", next.Fence(), old.Fence())
	}
	if i, err := a.Inspect(t.Context(), key); err != nil || i.Label != "new" || i.Fence != next.Fence() {
		t.Errorf("%q was resumed, and is %+v, %v", key, i, err)
	}
	if _, err := transfer.Resume(t.Context(), a, text); !errors.Is(err, transfer.ErrUsed) {
		t.Errorf("Resume of a text that was used: %v", err)
	}
	if err := errors.Join(locker.Verify(t.Context(), next), next.Extend(t.Context())); err != nil {
		t.Errorf("the lease of %q: %v", key, err)
	}
	return next
}

// A lock is passed on from a program with one driver to one with another, while a third waits for it.
func TestLeasesArePassedOnBetweenDrivers(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(builders))
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			opts := []single.Option{}
			if i%2 == 0 {
				opts = append(opts, single.Guard(time.Hour))
				bootstrap(t, opened("redigo")(t, s.Addr()), opts...)
			}
			client := func(i int) *locker.Client {
				return closing(t, single.New(builders[names[i%len(names)]](t, s.Addr()), opts...))
			}
			a, b, c := client(i), client(i+1), client(i+2)
			old := mustTry(t, a, locker.Label("old"))
			waits := lockLater(t, c)
			listening(t, s, 1)
			next := passed(t, a, b, old)
			wanted := locker.Wanted(next)
			if err := next.Extend(t.Context()); err != nil {
				t.Error(err)
			}
			<-wanted
			select {
			case o := <-waits:
				t.Fatalf("the waiter got %v, %v", o.lease, o.err)
			default:
			}
			steady.Unlock(t, next)
			take(t, waits)
			nothingLeft(t, s)
		})
	}
}

// Behind a cluster, a text is for the lock wherever it is, also when its slot has moved.
func TestLeasesArePassedOnBehindACluster(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		a, b := build(), build()
		for _, key := range []string{"k", "a{tag}b", "a}b"} {
			steady.Unlock(t, passesOn(t, a, b, key))
		}
		old := mustTry(t, a)
		text, err := transfer.Export(t.Context(), old, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		slot := c.Slot(t, "lock:k")
		servers := c.Servers()
		to := servers[0]
		if c.Owner(t, slot) == to {
			to = servers[1]
		}
		c.Move(t, slot, to).Finish()
		next, err := transfer.Resume(t.Context(), b, text)
		if err != nil {
			t.Fatal(err)
		}
		steady.Unlock(t, next)
	})
}

// Behind sentinels, a text outlives a failover if the replica that takes over has confirmed it.
func TestLeasesArePassedOnOverAFailover(t *testing.T) {
	t.Parallel()
	for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(sentinelBuilders))) {
		build := sentinelBuilders[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
			replica := redistest.StartReplica(t, master)
			sentinel := redistest.StartSentinel(t, master, replica)
			confirms(t, master)
			a := closing(t, single.New(build(t, sentinel.Addr()), single.WaitReplicas(1, 10*time.Second)))
			old := mustTry(t, a)
			text, err := transfer.Export(t.Context(), old, ttl)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, 2*time.Minute, "the sentinel names the new master", func() bool {
				named, err := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.SentinelMaster)
				if err == nil && fmt.Sprint(named) == fmt.Sprint(strings.Split(replica.Addr(), ":")) {
					return replica.IsMaster()
				}
				_, _ = sentinel.Do("SENTINEL", "FAILOVER", redistest.SentinelMaster) // refused while one is under way
				return false
			})
			b := closing(t, single.New(build(t, sentinel.Addr())))
			var next locker.Lease
			eventually(t, time.Minute, "the lock is resumed", func() bool { // a former master refuses
				if next, err = transfer.Resume(t.Context(), b, text); err != nil && !errors.Is(err, locker.ErrUnavailable) {
					t.Fatal(err)
				}
				return err == nil
			})
			if next.Fence() <= old.Fence() {
				t.Errorf("the token %d comes after %d", next.Fence(), old.Fence())
			}
			steady.Unlock(t, next)
		})
	}
}

// A lock that is passed on lasts no longer than a restart guard covers.
func TestGuardCoversTheTTLOfAText(t *testing.T) {
	t.Parallel()
	anyDriver := opened(drivers.Names()[0])
	s := redistest.Start(t)
	bootstrap(t, anyDriver(t, s.Addr()), single.Guard(ttl))
	c := closing(t, single.New(anyDriver(t, s.Addr()), single.Guard(ttl)))
	old := mustTry(t, c)
	if text, err := transfer.Export(t.Context(), old, ttl+time.Second); !errors.Is(err, locker.ErrInvalid) ||
		text != (transfer.Text{}) {
		t.Errorf("Export: %v, %v", text, err)
	}
	if err := old.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	nothingLeft(t, s)
}

// A failover that forgets that a text was used lets nobody use it again, if there is a restart guard.
func TestGuardRemembersTextsThatWereUsed(t *testing.T) {
	t.Parallel()
	anyDriver := opened(drivers.Names()[0])
	master, replica := redistest.Start(t, "--repl-diskless-sync-delay", "0"), redistest.Start(t)
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica.Cmd(t, "REPLICAOF", host, port)
	eventually(t, 30*time.Second, "the replica is attached", func() bool { // a master rests when it gets its first one
		return strings.Contains(replica.Cmd(t, "INFO", "replication").(string), "master_link_status:up")
	})
	bootstrap(t, anyDriver(t, master.Addr()), single.Guard(ttl))
	client := func(s *redistest.Server) *locker.Client {
		return closing(t, single.New(anyDriver(t, s.Addr()), single.Guard(ttl)))
	}
	a, b := client(master), client(replica)
	text, err := transfer.Export(t.Context(), mustTry(t, a), 0)
	if err != nil {
		t.Fatal(err)
	}
	value := master.Cmd(t, "GET", "lock:k")
	arrived := func() bool { return replica.Cmd(t, "GET", "lock:k") == value }
	eventually(t, 30*time.Second, "the replica has the Export", arrived)
	replica.Cmd(t, "REPLICAOF", "NO", "ONE")
	next, err := transfer.Resume(t.Context(), a, text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transfer.Resume(t.Context(), b, text); !errors.As(err, new(*locker.GracePeriodError)) {
		t.Errorf("Resume by the server that has forgotten it: %v", err)
	}
	steady.Unlock(t, next)
}

package single_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// withReplicas makes a Client whose locks n replicas have to confirm within a time that replicas rarely need.
func withReplicas(t testing.TB, d drivers.Driver, n int, opts ...single.Option) *locker.Client {
	return closing(t, single.New(d, append(opts, single.WaitReplicas(n, 1500*time.Millisecond))...))
}

// notReplicated checks that err is a shortfall of got replicas.
func notReplicated(t *testing.T, err error, got, want int) *locker.NotReplicatedError {
	t.Helper()
	var e *locker.NotReplicatedError
	if !errors.Is(err, locker.ErrNotReplicated) || !errors.Is(err, locker.ErrUnavailable) || !errors.As(err, &e) ||
		e.Got != got || e.Want != want {
		t.Fatalf("want a shortfall of %d of %d, seen %v", got, want, err)
	}
	return e
}

// The suite passes with a replica that has to confirm everything.
func conformWithReplicas(t *testing.T) {
	anyDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		store := func(t testing.TB) conformance.Store {
			s := redistest.Start(t, "--repl-diskless-sync-delay", "0")
			redistest.StartReplica(t, s)
			confirms(t, s)
			return conformance.Store{
				Client: func() locker.Locker {
					return single.New(build(t, s.Addr()), single.WaitReplicas(1, 10*time.Second))
				},
				Delete:  func(key string) { s.Cmd(t, "DEL", single.DefaultPrefix+key) },
				Foreign: foreign(t, s),
				Left:    left(t, s),
			}
		}
		// Two servers answer each call within the TTL. That may take a second: so often a replica acknowledges by itself,
		// if it has missed the question of the WAIT. TestReplicaHasTheLock checks that it is not the rule.
		conformance.RunLocker(t, conformance.Harness{
			MinTTL: 3 * time.Second, Store: store,
		})
	})
}

// With a replica, a lock that counts is there as well. The replica confirms it at once, as a rule.
func TestReplicaHasTheLock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		master, replica, p := replicated(t)
		c := withReplicas(t, build(t, p.Addr()), 1)
		const n = 100
		late := 0
		for range n {
			start := time.Now()
			lease := mustTry(t, c)
			if time.Since(start) > 500*time.Millisecond {
				late++
			}
			if replica.Cmd(t, "EXISTS", "lock:k") != int64(1) {
				t.Fatal("the replica does not have the lock")
			}
			if err := lease.Extend(t.Context(), locker.TTL(time.Hour)); err != nil {
				t.Fatal(err)
			}
			if left := replica.PTTL(t, "lock:k"); left < 30*time.Minute {
				t.Errorf("extended by an hour, and the replica has %v", left)
			}
			steady.Unlock(t, lease)
		}
		if late > n/2 {
			t.Errorf("%d of %d locks took more than half a second", late, n)
		}
		nothingLeft(t, master)
	})
}

// Replicas lack an extension that they have not confirmed. So they do not confirm the next one either, although the
// lock on the master already lives for longer than that asks for, and whichever connection it uses.
func TestExtensionAfterAShortfall(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		master, replica, p := replicated(t)
		c := withReplicas(t, build(t, p.Addr()), 1)
		held, err := c.TryLock(t.Context(), "held", locker.TTL(time.Minute), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		end := held.Until()
		replica.Pause()
		notReplicated(t, held.Extend(t.Context(), locker.TTL(time.Hour)), 0, 1)
		if left := master.PTTL(t, "lock:held"); left < 30*time.Minute {
			t.Fatalf("the master has extended the lock to %v only", left)
		}
		busy := make(chan error, 1) // the connection, until the replica has not confirmed this
		go func() {
			_, err := c.TryLock(t.Context(), "another", locker.TTL(ttl))
			busy <- err
		}()
		eventually(t, 10*time.Second, "the connection is busy", func() bool {
			return master.Cmd(t, "EXISTS", "lock:another") == int64(1)
		})
		notReplicated(t, held.Extend(t.Context()), 0, 1)
		notReplicated(t, <-busy, 0, 1)
		if held.Until() != end {
			t.Errorf("the end has moved by %v", held.Until().Sub(end))
		}
		replica.Resume()
		steady.Unlock(t, held)
		nothingLeft(t, master)
	})
}

// No replica at all, fewer than are needed, and a user who has no right to WAIT.
func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		master, _, p := replicated(t)
		for want, got := range map[int]int{2: 1, 5: 1} {
			// With three seconds, the replica was late on a busy machine.
			c := closing(t, single.New(build(t, p.Addr()), single.WaitReplicas(want, 4*time.Second)))
			_, err := c.TryLock(t.Context(), "k", locker.TTL(ttl))
			notReplicated(t, err, got, want)
			nothingLeft(t, master)
		}
		alone := redistest.Start(t)
		_, err := withReplicas(t, build(t, alone.Addr()), 1).Lock(t.Context(), "k", locker.TTL(ttl))
		notReplicated(t, err, 0, 1)
		nothingLeft(t, alone)

		master.Cmd(t, "ACL", "SETUSER", "default", "-wait")
		c := withReplicas(t, build(t, p.Addr()), 1)
		_, err = c.TryLock(t.Context(), "k", locker.TTL(ttl))
		var refusal drivers.ServerError
		if e := notReplicated(t, err, 0, 1); !errors.As(e.Err, &refusal) || refusal.Code() != "NOPERM" {
			t.Errorf("the reason is missing: %v", err)
		}
		nothingLeft(t, master)
	})
}

// A proxy that knows the scripts and refuses WAIT.
func TestProxyRefusesWait(t *testing.T) {
	d := refusing{simnode.New().Driver(nil)}
	_, err := withReplicas(t, d, 1).TryLock(t.Context(), "k")
	if e := notReplicated(t, err, 0, 1); e.Err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Errorf("the reason is missing: %v", err)
	}
}

type refusing struct{ drivers.Driver }

func (d refusing) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	last := len(cmds) - 1
	if cmds[last][0] != "WAIT" {
		return d.Driver.Do(ctx, cmds...)
	}
	replies, err := d.Driver.Do(ctx, cmds[:last]...)
	return append(replies, drivers.ServerError("ERR unknown command 'WAIT'")), err
}

// An old master that is cut off from its replica, and that a client still reaches, cannot keep a lease alive. The lock
// at the promoted replica ends no sooner than the lease.
func TestIsolatedMaster(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		old, next, p := replicated(t)
		c := withReplicas(t, build(t, p.Addr()), 1)
		lease, err := c.TryLock(t.Context(), "k", locker.TTL(3*time.Second)) // renewed
		if err != nil {
			t.Fatal(err)
		}
		next.Cmd(t, "REPLICAOF", "NO", "ONE") // the link is cut, and the clients stay with the old master
		end := lease.Until()
		moved := closing(t, single.New(build(t, next.Addr())))
		for {
			got, err := moved.TryLock(t.Context(), "k")
			if err == nil {
				if now := time.Now(); lease.Err() == nil || now.Before(lease.Until()) {
					t.Errorf("two have the lock, the first for %v more", lease.Until().Sub(now))
				}
				if got.Fence() <= lease.Fence() {
					t.Errorf("token %d after %d", got.Fence(), lease.Fence())
				}
				_ = got.Unlock(t.Context())
				break
			}
			if !errors.Is(err, locker.ErrHeld) || time.Since(end) > time.Minute {
				t.Fatal(err)
			}
		}
		if lease.Until().After(end.Add(time.Second)) { // a renewal may have been under way before
			t.Errorf("the lease was kept for %v after its end", lease.Until().Sub(end))
		}
		if old.Cmd(t, "EXISTS", "lock:k") == int64(1) && old.PTTL(t, "lock:k") <= 0 {
			t.Error("the old master has a lock for ever")
		}
	})
}

// Verify asks the master alone. A lock that a replica has confirmed is proved by that replica, too, when it has become
// the master, until somebody else has had the lock there.
func TestVerifyWithReplicas(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		old, next, p := replicated(t)
		c := withReplicas(t, build(t, p.Addr()), 1)
		lease := mustTry(t, c, locker.TTL(time.Hour), locker.NoRenewal())
		next.Pause()
		_, err := c.TryLock(t.Context(), "another", locker.TTL(ttl)) // a write that the replica has not confirmed
		notReplicated(t, err, 0, 1)
		if err := locker.Verify(t.Context(), lease); err != nil {
			t.Errorf("while the replica is stopped: %v", err)
		}
		next.Resume()
		moveTo(t, swap, p, old, next)
		eventually(t, 30*time.Second, "the new master proves it", func() bool {
			return locker.Verify(t.Context(), lease) == nil
		})
		next.Cmd(t, "DEL", "lock:k")
		taken := mustTry(t, closing(t, single.New(build(t, next.Addr()))))
		if taken.Fence() <= lease.Fence() {
			t.Errorf("token %d after %d", taken.Fence(), lease.Fence())
		}
		eventually(t, 30*time.Second, "the loss is known", func() bool {
			err := locker.Verify(t.Context(), lease)
			if err == nil {
				t.Fatal("proved, although another has the lock")
			}
			return errors.Is(err, locker.ErrLost)
		})
		steady.Unlock(t, taken)
		nothingLeft(t, next)
	})
}

// With a guard and replicas, a replica that takes over rests, although it has every lock that counts. When it grants
// again, its own replica has to confirm the lock.
func TestGuardWithReplicas(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		const ttl = 3 * time.Second // replicas may need a second of it
		old, next, p := replicated(t)
		bootstrap(t, build(t, p.Addr()), single.Guard(ttl))
		holder := withReplicas(t, build(t, p.Addr()), 1, single.Guard(ttl))
		lease := mustTry(t, holder, locker.TTL(ttl), locker.NoRenewal())
		waiter := lockLater(t, withReplicas(t, build(t, p.Addr()), 1, single.Guard(ttl)),
			locker.TTL(ttl), locker.Patience(time.Minute))
		eventually(t, 30*time.Second, "it waits or has the lock", func() bool {
			return queued(t, old) == 1 || len(waiter) == 1
		})
		moveTo(t, swap, p, old, next)
		moved := withReplicas(t, build(t, next.Addr()), 1, single.Guard(ttl))
		if _, err := moved.TryLock(t.Context(), "free", locker.TTL(ttl)); !errors.As(err, new(*locker.GracePeriodError)) {
			t.Errorf("a free lock after the failover: %v", err)
		}
		if got := take(t, waiter); got.Before(lease.Until()) {
			t.Errorf("another has the lock %v before the lease ends", lease.Until().Sub(got))
		}
		old.Pause()
		_, err := moved.TryLock(t.Context(), "free", locker.TTL(ttl))
		notReplicated(t, err, 0, 1)
		old.Resume()
		nothingLeft(t, next)
	})
}

// WAIT counts the replicas of one server, and waits for the writes of one connection.
func TestReplicasOfAClusterAreRefused(t *testing.T) {
	nodes := simnode.NewNodes(3)
	d := simnode.Cluster(nodes, func(int) simnode.Network { return nil })
	for _, test := range []struct {
		d    drivers.Driver
		n    int
		want string
	}{
		{d, 1, "WAIT is not supported behind a cluster"},
		{nodes[0].Driver(nil), -1, "must not be negative"},
	} {
		c := withReplicas(t, test.d, test.n)
		for _, lock := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){c.Lock, c.TryLock} {
			_, err := lock(t.Context(), "k")
			if !errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want %q, seen %v", test.want, err)
			}
		}
		if left := nodes.Left(); len(left) > 0 {
			t.Errorf("%q was sent", left)
		}
	}
}

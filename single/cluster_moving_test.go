package single_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	goredisclient "github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// Waiters of a cluster are told, for every kind of key.
func TestWaitersOfAClusterAreTold(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		if !c.Masters[0].Knows(t, "ssubscribe") {
			return // before Redis 7
		}
		a, b := build(), build()
		for _, key := range []string{"k", "a{tag}b", "a}b"} {
			handOver(t, c.Owner(t, c.Slot(t, single.DefaultPrefix+key)), a, b, key)
		}
	})
}

// A wrapped client of a cluster, which cannot subscribe, tells the waiters of other clients all the same.
func TestTrustedClientTellsWaitersOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, false)
	if !c.Masters[0].Knows(t, "ssubscribe") {
		return // before Redis 7
	}
	plain := goredisclient.NewClusterClient(&goredisclient.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = plain.Close() })
	wrapped := struct{ *goredisclient.ClusterClient }{plain}
	a := closing(t, single.New(goredisdriver.New(wrapped, goredisdriver.Trusted())))
	b := closing(t, single.New(goredisdriver.New(plain)))
	handOver(t, c.Owner(t, c.Slot(t, single.DefaultPrefix+"k")), a, b, "k")
}

// refusals counts the refusals of a kind by all servers.
func refusals(t *testing.T, c *redistest.Cluster, kind string) (n int) {
	t.Helper()
	counts := regexp.MustCompile("errorstat_" + kind + ":count=([0-9]+)")
	for _, s := range c.Servers() {
		if m := counts.FindStringSubmatch(fmt.Sprint(s.Cmd(t, "INFO", "errorstats"))); m != nil {
			count, _ := strconv.Atoi(m[1])
			n += count
		}
	}
	return n
}

// While a slot migrates, its locks cannot be acquired. Calls wait until the slot has arrived.
func TestCallsWaitForASlotThatMigrates(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		if !c.Masters[0].Knows(t, "ssubscribe") {
			return // before Redis 7, or rather before 6.2, INFO does not count errors
		}
		l, ctx := build(single.Timeout(time.Minute)), t.Context() // in half of it, a slot arrives on any machine
		for what, lock := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease, error){
			"Lock": l.Lock, "TryLock": l.TryLock,
		} {
			key := keyOn(t, c, c.Masters[0])
			m := c.Move(t, c.Slot(t, single.DefaultPrefix+key), c.Masters[1])
			for m.Key() { // its keys are at the new server, and those that do not exist are nowhere
			}
			before, done := refusals(t, c, "TRYAGAIN"), make(chan error, 1)
			go func() {
				_, err := lock(ctx, key, locker.TTL(time.Hour))
				done <- err
			}()
			eventually(t, 30*time.Second, what+" is refused", func() bool { return refusals(t, c, "TRYAGAIN") > before+1 })
			select {
			case err := <-done:
				t.Errorf("%s returned while the slot migrated: %v", what, err)
			default:
				m.Finish()
				if err := <-done; err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
	})
}

// A slot moves while somebody waits. The waiter is told by the new server. A look that follows the new subscription may
// come before the message: another one will not.
func TestSlotMovesUnderAWaiter(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		from, to := c.Masters[0], c.Masters[1]
		if !from.Knows(t, "ssubscribe") {
			return // before Redis 7
		}
		a, b, key := build(), build(), keyOn(t, c, from)
		var last lockertrace.WakeReason
		for tries := 5; tries > 0 && last != lockertrace.WakeHandover; tries-- {
			last = wokenAfterMove(t, c, a, b, key, from, to)
			from, to = to, from
		}
		if last != lockertrace.WakeHandover {
			t.Errorf("the waiter was woken by %q", last)
		}
	})
}

// wokenAfterMove lets b wait for a lock of a whose slot moves, and returns what woke it last.
func wokenAfterMove(t *testing.T, c *redistest.Cluster, a, b *locker.Client, key string,
	from, to *redistest.Server) (last lockertrace.WakeReason) {
	t.Helper()
	held, err := a.Lock(t.Context(), key, locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	result := waitWoken(b, key)
	reachable := func(s *redistest.Server) func() bool {
		return func() bool {
			channels := s.Cmd(t, "PUBSUB", "SHARDCHANNELS").([]any)
			if len(channels) == 0 {
				return false
			}
			waiting := fmt.Sprint(s.Cmd(t, "HVALS", "{"+single.DefaultPrefix+key+"}:lockwait"))
			return regexp.MustCompile(regexp.QuoteMeta(fmt.Sprint(channels[0]))).MatchString(waiting)
		}
	}
	eventually(t, 30*time.Second, "the waiter can be told", reachable(from))
	c.Move(t, c.Slot(t, single.DefaultPrefix+key), to).Finish()
	eventually(t, 30*time.Second, "the waiter can be told by the new server", reachable(to))
	if n := len(from.Cmd(t, "PUBSUB", "SHARDCHANNELS").([]any)); n > 0 {
		t.Errorf("%d channels are left at the old server", n)
	}
	steady.Unlock(t, held)
	return result(t)
}

// A lock with waiters is released while its slot begins to move. The server that has all of its keys deletes the lock,
// and then refuses to grant it to a waiter, because a lock that does not exist may be at the other server. The lock is
// released all the same, and a waiter gets it when the slot has arrived, but not before the MinHold has ended.
func TestUnlockOfALockWithWaitersInASlotThatMigrates(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		for _, hold := range []time.Duration{0, time.Second} {
			holder, key := build(), keyOn(t, c, c.Masters[0])
			begun := time.Now()
			held, err := holder.Lock(t.Context(), key, locker.TTL(time.Minute), locker.MinHold(hold))
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			waiter := build()
			go func() {
				lease, err := waiter.Lock(context.Background(), key, locker.TTL(time.Minute))
				if err == nil {
					err = steady.Release(lease)
				}
				result <- err
			}()
			eventually(t, 30*time.Second, "somebody waits", func() bool {
				i, err := holder.Inspect(t.Context(), key)
				return err == nil && i.Waiting == 1
			})
			m := c.Move(t, c.Slot(t, single.DefaultPrefix+key), c.Masters[1])
			steady.Unlock(t, held)
			m.Finish()
			if err := <-result; err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took < hold {
				t.Errorf("somebody else had the lock after %v", took)
			}
		}
	})
}

// A lock is taken from its owner by force while its slot migrates. As long as the server has all of its keys, the lock
// is taken at once, although the server does not let it be granted to the waiter. When some keys are elsewhere, the
// call waits until the slot has arrived. The waiter gets the lock in both cases.
func TestForceReleaseInASlotThatMigrates(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		if !c.Masters[0].Knows(t, "ssubscribe") {
			return // before Redis 7, or rather before 6.2, INFO does not count errors
		}
		for _, parted := range []bool{false, true} {
			holder, key := build(single.Timeout(time.Minute)), keyOn(t, c, c.Masters[0])
			held, err := holder.Lock(t.Context(), key, locker.TTL(time.Minute), locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			result, waiter := make(chan error, 1), build()
			go func() {
				lease, err := waiter.Lock(context.Background(), key, locker.TTL(time.Minute))
				if err == nil {
					err = steady.Release(lease)
				}
				result <- err
			}()
			eventually(t, 30*time.Second, "somebody waits", func() bool {
				i, err := holder.Inspect(t.Context(), key)
				return err == nil && i.Waiting == 1
			})
			m := c.Move(t, c.Slot(t, single.DefaultPrefix+key), c.Masters[1])
			forced, before := make(chan error, 1), refusals(t, c, "TRYAGAIN")
			if parted {
				m.Key()
			}
			go func() {
				_, err := holder.ForceRelease(context.Background(), key, held.Token())
				forced <- err
			}()
			if parted {
				eventually(t, 30*time.Second, "it is refused", func() bool { return refusals(t, c, "TRYAGAIN") > before+1 })
				m.Finish()
			}
			if err := <-forced; err != nil {
				t.Errorf("parted %v: %v", parted, err)
			}
			if !parted {
				m.Finish()
			}
			if err := <-result; err != nil {
				t.Error(err)
			}
			if err := held.Extend(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Errorf("the former owner extends it: %v", err)
			}
		}
	})
}

// After a slot has moved, a command costs one redirection at most, and none when the client has looked at the slots
// again.
func TestMovedSlotCostsRedirections(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		if !c.Masters[0].Knows(t, "ssubscribe") {
			return // before Redis 7, or rather before 6.2, INFO does not count errors
		}
		l, key := build(), keyOn(t, c, c.Masters[0])
		// use returns how many redirections a lock and its release cost.
		use := func() int {
			before := refusals(t, c, "MOVED")
			lease, err := l.TryLock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			steady.Unlock(t, lease)
			return refusals(t, c, "MOVED") - before
		}
		if n := use(); n > 0 {
			t.Errorf("%d redirections before the slot moves", n)
		}
		c.Move(t, c.Slot(t, single.DefaultPrefix+key), c.Masters[1]).Finish()
		before := refusals(t, c, "MOVED")
		if _, err := c.Masters[0].Do("GET", single.DefaultPrefix+key); err == nil || refusals(t, c, "MOVED") != before+1 {
			t.Errorf("a redirection that is not counted: %v", err)
		}
		inARow := 0
		eventually(t, 30*time.Second, "no redirections", func() bool {
			n := use()
			if n > 4 { // a script is sent twice if the server does not know it
				t.Errorf("%d redirections of a lock and its release", n)
			}
			if inARow++; n > 0 {
				inARow = 0
			}
			return inARow == 20
		})
	})
}

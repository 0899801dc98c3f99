package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
)

// shardDriver is a driver of a simulated cluster that counts subscriptions and requests.
type shardDriver struct {
	drivers.Driver
	refusal error // of each subscription; nil: none

	tried, open, requests atomic.Int64
}

// Cluster implements drivers.Cluster.
func (*shardDriver) Cluster() {}

func (d *shardDriver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	d.requests.Add(int64(len(cmds)))
	return d.Driver.Do(ctx, cmds...)
}

func (d *shardDriver) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	d.tried.Add(1)
	if d.refusal != nil {
		return nil, d.refusal
	}
	lost := l.Lost
	l.Lost = func(err error) {
		d.open.Add(-1)
		lost(err)
	}
	sub, err := d.Driver.(drivers.ShardSubscriber).SubscribeShard(ctx, channel, l)
	if err == nil {
		d.open.Add(1)
	}
	return sub, err
}

// onShards runs f in virtual time, with a holder and a waiter on one simulated cluster.
func onShards(t *testing.T, refusal error, f func(t *testing.T, nodes simnode.Nodes, holder, waiter *locker.Client,
	d *shardDriver)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		nodes := simnode.NewNodes(3)
		var clusters []*Cluster
		open := func() (*locker.Client, *shardDriver) {
			d := &shardDriver{Driver: simnode.Cluster(nodes, func(int) simnode.Network { return nil }), refusal: refusal}
			c := NewCluster(d, Options{Prefix: "p:"})
			clusters = append(clusters, c)
			return locker.NewClient(c), d
		}
		holder, _ := open()
		waiter, d := open()
		f(t, nodes, holder, waiter, d)
		for _, c := range []*locker.Client{holder, waiter} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d subscriptions are open after Close", n)
		}
		for _, c := range clusters {
			c.haveEnded(t)
		}
	})
}

// haveEnded checks that no inbox has a goroutine.
func (c *Cluster) haveEnded(t *testing.T) {
	t.Helper()
	for i := range c.nodes {
		n := c.nodes[i].Load()
		if n == nil {
			continue
		}
		for slot, in := range n.shards.inboxes {
			in.mu.Lock()
			if in.running != nil {
				t.Errorf("the inbox of slot %d is open after Close", slot)
			}
			in.mu.Unlock()
		}
	}
}

// hold locks the keys 0 to n-1, which are mostly in different slots.
func hold(t *testing.T, c *locker.Client, n int) (leases []locker.Lease) {
	t.Helper()
	for i := range n {
		l, err := c.Lock(t.Context(), fmt.Sprint(i), locker.TTL(time.Hour), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	return leases
}

// waitFor lets c wait for the keys 0 to n-1. The channel gets the outcome of each.
func waitFor(c *locker.Client, n int) (context.CancelFunc, <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	outcome := make(chan error, n)
	for i := range n {
		go func() {
			l, err := c.Lock(ctx, fmt.Sprint(i), locker.TTL(time.Hour), locker.NoRenewal())
			if err == nil {
				err = l.Unlock(context.Background())
			}
			outcome <- err
		}()
	}
	return cancel, outcome
}

// A waiter of a cluster is told by the release, and asks seldom meanwhile. Its subscription ends when nobody has waited
// for a while.
func TestWaiterOfAShardIsTold(t *testing.T) {
	onShards(t, nil, func(t *testing.T, _ simnode.Nodes, holder, waiter *locker.Client, d *shardDriver) {
		leases := hold(t, holder, 1)
		_, outcome := waitFor(waiter, 1)
		time.Sleep(10 * time.Second)
		if n := d.requests.Load(); n > 20 {
			t.Errorf("%d requests in 10 s", n)
		}
		released := time.Now()
		if err := leases[0].Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		if took := time.Since(released); took > 100*time.Millisecond {
			t.Errorf("the waiter had the lock after %v", took)
		}
		if n := d.open.Load(); n != 1 {
			t.Errorf("%d subscriptions are open just afterwards", n)
		}
		time.Sleep(inboxLinger + 2*inboxProbe)
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d subscriptions are open later", n)
		}
	})
}

// The subscriber is left at a replica, which gets the messages and is not counted. The probe finds that out.
func TestStrandedSubscriberOfAShardIsNoticed(t *testing.T) {
	onShards(t, nil, func(t *testing.T, nodes simnode.Nodes, holder, waiter *locker.Client, d *shardDriver) {
		leases := hold(t, holder, 1)
		_, outcome := waitFor(waiter, 1)
		time.Sleep(time.Second)
		for _, n := range nodes {
			n.Strand()
		}
		time.Sleep(2 * inboxProbe)
		if n := d.tried.Load(); n != 2 {
			t.Errorf("%d subscriptions were tried", n)
		}
		released := time.Now()
		if err := leases[0].Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		if took := time.Since(released); took > 100*time.Millisecond {
			t.Errorf("the waiter had the lock after %v", took)
		}
	})
}

// With more slots than subscriptions, the waiters of the other slots poll.
func TestTooManyShards(t *testing.T) {
	const n = 2 * maxShards
	onShards(t, nil, func(t *testing.T, _ simnode.Nodes, holder, waiter *locker.Client, d *shardDriver) {
		leases := hold(t, holder, n)
		_, outcome := waitFor(waiter, n)
		time.Sleep(10 * time.Second)
		if open := d.open.Load(); open != maxShards {
			t.Errorf("%d subscriptions are open", open)
		}
		released := time.Now()
		for _, l := range leases {
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for range n {
			if err := <-outcome; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(released); took > time.Second {
			t.Errorf("the last waiter had its lock after %v", took)
		}
	})
}

// A server that does not know the command is asked seldom, and its waiters poll.
func TestServerWithoutShards(t *testing.T) {
	refusal := drivers.ServerError("ERR unknown command 'SSUBSCRIBE'")
	onShards(t, refusal, func(t *testing.T, _ simnode.Nodes, holder, waiter *locker.Client, d *shardDriver) {
		leases := hold(t, holder, 1)
		_, outcome := waitFor(waiter, 1)
		time.Sleep(5 * time.Minute)
		if n := d.tried.Load(); n > 90 {
			t.Errorf("%d subscriptions were tried in five minutes", n)
		}
		released := time.Now()
		if err := leases[0].Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		if took := time.Since(released); took > time.Second {
			t.Errorf("the waiter had the lock after %v", took)
		}
	})
}

// Waiters come and go in all slots of a group while the Cluster is closed. No inbox outlives it.
func TestCloseAmidShards(t *testing.T) {
	onShards(t, nil, func(t *testing.T, _ simnode.Nodes, holder, waiter *locker.Client, _ *shardDriver) {
		hold(t, holder, 20)
		cancel, outcome := waitFor(waiter, 20)
		time.Sleep(time.Second)
		var closing sync.WaitGroup
		closing.Go(func() { _ = waiter.Close() })
		cancel()
		for range 20 {
			if err := <-outcome; err == nil {
				t.Error("a lock that is held")
			}
		}
		closing.Wait()
	})
}

// The channels of a lock have its slot, so that its scripts may publish on them.
func TestChannelsOfAShardHaveItsSlot(t *testing.T) {
	n := New(simnode.Cluster(simnode.NewNodes(1), func(int) simnode.Network { return nil }), Options{Prefix: "p{x}:"})
	defer func() { _ = n.Close() }()
	for _, key := range []string{"a", "a{b}c", "a}b", "{}"} {
		k := n.keys(key)
		channel := n.inboxOf(k).channel
		if script.Slot(channel) != script.Slot(k.Lock) {
			t.Errorf("%s is not in the slot of %s", channel, k.Lock)
		}
		if words := script.Publish(channel, "").Words; words[0] != "SPUBLISH" {
			t.Errorf("%s is published on with %s", channel, words[0])
		}
	}
}

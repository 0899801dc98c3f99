package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// movingSlots refuses commands on the slot of a key for a while, as the servers of a slot that migrates do.
type movingSlots struct {
	drivers.Driver
	code  string
	until atomic.Int64 // Unix time in ns
	tried atomic.Int64
}

// Cluster implements drivers.Cluster.
func (*movingSlots) Cluster() {}

func (d *movingSlots) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if time.Now().UnixNano() >= d.until.Load() {
		return d.Driver.Do(ctx, cmds...)
	}
	d.tried.Add(1)
	replies := make([]drivers.Reply, len(cmds))
	for i := range replies {
		replies[i] = drivers.ServerError(d.code + " for a while")
	}
	return replies, nil
}

// What a server refuses because a slot moves is sent again, within half of the time that the call has.
func TestRefusedWhileTheSlotMoves(t *testing.T) {
	const timeout, window = 4 * time.Second, time.Second
	for _, code := range []string{"TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN", "LOADING"} {
		t.Run(code, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				d := &movingSlots{
					Driver: simnode.Cluster(simnode.NewNodes(1), func(int) simnode.Network { return nil }), code: code,
				}
				c := locker.NewClient(NewCluster(d, Options{Prefix: "p:", Timeout: timeout}))
				refuse := func(window time.Duration) { d.until.Store(time.Now().Add(window).UnixNano()) }
				again := code != "LOADING"

				refuse(window)
				lease, err := c.TryLock(t.Context(), "a")
				if (err == nil) != again {
					t.Errorf("TryLock: %v", err)
				}
				if err == nil {
					refuse(window / 2) // Unlock waits for a second
					if err := lease.Unlock(t.Context()); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				}
				if n := d.tried.Load(); n > 60 {
					t.Errorf("%d requests in %v", n, 2*window)
				}
				begun := time.Now()
				refuse(timeout)
				if _, err := c.TryLock(t.Context(), "b"); err == nil {
					t.Error("TryLock: no error")
				}
				if took := time.Since(begun); took > timeout/2 {
					t.Errorf("TryLock failed after %v", took)
				}
				refuse(timeout)
				lease, err = c.Lock(t.Context(), "c", locker.Patience(time.Minute))
				if (err == nil) != again {
					t.Errorf("Lock: %v", err)
				}
				if err == nil {
					_ = lease.Unlock(t.Context())
				}
				time.Sleep(time.Minute)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// severalKeys refuses scripts that need what may be missing while a slot moves.
type severalKeys struct {
	drivers.Driver
	moves atomic.Bool
}

// Cluster implements drivers.Cluster.
func (*severalKeys) Cluster() {}

func (d *severalKeys) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if d.moves.Load() && cmds[0][0] == "EVALSHA" && cmds[0][2] > "2" {
		return []drivers.Reply{drivers.ServerError("TRYAGAIN for a while")}, nil
	}
	return d.Driver.Do(ctx, cmds...)
}

// A lock of a group that becomes a shared one is extended while its slot moves, and others come when it has moved.
func TestDowngradeWhileTheSlotMoves(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &severalKeys{
			Driver: simnode.Cluster(simnode.NewNodes(1), func(int) simnode.Network { return nil }),
		}
		c := NewCluster(d, Options{Prefix: "p:"})
		defer func() { _ = c.Close() }()
		as := func(token string, kind backend.Kind) backend.Request {
			return backend.Request{Key: "k", Token: token, TTL: 10 * time.Second, Group: &backend.Group{Kind: kind}}
		}
		writer := as("w", backend.Exclusive)
		g, err := c.Acquire(t.Context(), writer)
		if err != nil {
			t.Fatal(err)
		}
		writer.Fence, writer.Private, writer.Group = g.Fence, g.Private, &backend.Group{Kind: backend.Shared}
		d.moves.Store(true)
		for range 3 {
			time.Sleep(5 * time.Second)
			if err := c.Extend(t.Context(), writer); err != nil {
				t.Errorf("the slot moves: %v", err)
			}
		}
		d.moves.Store(false)
		if _, err := c.Acquire(t.Context(), as("r", backend.Shared)); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("a reader beside a writer: %v", err)
		}
		if err := c.Extend(t.Context(), writer); err != nil {
			t.Error(err)
		}
		if _, err := c.Acquire(t.Context(), as("r", backend.Shared)); err != nil {
			t.Errorf("a reader beside one that was a writer: %v", err)
		}
	})
}

// Verify waits for a slot that moves, as acquisitions do.
func TestVerifyWhileTheSlotMoves(t *testing.T) {
	const timeout, window = 4 * time.Second, time.Second
	virtual.Test(t, func(t *testing.T) {
		d := &movingSlots{
			Driver: simnode.Cluster(simnode.NewNodes(1), func(int) simnode.Network { return nil }), code: "TRYAGAIN",
		}
		c := locker.NewClient(NewCluster(d, Options{Prefix: "p:", Timeout: timeout}))
		lease, err := c.TryLock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		d.until.Store(time.Now().Add(window).UnixNano())
		if err := locker.Verify(t.Context(), lease); err != nil {
			t.Errorf("the slot arrives after %v: %v", window, err)
		}
		if n := d.tried.Load(); n > 30 {
			t.Errorf("%d requests in %v", n, window)
		}
		d.until.Store(time.Now().Add(timeout).UnixNano())
		begun := time.Now()
		if err := locker.Verify(t.Context(), lease); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("the slot does not arrive: %v", err)
		}
		if took := time.Since(begun); took > timeout/2 {
			t.Errorf("Verify failed after %v", took)
		}
		time.Sleep(timeout)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// All tries of a call together keep to the time-out, also if the last one is not answered.
func TestRefusedAndThenNotAnswered(t *testing.T) {
	const timeout = 4 * time.Second
	virtual.Test(t, func(t *testing.T) {
		answering := simnode.Cluster(simnode.NewNodes(1), func(int) simnode.Network { return nil })
		d := &movingSlots{Driver: mute{answering}, code: "TRYAGAIN"}
		c := NewCluster(d, Options{Prefix: "p:", Timeout: timeout})
		defer func() { _ = c.Close() }()
		d.until.Store(time.Now().Add(timeout * 2 / 5).UnixNano())
		begun := time.Now()
		_, err := c.Acquire(t.Context(), backend.Request{Key: "a", Token: "t", TTL: time.Hour})
		if took := time.Since(begun); err == nil || took > timeout {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// mute answers nothing.
type mute struct{ drivers.Driver }

func (mute) Do(ctx context.Context, _ ...drivers.Command) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A caller that finds the slot moving waits afterwards as others do: it has a subscription, and is told.
func TestWaiterThatFindsTheSlotMovingIsTold(t *testing.T) {
	const timeout = time.Second
	virtual.Test(t, func(t *testing.T) {
		nodes := simnode.NewNodes(1)
		open := func(d drivers.Driver) *locker.Client {
			return locker.NewClient(NewCluster(d.(drivers.Cluster), Options{Prefix: "p:", Timeout: timeout}))
		}
		holder := open(simnode.Cluster(nodes, func(int) simnode.Network { return nil }))
		counted := &shardDriver{Driver: simnode.Cluster(nodes, func(int) simnode.Network { return nil })}
		d := &movingShards{movingSlots: movingSlots{Driver: counted, code: "TRYAGAIN"}}
		waiter := open(d)
		leases := hold(t, holder, 1)

		d.until.Store(time.Now().Add(timeout).UnixNano())
		announced := make(chan struct{})
		outcome := make(chan error, 1)
		go func() {
			ctx := lockertrace.With(context.Background(), &lockertrace.Trace{
				Waiting: func(lockertrace.Waiting) { close(announced) },
			})
			l, err := waiter.Lock(ctx, "0", locker.TTL(time.Hour), locker.Patience(time.Minute))
			if err == nil {
				err = l.Unlock(context.Background())
			}
			outcome <- err
		}()
		<-announced
		time.Sleep(3 * time.Second)
		before := counted.requests.Load()
		time.Sleep(10 * time.Second)
		if n := counted.requests.Load() - before; n > 20 {
			t.Errorf("%d requests in 10 s", n)
		}
		if err := leases[0].Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-outcome; err != nil {
			t.Error(err)
		}
		for _, c := range []*locker.Client{holder, waiter} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// movingShards is movingSlots with sharded channels.
type movingShards struct{ movingSlots }

// SubscribeShard implements drivers.ShardSubscriber.
func (d *movingShards) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	return d.Driver.(drivers.ShardSubscriber).SubscribeShard(ctx, channel, l)
}

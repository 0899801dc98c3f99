package redlock_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

const (
	guarded = 10 * time.Second
	rest    = guarded + guarded/50 + 2*time.Second
)

// guardedNodes are five simulated nodes whose clients have a guard.
type guardedNodes struct {
	t *testing.T
	simnode.Nodes
	asked atomic.Int32 // batches of commands
}

// inGuard runs f with nodes that do not rest.
func inGuard(t *testing.T, f func(t *testing.T, g *guardedNodes)) {
	virtual.Test(t, func(t *testing.T) {
		g := &guardedNodes{t: t, Nodes: simnode.NewNodes(5)}
		if err := redlock.Bootstrap(t.Context(), g.drivers(), g.options()...); err != nil {
			t.Fatal(err)
		}
		f(t, g)
	})
}

func (g *guardedNodes) drivers() []drivers.Driver {
	ds := make([]drivers.Driver, len(g.Nodes))
	for i, n := range g.Nodes {
		ds[i] = n.Driver(g.deliver)
	}
	return ds
}

func (g *guardedNodes) deliver(
	_ context.Context, _ []drivers.Command, execute func() []drivers.Reply,
) ([]drivers.Reply, error) {
	g.asked.Add(1)
	time.Sleep(time.Millisecond)
	return execute(), nil
}

func (g *guardedNodes) options() []redlock.Option {
	return []redlock.Option{
		redlock.Guard(guarded), redlock.Names("a", "b", "c", "d", "e"), redlock.Logger(slog.New(slog.DiscardHandler)),
	}
}

// client makes a client, which the caller closes.
func (g *guardedNodes) client() *locker.Client {
	return redlock.New(g.drivers(), g.options()...)
}

func (g *guardedNodes) close(cs ...*locker.Client) {
	for _, c := range cs {
		if err := c.Close(); err != nil {
			g.t.Error(err)
		}
	}
}

// restart restarts nodes without their data.
func (g *guardedNodes) restart(nodes ...int) {
	for _, i := range nodes {
		g.Nodes[i].Flush()
		g.Nodes[i].Restart()
	}
}

// New nodes rest from when the client is made.
func TestNewNodesRest(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &guardedNodes{t: t, Nodes: simnode.NewNodes(5)}
		c := g.client()
		time.Sleep(2 * time.Second)
		start := time.Now()
		for _, err := range refused(t, c) {
			wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
			wantText(t, err, "0 of 5 nodes agreed, 3 are needed: ",
				" rests for another 10 s after a restart or a loss of its data;")
			if took := time.Since(start); took > 50*time.Millisecond {
				t.Errorf("that took %v", took)
			}
			n := 0
			for _, v := range quorumError(t, err).Votes {
				var resting *locker.GracePeriodError
				if v.Outcome == redlock.Resting && errors.As(v.Err, &resting) && resting.Node == v.Node {
					n++
				}
			}
			if n < 3 {
				t.Errorf("%d nodes rest: %v", n, err)
			}
		}
		if left := g.Left(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		time.Sleep(rest)
		lockOnce(t, c)
		g.close(c)
	})
}

// refused returns the errors of TryLock and Lock.
func refused(t *testing.T, c *locker.Client, opts ...locker.Option) []error {
	_, try := c.TryLock(t.Context(), "k", opts...)
	_, lock := c.Lock(t.Context(), "k", opts...)
	return []error{try, lock}
}

func lockOnce(t *testing.T, c *locker.Client) {
	t.Helper()
	l, err := c.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// A minority that rests changes nothing. A majority does, and then nobody waits for the others.
func TestMinorityRests(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		c := g.client()
		g.restart(0, 1)
		for range 3 {
			start := time.Now()
			lockOnce(t, c)
			if took := time.Since(start); took > 20*time.Millisecond {
				t.Errorf("that took %v", took)
			}
		}
		g.Nodes[2].Restart() // with its data, which may lack the last writes
		start := time.Now()
		_, err := c.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
		if took := time.Since(start); took > 20*time.Millisecond {
			t.Errorf("that took %v", took)
		}
		g.close(c)
	})
}

// Three of five nodes forget the lock. Without the guard, another client gets it at once.
func TestNodeThatForgotLetsNobodyIn(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		one, two := g.client(), g.client()
		lease, err := one.TryLock(t.Context(), "k", locker.TTL(guarded), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		g.restart(0, 1, 2)
		for {
			l, err := two.TryLock(t.Context(), "k", locker.TTL(guarded))
			if err == nil {
				if left := time.Until(lease.Until()); left > 0 {
					t.Errorf("another has the lock %v before the lease ends", left)
				}
				_ = l.Unlock(t.Context())
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		g.close(one, two)
	})
}

// A lease heals on a node that has restarted when the node has rested.
func TestLeaseHealsAfterTheRest(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		c := g.client()
		lease, err := c.TryLock(t.Context(), "k", locker.TTL(guarded))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		g.restart(0)
		start := time.Now()
		has := func() bool {
			for _, key := range g.Nodes[0].Keys() {
				if key == redlock.DefaultPrefix+"k" {
					return true
				}
			}
			return false
		}
		for !has() {
			if time.Since(start) > 2*rest {
				t.Fatal("the lease has not healed")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if healed := time.Since(start); healed < rest {
			t.Errorf("the node has granted after %v, want no less than %v", healed, rest)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if left := g.Left(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		g.close(c)
	})
}

// A waiter tolerates nodes that rest for its patience, asks again when they have rested, and hardly ever before.
func TestWaiterBearsNodesThatRest(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		holder, patient, hasty := g.client(), g.client(), g.client()
		lease, err := holder.TryLock(t.Context(), "k", locker.TTL(guarded), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		type outcome struct {
			lease locker.Lease
			err   error
			at    time.Time
		}
		lock := func(c *locker.Client, patience time.Duration) chan outcome {
			ch := make(chan outcome, 1)
			go func() {
				l, err := c.Lock(t.Context(), "k", locker.TTL(guarded), locker.Patience(patience))
				ch <- outcome{l, err, time.Now()}
			}()
			return ch
		}
		later, soon := lock(patient, time.Minute), lock(hasty, 3*time.Second)
		time.Sleep(time.Second)
		g.restart(0, 1, 2, 3, 4)
		restarted := time.Now()
		o := <-soon
		wantErr(t, o.err, locker.ErrNoQuorum, locker.ErrUnavailable)
		// It looks at its position within a second. If the other one is before it, it asks the nodes 2 to 2.3 s later.
		if waited := o.at.Sub(restarted); waited < 3*time.Second || waited > 6500*time.Millisecond {
			t.Errorf("a patience of 3 s was over after %v", waited)
		}
		g.asked.Store(0)
		o = <-later
		if o.err != nil {
			t.Fatal(o.err)
		}
		if left := lease.Until().Sub(o.at); left > 0 {
			t.Errorf("another has the lock %v before the lease ends", left)
		}
		if rested := o.at.Sub(restarted); rested < rest || rested > rest+4*time.Second {
			t.Errorf("the nodes have rested for %v, want %v", rested, rest)
		}
		if n := g.asked.Load(); n > 40 {
			t.Errorf("%d batches", n)
		}
		_ = o.lease.Unlock(t.Context())
		g.close(holder, patient, hasty)
	})
}

// Nodes whose clients have another guard say so, by name.
func TestAnotherGuard(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		c := redlock.New(g.drivers(), append(g.options(), redlock.Guard(3*guarded))...)
		for _, err := range refused(t, c) {
			wantErr(t, err)
			if !errors.Is(err, locker.ErrInvalid) {
				t.Errorf("%v does not match ErrInvalid", err)
			}
			wantText(t, err, "up to 30s, and that of other clients with the same prefix for up to 10s")
		}
		_, err := c.TryLock(t.Context(), "k", locker.TTL(time.Minute))
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("a long TTL: %v", err)
		}
		wantText(t, err, "TTL 1m0s is above the 30s that the restart guard allows")
		g.close(c)
		for _, bad := range []time.Duration{-time.Second, time.Millisecond} {
			c := redlock.New(g.drivers(), redlock.Guard(bad))
			if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrInvalid) {
				t.Errorf("a guard of %v: %v", bad, err)
			}
			g.close(c)
		}
	})
}

// A lease cannot be extended to a TTL above the guard: nodes that have forgotten the lock would grant it to somebody
// else before it ends. Nothing is sent, and the lease is as before.
func TestExtensionAboveTheGuard(t *testing.T) {
	inGuard(t, func(t *testing.T, g *guardedNodes) {
		c, other := g.client(), g.client()
		lease, err := c.TryLock(t.Context(), "k", locker.TTL(guarded/2))
		if err != nil {
			t.Fatal(err)
		}
		until, asked := lease.Until(), g.asked.Load()
		err = lease.Extend(t.Context(), locker.TTL(guarded+time.Millisecond))
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("above the guard: %v", err)
		}
		wantText(t, err, "TTL 10.001s is above the 10s that the restart guard allows")
		if now := g.asked.Load(); now != asked || !lease.Until().Equal(until) {
			t.Errorf("%d commands were sent, and Until moved by %v", now-asked, lease.Until().Sub(until))
		}
		time.Sleep(3 * guarded) // renewals keep to the old TTL
		if left := time.Until(lease.Until()); lease.Err() != nil || left > guarded/2 {
			t.Errorf("%v, and %v are left", lease.Err(), left)
		}
		if err := lease.Extend(t.Context(), locker.TTL(guarded)); err != nil {
			t.Errorf("as long as the guard: %v", err)
		}
		if _, err := other.TryLock(t.Context(), "k", locker.TTL(guarded)); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("the lock is held: %v", err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		g.close(c, other)
	})
}

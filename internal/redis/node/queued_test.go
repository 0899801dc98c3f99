package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/lockertrace"
)

// A waiter looks at the latest after heartbeat; see waiter.pause.
const heartbeat = script.ClaimWindow * 5 / 4

func TestWaitersAreServedInTheOrderOfTheirArrival(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		holder := x.client()
		lease := holder.must()
		var calls []*call
		for range 8 {
			calls = append(calls, x.client().lock())
		}
		trier := x.client()
		for i, c := range calls {
			c.waits(300 * time.Millisecond)
			released := time.Now()
			x.unlock(lease)
			lease = c.gets(time.Second)
			// The release there and the message at once, the claim there and back: the release's answer is not waited
			// for. A heartbeat that is under way just then makes it a little longer.
			took, wake := c.at.Sub(released), c.wakes[len(c.wakes)-1]
			if took > 5*oneWay || took == 3*oneWay && wake != lockertrace.WakeHandover {
				x.Errorf("waiter %d: handed over within %v, woken by %v", i, took, wake)
			}
			trier.refused()
			for _, later := range calls[i+1:] {
				if later.isDone() {
					x.Fatalf("waiter %d was overtaken", i+1)
				}
			}
		}
		x.unlock(lease)
		x.nothing()
	})
}

// TryLock does not overtake waiters, not even when the lock is free because its holder has died.
func TestTryLockDoesNotOvertake(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		holder, waiter, trier := x.client(), x.client(), x.client()
		ttl := time.Second
		lease := holder.must(locker.TTL(ttl), locker.NoRenewal())
		end := time.Now().Add(ttl)
		c := waiter.lock()
		x.messages(lost)
		for time.Until(end) > -100*time.Millisecond {
			trier.refused()
			time.Sleep(time.Millisecond)
		}
		l := c.gets(heartbeat)
		x.unlock(l)
		if err := lease.Unlock(x.Context()); !errors.Is(err, locker.ErrNotHeld) {
			x.Error(err)
		}
		x.unlock(trier.must())
		x.nothing()
	})
}

// A holder that dies is waited for until its TTL is over, not much longer.
func TestWaiterTakesTheLockWhenTheHolderHasDied(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		x.client().must(locker.TTL(700*time.Millisecond), locker.NoRenewal())
		end := time.Now().Add(700 * time.Millisecond)
		c := x.client().lock()
		x.unlock(c.gets(time.Minute))
		if late := c.at.Sub(end); late > 10*time.Millisecond {
			x.Errorf("%v late", late)
		}
		x.nothing()
	})
}

// Validity counts from the claim: a waiter that has waited for longer than its TTL has all of it.
func TestLeaseIsFreshAfterALongWait(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		const ttl = time.Second
		c := x.client().lock(locker.TTL(ttl))
		c.waits(10 * ttl)
		x.unlock(lease)
		l := c.gets(time.Second)
		if left := time.Until(l.Until()); left < ttl*9/10 {
			x.Errorf("%v are left of %v", left, ttl)
		}
		x.unlock(l)
		x.nothing()
	})
}

// Waiters cost the server next to nothing.
func TestWaitersCostNothing(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		var clients []*client
		var calls []*call
		for range 10 {
			p := x.client()
			clients = append(clients, p)
			calls = append(calls, p.lock())
		}
		x.settle()
		before := make([]int, len(clients))
		for i, p := range clients {
			before[i] = p.sent("")
		}
		const d = 5 * time.Minute
		calls[0].waits(d)
		for i, p := range clients {
			if n := p.sent("") - before[i]; n > int(d/time.Second) {
				x.Errorf("client %d has sent %d commands in %v", i, n, d)
			}
		}
		for _, c := range calls {
			x.unlock(lease)
			lease = c.gets(20 * time.Millisecond)
		}
		x.unlock(lease)
		x.nothing()
	})
}

// Of one client's goroutines only one is in the server's queue, and they are served in order too.
func TestOneWaiterPerClient(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		p := x.client()
		lease := x.client().must()
		var calls []*call
		for range 50 {
			calls = append(calls, p.lock())
		}
		calls[0].waits(time.Minute)
		if n := p.sent("enqueue"); n > 61 {
			x.Errorf("%d requests", n)
		}
		for i, c := range calls {
			x.unlock(lease)
			lease = c.gets(20 * time.Millisecond)
			if i+1 < len(calls) && calls[i+1].isDone() {
				x.Fatal("two have the lock")
			}
		}
		x.unlock(lease)
		x.nothing()
	})
}

func TestCloseWhileWaiting(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		b, c := x.client(), x.client()
		first, second := b.lock(), c.lock()
		if err := b.Close(); err != nil {
			x.Error(err)
		}
		if !first.isDone() || !errors.Is(first.err, locker.ErrClosed) {
			x.Errorf("Lock returned %v", first.err)
		}
		x.unlock(lease)
		x.unlock(second.gets(20 * time.Millisecond))
		x.nothing()
	})
}

// Attempts are refused while there is too much to be undone already.
func TestAttemptsAreRefusedWhileTooMuchIsDue(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		p := x.client()
		for p.node.chores.Backlog() == nil {
			p.node.chores.Repeat(time.Now().Add(time.Minute), func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}
		for _, lock := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){p.Lock, p.TryLock} {
			_, err := lock(x.Context(), "k")
			if !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, p.node.chores.Backlog()) {
				x.Error(err)
			}
		}
		if n := p.sent(""); n > 0 {
			x.Errorf("%d commands were sent", n)
		}
	})
}

var errOver = errors.New("the caller's time is over")

// The answer to a renewal says that the lock is marked. The mark stays when those that have waited have left.
func TestRenewalsTellThatOthersWait(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		const ttl = 3 * time.Second
		holder, other := x.client(), x.client()
		lease := holder.must(locker.TTL(ttl))
		wanted := locker.Wanted(lease)
		open := func(when string) {
			x.Helper()
			time.Sleep(ttl)
			select {
			case <-wanted:
				x.Errorf("%s: the lease is wanted", when)
			default:
			}
		}
		open("nobody waits")
		other.refused()
		open("somebody has tried")
		if n := holder.sent("inspect"); n > 0 {
			x.Errorf("looked %d times although nobody has waited", n)
		}
		c := other.lock()
		c.cancel()
		<-c.done
		open("those that have waited have left")
		if n := holder.sent("inspect"); n == 0 {
			x.Error("the lock has no mark")
		}
		c = other.lock()
		select {
		case <-wanted:
		case <-time.After(ttl/3 + time.Millisecond):
			x.Error("somebody waits, and the lease is not wanted")
		}
		looks := holder.sent("inspect")
		time.Sleep(ttl)
		if holder.sent("inspect") != looks {
			x.Error("looks go on although it is known")
		}
		x.unlock(lease)
		x.unlock(c.gets(time.Second))
		x.nothing()
	})
}

// Nobody looks for a holder that has not asked.
func TestRenewalsOfAHolderThatDoesNotAsk(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		holder := x.client()
		lease := holder.must(locker.TTL(3 * time.Second))
		c := x.client().lock()
		time.Sleep(5 * time.Second)
		if n := holder.sent("inspect"); n > 0 {
			x.Errorf("looked %d times", n)
		}
		x.unlock(lease)
		x.unlock(c.gets(time.Second))
		x.nothing()
	})
}

package node

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// Each release of many keys hands over to a waiter of one Client, whose waiters share a subscription.
func TestHandOversOfManyKeys(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		holder, p := x.client(), x.client()
		var leases []locker.Lease
		var wg sync.WaitGroup
		keys := strings.Split("abcdefghij", "")
		for _, key := range keys {
			l, err := holder.TryLock(x.Context(), key)
			if err != nil {
				x.Fatal(err)
			}
			leases = append(leases, l)
			wg.Go(func() {
				mine, err := p.Lock(x.Context(), key)
				if err != nil {
					x.Error(err)
					return
				}
				x.unlock(mine)
			})
		}
		time.Sleep(900 * time.Millisecond) // they look again after a second, at the earliest
		before := p.sent("enqueue")
		for _, l := range leases {
			x.unlock(l)
		}
		released := time.Now()
		wg.Wait()
		if took := time.Since(released); took > 20*oneWay {
			x.Errorf("all were served after %v", took)
		}
		if claims, looks := p.sent("claim"), p.sent("enqueue")-before; claims != len(keys) || looks > 0 {
			x.Errorf("%d claims and %d other requests after the releases of %d keys", claims, looks, len(keys))
		}
		if n := p.sent("PING"); n != 1 {
			x.Errorf("%d subscriptions were opened", n)
		}
		p.forgotten()
		x.nothing()
	})
}

// forgotten checks that nobody listens any more.
func (p *client) forgotten() {
	p.x.Helper()
	p.x.settle()
	in := p.node.inbox
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.listeners) > 0 {
		p.x.Errorf("%d listeners are kept", len(in.listeners))
	}
}

// Waits that end in each way, some before the subscription is there, leave no listener behind.
func TestListenersAreForgotten(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		p := x.client()
		lease := x.client().must()
		for i := range 60 {
			ctx, cancel := context.WithTimeout(x.Context(), time.Duration(i)*300*time.Microsecond)
			if _, err := p.Lock(ctx, "k"); err == nil {
				x.Fatal("locked")
			}
			cancel()
		}
		c := p.lock()
		x.unlock(lease)
		x.unlock(c.gets(heartbeat))
		p.forgotten()
		x.nothing()
	})
}

// Waiters without a subscription keep their position among those that have one, and get their share.
func TestWaiterWithoutSubscriptionKeepsItsPlace(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		deaf := func(d drivers.Driver) drivers.Driver { return struct{ drivers.Driver }{d} }
		var calls []*call
		for i := range 8 {
			p := x.client()
			if i%2 == 0 {
				p = x.client(deaf)
			}
			calls = append(calls, p.lock())
		}
		for i, c := range calls {
			c.waits(time.Second)
			x.unlock(lease)
			lease = c.gets(untoldPoll + 10*oneWay)
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

// The subscription takes long. The waiter polls until it is there, and then tells the server where to notify it.
func TestSlowSubscription(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		p.inject(func(kind string) fault {
			if kind == "PING" {
				return fault{out: 3 * time.Second}
			}
			return fault{}
		})
		c := p.lock()
		c.waits(3*time.Second + 10*oneWay)
		if n := p.sent("enqueue"); n < 20 || n > 70 {
			x.Errorf("%d requests in 3 s without a subscription", n)
		}
		before := p.sent("enqueue")
		c.waits(20 * time.Second)
		if n := p.sent("enqueue") - before; n > 20 {
			x.Errorf("%d requests in 20 s with one", n)
		}
		released := time.Now()
		x.unlock(lease)
		x.unlock(c.gets(time.Second))
		if took := c.at.Sub(released); took > 5*oneWay {
			x.Errorf("handed over within %v", took)
		}
		x.nothing()
	})
}

// A subscription that another waiter asked for comes between the request and its answer. The server does not know of
// it.
func TestSubscriptionThatComesWithTheFirstAnswer(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		holder, p := x.client(), x.client()
		other, err := holder.TryLock(x.Context(), "other")
		if err != nil {
			x.Fatal(err)
		}
		lease := holder.must()
		requests := 0
		p.inject(func(kind string) fault {
			switch kind {
			case "PING":
				return fault{out: 20 * time.Millisecond}
			case "enqueue":
				if requests++; requests == 2 {
					return fault{back: 100 * time.Millisecond}
				}
			}
			return fault{}
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			l, err := p.Lock(x.Context(), "other")
			if err != nil {
				x.Error(err)
				return
			}
			x.unlock(l)
		}()
		time.Sleep(5 * oneWay)
		c := p.lock()
		c.waits(200 * time.Millisecond)
		released := time.Now()
		x.unlock(lease)
		x.unlock(c.gets(heartbeat))
		if took := c.at.Sub(released); took > 5*oneWay {
			x.Errorf("handed over within %v", took)
		}
		x.unlock(other)
		<-done
		x.nothing()
	})
}

package node

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// The connection ends some time after the last listener has left. It stays open while listeners come now and then.
func TestSubscriptionEndsWhenNobodyListens(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		p := x.client()
		for range 20 { // waits that are over before the connection is given up
			lease := x.client().must()
			c := p.lock()
			c.waits(100 * time.Millisecond)
			x.unlock(lease)
			x.unlock(c.gets(time.Second))
			time.Sleep(inboxLinger - time.Second)
		}
		if n := p.sent("PING"); n != 1 {
			x.Errorf("%d subscriptions were opened", n)
		}
		time.Sleep(inboxLinger + inboxProbe)
		in := p.node.inbox
		in.mu.Lock()
		if in.running != nil {
			x.Error("the subscription is still there")
		}
		in.mu.Unlock()
		before := p.sent("")
		time.Sleep(time.Hour)
		if n := p.sent("") - before; n > 0 {
			x.Errorf("%d commands were sent for nobody", n)
		}
		p.warm() // and it comes back
	})
}

// A connection that has gone silent is replaced, though nothing says that it is broken.
func TestSilentSubscriptionIsReplaced(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		c := p.lock()
		c.waits(30 * time.Second)
		if n := p.sent("PING"); n != 1 {
			x.Fatalf("%d subscriptions were opened without a fault", n)
		}
		x.messages(lost)
		c.waits(inboxProbe*5/2 + inboxProbe + inboxMaxPause)
		if n := p.sent("PING"); n != 2 {
			x.Errorf("%d subscriptions were opened, want another one", n)
		}
		x.messages(nil)
		x.unlock(lease)
		x.unlock(c.gets(heartbeat))
	})
}

// After a failover that leaves its connection open, a subscription hangs on a server that was the master: its own
// messages come back by replication. The new master counts no receivers for them. So a message about a release would
// not reach the subscription either.
func TestSubscriptionThatTheMasterDoesNotCountIsReplaced(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		c := p.lock()
		c.waits(30 * time.Second)
		x.node.Strand()
		c.waits(inboxProbe + 2*inboxMinPause + 10*oneWay)
		if n := p.sent("PING"); n != 2 {
			x.Errorf("%d subscriptions were opened, want another one", n)
		}
		c.waits(time.Minute)
		if n := p.sent("PING"); n != 2 {
			x.Errorf("%d subscriptions were opened, want two", n)
		}
		released := time.Now()
		x.unlock(lease)
		x.unlock(c.gets(time.Second))
		if took := c.at.Sub(released); took > 10*oneWay {
			x.Errorf("the lock was there after %v", took)
		}
		x.nothing()
	})
}

// If subscriptions always lead to another server than commands, nothing relies on them. Waiters poll, are not passed
// over, and connections are made at a limited rate.
func TestSubscriptionThatTheMasterNeverCounts(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		p.moment = x.node.Strand
		c := p.lock()
		before := p.sent("PING")
		c.waits(time.Minute)
		if n := p.sent("PING") - before; n > 130 {
			x.Errorf("%d subscriptions were tried in a minute", n)
		}
		later := x.client().lock()
		x.unlock(lease)
		l := c.gets(untoldPoll + 10*oneWay)
		later.waits(time.Second)
		x.unlock(l)
		x.unlock(later.gets(time.Second))
		x.nothing()
	})
}

// A subscription that is cut is made again each time, and at once if it had lasted for a while.
func TestSubscriptionIsMadeAgain(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		c := p.lock()
		for i := range 10 {
			c.waits(time.Second)
			x.node.Cut()
			c.waits(2*inboxMinPause + 10*oneWay)
			if n := p.sent("PING"); n != i+2 || !p.node.inbox.live() {
				x.Fatalf("%d subscriptions were opened after %d cuts", n, i+1)
			}
		}
		x.unlock(lease)
		x.unlock(c.gets(10 * oneWay))
		x.nothing()
	})
}

// A subscription that cannot be opened is tried again at a limited rate. The waiter polls meanwhile.
func TestSubscriptionThatCannotBeHad(t *testing.T) {
	ways := map[string]struct {
		change func(x *testbed) func(drivers.Driver) drivers.Driver
		fault  func(kind string) fault
	}{
		"the driver has none": {change: func(*testbed) func(drivers.Driver) drivers.Driver {
			return func(d drivers.Driver) drivers.Driver { return struct{ drivers.Driver }{d} }
		}},
		"the channel is refused": {change: func(*testbed) func(drivers.Driver) drivers.Driver {
			return func(d drivers.Driver) drivers.Driver { return &channelRefused{Driver: d} }
		}},
		"connection refused": {fault: func(kind string) fault { return fault{unsent: kind == "PING"} }},
		"connection hangs":   {fault: func(kind string) fault { return fault{lost: kind == "PING"} }},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				var change []func(drivers.Driver) drivers.Driver
				if way.change != nil {
					change = append(change, way.change(x))
				}
				p := x.client(change...)
				p.inject(way.fault)
				opened := func() int { return p.sent("PING") }
				if r, ok := p.node.driver.(*channelRefused); ok {
					opened = func() int { return int(r.opened.Load()) }
				}
				lease := x.client().must()
				c := p.lock()
				before, openedBefore := p.sent(""), opened()
				c.waits(time.Minute)
				if n := opened() - openedBefore; n > 130 {
					x.Errorf("%d subscriptions were tried in a minute", n)
				}
				if n := p.sent("") - before; n > 60*25 {
					x.Errorf("%d commands in a minute", n)
				}
				released := time.Now()
				x.unlock(lease)
				x.unlock(c.gets(time.Second))
				if took := c.at.Sub(released); took > untoldPoll+10*oneWay {
					x.Errorf("the lock was there after %v", took)
				}
				p.inject(nil)
				x.nothing()
			})
		})
	}
}

func TestCloseWhileTheSubscriptionIsOpened(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p := x.client()
		p.inject(func(kind string) fault { return fault{lost: kind == "PING"} })
		c := p.lock()
		start := time.Now()
		if err := p.Close(); err != nil {
			x.Error(err)
		}
		if took := time.Since(start); took > 100*time.Millisecond || !c.isDone() {
			x.Errorf("closed after %v", took)
		}
		x.unlock(lease)
		x.nothing()
	})
}

// A probe that was not sent is repeated at once with the next listener, and not only after a pause, because waiters
// have to poll until then.
func TestProbeThatWasNotSentIsRepeated(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &audible{fake: fake{answer: ok}}
		n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
		d.will(func(context.Context, []drivers.Command) ([]drivers.Reply, error) { return nil, refused })
		_ = n.Extend(t.Context(), request("a")) // begins a backoff
		n.inbox.expect("a", func(bool) {})
		synctest.Wait()
		d.will(ok)
		time.Sleep(inboxMinPause / 2) // the backoff is over, and the pause is not
		if n.inbox.live() {
			t.Error("a subscription counts that nobody has counted")
		}
		n.inbox.expect("b", func(bool) {})
		synctest.Wait()
		if !n.inbox.live() {
			t.Error("the subscription was not counted when somebody else began to listen")
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// audible is a driver whose subscriptions are confirmed at once.
type audible struct{ fake }

func (*audible) Subscribe(_ context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return &confirmedSubscription{refusedSubscription{l: l}}, nil
}

type confirmedSubscription struct{ refusedSubscription }

func (s *confirmedSubscription) Subscribe(channels ...string) error {
	for _, c := range channels {
		s.l.Subscribed(c)
	}
	return nil
}

// channelRefused is a driver for a user without a right to any channel.
type channelRefused struct {
	drivers.Driver
	opened atomic.Int32
}

func (r *channelRefused) Subscribe(_ context.Context, l drivers.Listener) (drivers.Subscription, error) {
	r.opened.Add(1)
	return &refusedSubscription{l: l}, nil
}

type refusedSubscription struct {
	l    drivers.Listener
	once sync.Once
}

func (s *refusedSubscription) Subscribe(...string) error {
	go s.end(drivers.ServerError("NOPERM No permissions to access a channel"))
	return nil
}

func (s *refusedSubscription) Unsubscribe(...string) error { return nil }

func (s *refusedSubscription) Close() error {
	s.end(drivers.ErrClosed)
	return nil
}

func (s *refusedSubscription) end(err error) { s.once.Do(func() { s.l.Lost(err) }) }

package node

import (
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Each schedule does something to the hand-over from a holder to b, who waits, with c behind it. Both get the lock, in
// their order, within a time that the schedule allows.
func TestSchedules(t *testing.T) {
	const soon = 20 * time.Millisecond
	window := script.ClaimWindow + heartbeat/5 + soon
	tests := []struct {
		name    string
		do      func(x *testbed, b *client)
		bWithin time.Duration
		cWithin time.Duration
		first   string // "": either may be first, because a heartbeat may be a little later than the window
	}{
		{"without a fault", func(*testbed, *client) {}, soon, soon, "b"},
		{"push lost", func(x *testbed, _ *client) { x.messages(lost) }, heartbeat + soon, heartbeat + soon, ""},
		// A probe may be late on the same connection, too.
		{"push late", func(x *testbed, _ *client) {
			x.messages(func(string, string) (time.Duration, bool) { return 800 * time.Millisecond, false })
		}, 1600*time.Millisecond + soon, 1600*time.Millisecond + soon, "b"},
		{"push comes twice", func(x *testbed, b *client) {
			x.messages(func(channel, id string) (time.Duration, bool) {
				x.messages(nil)
				go x.node.Execute(drivers.Command{"PUBLISH", channel, id})
				return 0, false
			})
		}, soon, soon, "b"},
		{"claim lost", func(_ *testbed, b *client) { b.once("claim", fault{lost: true, cut: true}) },
			200 * time.Millisecond, soon, "b"},
		{"claim not sent", func(_ *testbed, b *client) { b.once("claim", fault{unsent: true}) },
			200 * time.Millisecond, soon, "b"},
		{"claim's reply lost", func(_ *testbed, b *client) { b.once("claim", fault{mute: true, cut: true}) },
			200 * time.Millisecond, soon, "b"},
		{"claim executed twice", func(_ *testbed, b *client) { b.once("claim", fault{twice: true}) }, soon, soon, "b"},
		{"claim in a black hole", func(_ *testbed, b *client) { b.once("claim", fault{lost: true}) }, 20 * time.Second,
			window, "c"},
		{"claim later than its window", func(_ *testbed, b *client) {
			b.once("claim", fault{out: heartbeat + 100*time.Millisecond})
		}, 20 * time.Second, window, "c"},
		{"next heartbeat executed twice, push lost", func(x *testbed, b *client) {
			x.messages(lost)
			b.once("enqueue", fault{twice: true})
		}, heartbeat + soon, heartbeat + soon, ""},
		{"next heartbeat's reply lost, push lost", func(x *testbed, b *client) {
			x.messages(lost)
			b.once("enqueue", fault{mute: true, cut: true})
		}, heartbeat + 200*time.Millisecond, heartbeat + soon, ""},
		{"subscription cut", func(x *testbed, _ *client) { x.node.Cut() }, 100 * time.Millisecond, 100 * time.Millisecond,
			""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				a, b, c := x.client(), x.client(), x.client()
				for range 5 { // the moments of heartbeats are random
					lease := a.must()
					first, second := b.lock(), c.lock()
					first.waits(500 * time.Millisecond)
					tt.do(x, b)
					released := time.Now()
					x.unlock(lease)
					within := map[*call]time.Duration{first: tt.bWithin, second: tt.cWithin}
					if tt.first == "c" {
						first, second = second, first
					}
					if tt.first == "" {
						select {
						case <-first.done:
						case <-second.done:
							first, second = second, first
						}
					}
					for i, c := range []*call{first, second} {
						l := c.gets(time.Minute)
						if took := c.at.Sub(released); took > within[c] {
							x.Errorf("number %d had the lock after %v, more than %v", i+1, took, within[c])
						}
						if i == 0 && second.isDone() {
							x.Fatal("two have the lock")
						}
						time.Sleep(50 * time.Millisecond)
						released = time.Now()
						x.unlock(l)
					}
					x.messages(nil)
					b.inject(nil)
					x.nothing()
				}
			})
		})
	}
}

// A push that nobody has sent, for a waiter whose turn it is not, changes nothing.
func TestPushWithoutGrant(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		b, c := x.client(), x.client()
		var id string
		first := b.lock()
		x.messages(func(_, token string) (time.Duration, bool) { id = token; return 0, false })
		second := c.lock()
		b.node.inbox.mu.Lock()
		for token := range b.node.inbox.listeners {
			id = token
		}
		b.node.inbox.mu.Unlock()
		for range 2 * maxMissed {
			if r := x.node.Execute(drivers.Command{"PUBLISH", b.node.inbox.channel, id}); r != int64(1) {
				x.Fatalf("%v listen", r)
			}
			first.waits(10 * time.Millisecond)
		}
		x.unlock(lease)
		l := first.gets(time.Second)
		second.waits(time.Second)
		x.unlock(l)
		x.unlock(second.gets(time.Second))
		x.nothing()
	})
}

// The release comes when the waiter is in the queue, and does not know yet.
func TestPushBeforeTheReplyOfEnqueue(t *testing.T) {
	for _, first := range []string{"enqueue", ""} { // with the subscription there from the beginning, and not
		onTestbed(t, func(x *testbed) {
			b := x.client()
			if first != "" {
				b.warm()
			}
			lease := x.client().must()
			b.once("enqueue", fault{back: 400 * time.Millisecond})
			b.node.contended.note("p:k")
			start := time.Now()
			c := b.lock()
			c.waits(100 * time.Millisecond)
			x.unlock(lease)
			x.unlock(c.gets(time.Second))
			if took := c.at.Sub(start); took > 410*time.Millisecond {
				x.Errorf("the lock was there after %v", took)
			}
			x.nothing()
		})
	}
}

// A waiter that was too late keeps its place, so that those behind it wait no longer for its sake than it does; but not
// for ever.
func TestMissedGrants(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		slow, others := x.client(), []*client{x.client(), x.client(), x.client(), x.client(), x.client(), x.client()}
		first := slow.lock()
		var calls []*call
		for _, p := range others {
			calls = append(calls, p.lock())
		}
		// While it is slow, its claims arrive too late. Its messages and heartbeats pass.
		slow.inject(func(kind string) fault {
			if kind == "claim" {
				return fault{out: heartbeat + 100*time.Millisecond}
			}
			return fault{}
		})
		order := []int{}
		for i, c := range calls {
			if i == 2*maxMissed-2 { // well, for a moment
				slow.inject(nil)
			}
			released := time.Now()
			x.unlock(lease)
			lease = c.gets(time.Minute)
			if stall := c.at.Sub(released); stall > script.ClaimWindow+heartbeat/5+100*time.Millisecond {
				x.Errorf("waiter %d had to wait for %v", i, stall)
			} else if stall > script.ClaimWindow/2 {
				order = append(order, i)
			}
			time.Sleep(2 * heartbeat) // the claim arrives, and is answered
		}
		// It was granted the lock before each of the first three, came back to its place each time, and then was sent
		// to the end.
		if !slices.Equal(order, []int{0, 1, 2}) {
			x.Errorf("the waiters that had to wait for the slow one were %v", order)
		}
		first.waits(time.Second)
		x.unlock(lease)
		x.unlock(first.gets(time.Second))
		x.nothing()
	})
}

// A message about a grant that a heartbeat has found, and that was missed, is not taken for another that is missed:
// a waiter that misses many goes to the end of the queue.
func TestMessageAboutAMissedGrantIsForgotten(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		b, c := x.client(), x.client()
		first, second := b.lock(), c.lock()
		released := false
		b.inject(func(kind string) fault {
			switch {
			case kind == "enqueue" && !released:
				released = true
				go x.unlock(lease) // arrives before
				return fault{out: oneWay}
			case kind == "claim":
				return fault{out: heartbeat + 100*time.Millisecond}
			}
			return fault{}
		})
		l := second.gets(time.Minute)
		time.Sleep(2 * heartbeat)
		if n := b.sent("claim"); n != 1 {
			x.Errorf("claimed %d times, was granted the lock once", n)
		}
		b.inject(nil)
		x.unlock(l)
		x.unlock(first.gets(time.Second))
		x.nothing()
	})
}

// A look that falls into the last millisecond of a holder that died, when PTTL answers 0, is followed by one when that
// is over.
func TestLookInTheLastMillisecond(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		b := x.client()
		b.warm()
		x.node.Execute(attempt("p:k", "dead").Enqueue(time.Second, 0, 0, "").Usual.Alone().Words)
		time.Sleep(time.Second - oneWay - time.Millisecond/2)
		start := time.Now()
		c := b.lock()
		l := c.gets(time.Minute)
		if took := c.at.Sub(start); took > 10*time.Millisecond {
			x.Errorf("it had the lock after %v", took)
		}
		x.unlock(l)
		x.nothing()
	})
}

// A waiter that has the turn does not take such a lock for a free one either, and learns when to ask again.
func TestTurnInTheLastMillisecond(t *testing.T) {
	for _, reply := range [][]drivers.Reply{{int64(1), int64(0)}, {int64(0), int64(0), int64(0), int64(1), int64(7)}} {
		s, err := (&Turn{}).decode(reply)
		if err != nil || s.Left <= 0 || s.Again > 2*time.Millisecond {
			t.Errorf("%v means %+v, %v", reply, s, err)
		}
	}
}

// A waiter that could not be notified, because its subscription was being made again, comes back to its position.
func TestTicketIsKeptOverALostSubscription(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		b, c, d := x.client(), x.client(), x.client()
		first, second, third := b.lock(), c.lock(), d.lock()
		b.inject(func(kind string) fault { return fault{lost: kind == "PING", cut: kind == "PING"} })
		x.cutOff(b)
		released := time.Now()
		x.unlock(lease)
		lease = second.gets(time.Second) // at once: it was seen that b does not listen
		if took := second.at.Sub(released); took > 10*time.Millisecond {
			x.Errorf("the next had the lock after %v", took)
		}
		b.inject(nil)
		first.waits(heartbeat + time.Second) // it has come back by then, ahead of d
		x.unlock(lease)
		x.unlock(first.gets(20 * time.Millisecond))
		x.unlock(third.gets(20 * time.Millisecond))
		x.nothing()
	})
}

// cutOff breaks the subscription of one client.
func (x *testbed) cutOff(p *client) {
	x.Helper()
	x.messages(func(channel, _ string) (time.Duration, bool) { return 0, channel == p.node.inbox.channel })
	x.node.Cut()
	x.settle()
	time.Sleep(2 * inboxMinPause) // the others are back
	x.settle()
	x.messages(nil)
}

// The heartbeat after the subscription is there again: what was said meanwhile was not heard.
func TestWaiterLooksWhenItsSubscriptionIsThereAgain(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		b := x.client()
		c := b.lock()
		c.waits(100 * time.Millisecond)
		x.messages(lost)
		x.unlock(lease) // told, and not heard
		x.node.Cut()
		cut := time.Now()
		l := c.gets(time.Minute)
		if took := c.at.Sub(cut); took > 100*time.Millisecond {
			x.Errorf("it looked after %v", took)
		}
		x.unlock(l)
		x.nothing()
	})
}

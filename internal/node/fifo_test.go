package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// A waiter looks at the latest after heartbeat; see waiter.pause.
const heartbeat = claimWindow * 5 / 4

func TestWaitersAreServedInTheOrderOfTheirArrival(t *testing.T) {
	onStreet(t, func(x *street) {
		holder := x.party()
		lease := holder.must()
		var calls []*call
		for range 8 {
			calls = append(calls, x.party().lock())
		}
		trier := x.party()
		for i, c := range calls {
			c.waits(300 * time.Millisecond)
			released := time.Now()
			x.unlock(lease)
			lease = c.gets(time.Second)
			// The release there and the message at once, the claim there and back: the release's answer is not waited for.
			// A heartbeat that is under way just then makes it a little longer.
			took, wake := c.at.Sub(released), c.wakes[len(c.wakes)-1]
			if took > 5*oneWay || took == 3*oneWay && wake != locker.WakeHandover {
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

// Whoever only tries does not come before those who wait, not even when the lock is free because its holder has died.
func TestTryLockDoesNotOvertake(t *testing.T) {
	onStreet(t, func(x *street) {
		holder, waiter, trier := x.party(), x.party(), x.party()
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
	onStreet(t, func(x *street) {
		x.party().must(locker.TTL(700*time.Millisecond), locker.NoRenewal())
		end := time.Now().Add(700 * time.Millisecond)
		c := x.party().lock()
		x.unlock(c.gets(time.Minute))
		if late := c.at.Sub(end); late > 10*time.Millisecond {
			x.Errorf("%v late", late)
		}
		x.nothing()
	})
}

// Validity counts from the claim: a waiter that has waited for longer than its TTL has all of it.
func TestLeaseIsFreshAfterALongWait(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		const ttl = time.Second
		c := x.party().lock(locker.TTL(ttl))
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

// Each schedule does something to the hand-over from a holder to b, who waits, with c behind it. Both get the lock, in
// their order, within a time that the schedule allows.
func TestSchedules(t *testing.T) {
	const soon = 20 * time.Millisecond
	window := claimWindow + heartbeat/5 + soon
	tests := []struct {
		name    string
		do      func(x *street, b *party)
		bWithin time.Duration
		cWithin time.Duration
		first   string // "": whoever comes first: a heartbeat may be a little later than the window
	}{
		{"in peace", func(*street, *party) {}, soon, soon, "b"},
		{"push lost", func(x *street, _ *party) { x.messages(lost) }, heartbeat + soon, heartbeat + soon, ""},
		// A probe may be late on the same connection, too.
		{"push late", func(x *street, _ *party) {
			x.messages(func(string, string) (time.Duration, bool) { return 800 * time.Millisecond, false })
		}, 1600*time.Millisecond + soon, 1600*time.Millisecond + soon, "b"},
		{"push comes twice", func(x *street, b *party) {
			x.messages(func(channel, id string) (time.Duration, bool) {
				x.messages(nil)
				go x.node.Execute(drivers.Command{"PUBLISH", channel, id})
				return 0, false
			})
		}, soon, soon, "b"},
		{"claim lost", func(_ *street, b *party) { b.once("claim", fate{lost: true, cut: true}) }, 200 * time.Millisecond, soon, "b"},
		{"claim not sent", func(_ *street, b *party) { b.once("claim", fate{unsent: true}) }, 200 * time.Millisecond, soon, "b"},
		{"claim's reply lost", func(_ *street, b *party) { b.once("claim", fate{mute: true, cut: true}) }, 200 * time.Millisecond, soon, "b"},
		{"claim executed twice", func(_ *street, b *party) { b.once("claim", fate{twice: true}) }, soon, soon, "b"},
		{"claim in a black hole", func(_ *street, b *party) { b.once("claim", fate{lost: true}) }, 20 * time.Second, window, "c"},
		{"claim later than its window", func(_ *street, b *party) {
			b.once("claim", fate{out: heartbeat + 100*time.Millisecond})
		}, 20 * time.Second, window, "c"},
		{"next heartbeat executed twice, push lost", func(x *street, b *party) {
			x.messages(lost)
			b.once("enqueue", fate{twice: true})
		}, heartbeat + soon, heartbeat + soon, ""},
		{"next heartbeat's reply lost, push lost", func(x *street, b *party) {
			x.messages(lost)
			b.once("enqueue", fate{mute: true, cut: true})
		}, heartbeat + 200*time.Millisecond, heartbeat + soon, ""},
		{"subscription cut", func(x *street, _ *party) { x.node.Cut() }, 100 * time.Millisecond, 100 * time.Millisecond, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			onStreet(t, func(x *street) {
				a, b, c := x.party(), x.party(), x.party()
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
					b.meddle(nil)
					x.nothing()
				}
			})
		})
	}
}

// A push that nobody has sent, for a waiter whose turn it is not, changes nothing.
func TestPushWithoutGrant(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		b, c := x.party(), x.party()
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
			if r := x.node.Execute(drivers.Command{"PUBLISH", b.node.inbox.name, id}); r != int64(1) {
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
		onStreet(t, func(x *street) {
			b := x.party()
			if first != "" {
				b.warm()
			}
			lease := x.party().must()
			b.once("enqueue", fate{back: 400 * time.Millisecond})
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

// A waiter that was too late keeps its place, so that those behind it wait no longer for its sake than it does; but not for
// ever.
func TestMissedGrants(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		slow, others := x.party(), []*party{x.party(), x.party(), x.party(), x.party(), x.party(), x.party()}
		first := slow.lock()
		var calls []*call
		for _, p := range others {
			calls = append(calls, p.lock())
		}
		// While it is slow, its claims arrive too late. Its messages and heartbeats pass.
		slow.meddle(func(kind string) fate {
			if kind == "claim" {
				return fate{out: heartbeat + 100*time.Millisecond}
			}
			return fate{}
		})
		order := []int{}
		for i, c := range calls {
			if i == 2*maxMissed-2 { // well, for a moment
				slow.meddle(nil)
			}
			released := time.Now()
			x.unlock(lease)
			lease = c.gets(time.Minute)
			if stall := c.at.Sub(released); stall > claimWindow+heartbeat/5+100*time.Millisecond {
				x.Errorf("waiter %d had to wait for %v", i, stall)
			} else if stall > claimWindow/2 {
				order = append(order, i)
			}
			time.Sleep(2 * heartbeat) // the claim arrives, and is answered
		}
		// It was granted the lock before each of the first three, came back to its place each time, and then was sent to the
		// end.
		if !slices.Equal(order, []int{0, 1, 2}) {
			x.Errorf("the waiters that had to wait for the slow one were %v", order)
		}
		first.waits(time.Second)
		x.unlock(lease)
		x.unlock(first.gets(time.Second))
		x.nothing()
	})
}

// Who could not be told because its subscription was being made again comes back to its place.
func TestTicketIsKeptOverALostSubscription(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		b, c, d := x.party(), x.party(), x.party()
		first, second, third := b.lock(), c.lock(), d.lock()
		b.meddle(func(kind string) fate { return fate{lost: kind == "PING", cut: kind == "PING"} })
		x.cutOff(b)
		released := time.Now()
		x.unlock(lease)
		lease = second.gets(time.Second) // at once: it was seen that b does not listen
		if took := second.at.Sub(released); took > 10*time.Millisecond {
			x.Errorf("the next had the lock after %v", took)
		}
		b.meddle(nil)
		first.waits(heartbeat + time.Second) // it has come back by then, ahead of d
		x.unlock(lease)
		x.unlock(first.gets(20 * time.Millisecond))
		x.unlock(third.gets(20 * time.Millisecond))
		x.nothing()
	})
}

// cutOff breaks the subscription of one client.
func (x *street) cutOff(p *party) {
	x.Helper()
	x.messages(func(channel, _ string) (time.Duration, bool) { return 0, channel == p.node.inbox.name })
	x.node.Cut()
	x.settle()
	time.Sleep(2 * inboxMinPause) // the others are back
	x.settle()
	x.messages(nil)
}

// The heartbeat after the subscription is there again: what was said meanwhile was not heard.
func TestWaiterLooksWhenItsSubscriptionIsThereAgain(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		b := x.party()
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

func TestFlushedWhileTenWait(t *testing.T) {
	for _, what := range []string{"flushed", "flushed and cut", "flushed, and away for 3 s"} {
		t.Run(what, func(t *testing.T) {
			onStreet(t, func(x *street) {
				holder := x.party()
				lost := holder.must()
				var parties []*party
				var calls []*call
				for range 10 {
					p := x.party()
					parties = append(parties, p)
					calls = append(calls, p.lock())
				}
				calls[0].waits(time.Second)
				x.node.Flush()
				if what != "flushed" {
					x.node.Cut()
				}
				if what == "flushed, and away for 3 s" {
					for _, p := range parties {
						p.meddle(func(string) fate { return fate{unsent: true} })
						time.AfterFunc(3*time.Second, func() { p.meddle(nil) })
					}
				}
				flushed := time.Now()
				holders := make(chan *call, len(calls))
				for _, c := range calls {
					go func() {
						<-c.done
						holders <- c
					}()
				}
				for range calls {
					c := <-holders
					if c.err != nil {
						x.Fatal(c.err)
					}
					for _, other := range calls {
						if other != c && other.lease != nil && other.lease.Err() == nil {
							x.Error("two have the lock")
						}
					}
					x.sound(c.lease)
					time.Sleep(10 * time.Millisecond)
					x.unlock(c.lease)
				}
				if took := time.Since(flushed); took > 3*time.Second+2*heartbeat {
					x.Errorf("it took %v until all were served", took)
				}
				<-lost.Done()
				x.nothing()
			})
		})
	}
}

// A waiter puts up with a server that does not answer for six seconds, however it shows.
func TestServerThatDoesNotAnswer(t *testing.T) {
	ways := map[string]fate{
		"hangs": {lost: true}, "answers are lost": {mute: true}, "connections break": {lost: true, cut: true}, "is down": {unsent: true},
	}
	for name, f := range ways {
		for _, ttl := range []time.Duration{500 * time.Millisecond, 10 * time.Second} {
			t.Run(fmt.Sprint(name, ", TTL ", ttl), func(t *testing.T) {
				for _, away := range []time.Duration{patience - 200*time.Millisecond, time.Hour} {
					onStreet(t, func(x *street) {
						lease := x.party().must(locker.TTL(time.Hour))
						b := x.party()
						c := b.lock(locker.TTL(ttl))
						c.waits(time.Second)
						b.meddle(func(string) fate { return f })
						if away < patience {
							c.waits(away)
							b.meddle(nil)
							c.waits(20 * time.Second)
							x.unlock(lease)
							x.unlock(c.gets(heartbeat))
							x.nothing()
							return
						}
						start := time.Now()
						select {
						case <-c.done:
						case <-time.After(time.Minute):
							x.Fatal("waits for ever")
						}
						if !errors.Is(c.err, locker.ErrUnavailable) || errors.Is(c.err, locker.ErrHeld) {
							x.Errorf("%v is not ErrUnavailable", c.err)
						}
						if took := c.at.Sub(start); took < patience || took > heartbeat+2*timeout+time.Second {
							x.Errorf("it was given up after %v", took)
						}
						b.meddle(nil)
						time.Sleep(2 * time.Second) // it is told that the waiter has left
						x.unlock(lease)
						x.nothing()
					})
				}
			})
		}
	}
}

// Restarting servers refuse for a while. They can be trusted to have executed nothing, but not to know the waiter.
func TestServerThatRefuses(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must(locker.TTL(time.Hour))
		var refuse atomic.Bool
		b := x.party(func(d drivers.Driver) drivers.Driver { return &refusing{Driver: d, when: &refuse} })
		c := b.lock()
		refuse.Store(true)
		c.waits(patience / 2)
		refuse.Store(false)
		c.waits(time.Minute)
		refuse.Store(true)
		<-c.done
		var e drivers.ServerError
		if !errors.As(c.err, &e) || !errors.Is(c.err, locker.ErrUnavailable) {
			x.Error(c.err)
		}
		refuse.Store(false)
		time.Sleep(2 * time.Second)
		x.unlock(lease)
		x.nothing()
	})
}

// refusing is a driver of a server that is loading its data, sometimes.
type refusing struct {
	drivers.Driver
	when *atomic.Bool
}

func (r *refusing) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	replies, err := r.Driver.Do(ctx, cmds...)
	for i := range replies {
		if r.when.Load() {
			replies[i] = drivers.ServerError("LOADING Redis is loading the dataset in memory")
		}
	}
	return replies, err
}

// What was sent while the waiter waited, and given up because it took too long, must not give away or take the lock
// when it is executed late.
func TestStragglers(t *testing.T) {
	const ttl = time.Second // bounds an exchange, too
	const late = 4 * time.Second
	setup := func(x *street) (b *party, l locker.Lease) {
		lease := x.party().must()
		b = x.party()
		c := b.lock(locker.TTL(ttl))
		b.once("enqueue", fate{out: late})
		for before := b.sent("enqueue"); b.sent("enqueue") == before; {
			c.waits(time.Millisecond)
		}
		c.waits(ttl + 100*time.Millisecond) // by now it has given up on this one, and sent another
		x.unlock(lease)
		return b, c.gets(heartbeat)
	}
	t.Run("while it is held", func(t *testing.T) {
		onStreet(t, func(x *street) {
			_, l := setup(x)
			for range 50 {
				time.Sleep(late / 25)
				x.sound(l)
			}
			x.unlock(l)
			x.nothing()
		})
	})
	t.Run("when it is released", func(t *testing.T) {
		onStreet(t, func(x *street) {
			b, l := setup(x)
			x.unlock(l)
			other := x.party()
			for range 50 {
				time.Sleep(late / 25)
				x.unlock(other.must())
			}
			x.nothing()
			if l.Err() == nil || b == nil {
				x.Error("the lease is open")
			}
		})
	})
}

// The answer comes in the very moment in which it is not waited for any longer.
func TestAnswerAtTheLastMoment(t *testing.T) {
	for range 20 {
		onStreet(t, func(x *street) {
			const ttl = time.Second
			lease := x.party().must()
			b := x.party()
			c := b.lock(locker.TTL(ttl))
			n := 0
			b.meddle(func(string) fate {
				if n++; n%2 == 0 { // not all of them: it could be taken for a server that does not answer
					return fate{}
				}
				return fate{back: ttl - 2*oneWay}
			})
			c.waits(20 * time.Second)
			b.meddle(nil)
			c.waits(5 * time.Second)
			x.unlock(lease)
			x.unlock(c.gets(heartbeat))
			x.nothing()
		})
	}
}

// An attempt that is granted the lock twice knows how long it has it only by claiming it; if that fails, it is given back.
func TestAttemptExecutedTwice(t *testing.T) {
	for _, wait := range []bool{false, true} {
		for name, claim := range map[string]fate{"claimed": {}, "claim not sent": {unsent: true}, "claim lost": {lost: true, cut: true}} {
			t.Run(fmt.Sprint(name, ", waiting ", wait), func(t *testing.T) {
				onStreet(t, func(x *street) {
					again := false
					b := x.party(func(d drivers.Driver) drivers.Driver { return &resending{d, x} })
					b.meddle(func(kind string) fate {
						if kind == "claim" && !again {
							again = true
							return claim
						}
						return fate{}
					})
					lock := b.TryLock
					if wait {
						lock = b.Lock
					}
					l, err := lock(x.Context(), "k")
					if (err == nil) != (name == "claimed") || err != nil && !errors.Is(err, locker.ErrUnavailable) {
						x.Fatalf("%v, %v", l, err)
					}
					if err == nil {
						x.sound(l)
						x.unlock(l)
					}
					x.nothing()
				})
			})
		}
	}
}

// resending executes each attempt twice, and answers what the second one has found.
type resending struct {
	drivers.Driver
	x *street
}

func (r *resending) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if kindOf(cmds[0]) == "enqueue" {
		for _, cmd := range cmds {
			r.x.node.Execute(cmd)
		}
	}
	return r.Driver.Do(ctx, cmds...)
}

// Who waits costs next to nothing.
func TestWaitersCostNothing(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		var parties []*party
		var calls []*call
		for range 10 {
			p := x.party()
			parties = append(parties, p)
			calls = append(calls, p.lock())
		}
		x.settle()
		before := make([]int, len(parties))
		for i, p := range parties {
			before[i] = p.sent("")
		}
		const d = 5 * time.Minute
		calls[0].waits(d)
		for i, p := range parties {
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
	onStreet(t, func(x *street) {
		p := x.party()
		lease := x.party().must()
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
	onStreet(t, func(x *street) {
		lease := x.party().must()
		b, c := x.party(), x.party()
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
	onStreet(t, func(x *street) {
		p := x.party()
		p.node.cleaner.mu.Lock()
		p.node.cleaner.todo = make([]cleanup, maxCleanups)
		p.node.cleaner.mu.Unlock()
		for _, lock := range []func(context.Context, string, ...locker.Option) (locker.Lease, error){p.Lock, p.TryLock} {
			if _, err := lock(x.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, errFull) {
				x.Error(err)
			}
		}
		p.node.cleaner.mu.Lock()
		p.node.cleaner.todo = nil
		p.node.cleaner.mu.Unlock()
		if n := p.sent(""); n > 0 {
			x.Errorf("%d commands were sent", n)
		}
	})
}

// A context that ends at any moment: the sweep goes over every message from and to the waiter, before it leaves, when it is
// executed, when its answer is on its way, when that has come.
func TestSweepOverTheEndOfTheContext(t *testing.T) {
	for _, warm := range []bool{true, false} {
		t.Run(fmt.Sprint("subscribed before: ", warm), func(t *testing.T) {
			outcomes := map[string]int{}
			n := 1
			for ; ; n++ {
				if n > 200 {
					t.Fatal("the sweep does not end")
				}
				happened := 0
				onStreet(t, func(x *street) { happened = endOfContext(x, n, warm, outcomes) })
				if happened < n || t.Failed() {
					break
				}
			}
			t.Logf("%d moments, outcomes %v", n-1, outcomes)
			if n < 20 || outcomes["held"] < 5 || outcomes["unknown"] < 2 || outcomes["locked"] == 0 {
				t.Errorf("%d moments, outcomes %v: the sweep has missed its target", n-1, outcomes)
			}
		})
	}
}

var errOver = errors.New("the caller's time is over")

// endOfContext lets the context of b end at the n-th moment, while a has the lock, then b, and c waits behind b. It returns
// how many moments there were.
func endOfContext(x *street, n int, warm bool, outcomes map[string]int) int {
	ctx, cancel := context.WithCancelCause(x.Context())
	defer cancel(nil)
	var mu sync.Mutex
	var ended time.Time
	moments, armed := 0, false
	moment := func() {
		mu.Lock()
		hit := false
		if armed {
			moments++
			hit = moments == n
		}
		mu.Unlock()
		if hit {
			ended = time.Now()
			cancel(errOver)
			time.Sleep(time.Nanosecond) // what that sets going is ahead of what comes
		}
	}
	arm := func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		armed = on
	}
	a, c := x.party(), x.party()
	b := x.party(func(d drivers.Driver) drivers.Driver { return &watched{d, d.(drivers.Subscriber), moment} })
	b.moment = moment
	if warm {
		b.warm()
		c.warm()
		time.Sleep(time.Second)
	}
	lease := a.must()
	arm(true)
	result := make(chan error, 1)
	var mine locker.Lease
	var back time.Time
	go func() {
		l, err := b.Lock(ctx, "k", locker.TTL(5*time.Minute))
		mine, back = l, time.Now()
		result <- err
	}()
	x.settle()
	behind := c.lock(locker.TTL(5 * time.Minute))
	behind.waits(3 * time.Second) // some heartbeats
	x.unlock(lease)
	err := <-result
	arm(false)
	switch {
	case err == nil:
		outcomes["locked"]++
		x.sound(mine)
		behind.waits(time.Second)
		x.unlock(mine)
	case errors.Is(err, locker.ErrHeld):
		outcomes["held"]++
	default: // it ended before the first answer
		outcomes["unknown"]++
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errOver) {
			x.Errorf("moment %d: %v does not match the context's", n, err)
		}
		if late := back.Sub(ended); late > 1 {
			x.Errorf("moment %d: Lock returned %v after the context's end", n, late)
		}
	}
	x.unlock(behind.gets(100 * time.Millisecond))
	x.nothing()
	return moments
}

// watched calls moment around each message that comes to a subscriber.
type watched struct {
	drivers.Driver
	subscriber drivers.Subscriber
	moment     func()
}

func (w *watched) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	message, subscribed := l.Message, l.Subscribed
	l.Message = func(channel, payload string) {
		w.moment()
		message(channel, payload)
		w.moment()
	}
	l.Subscribed = func(channel string) {
		w.moment()
		subscribed(channel)
		w.moment()
	}
	return w.subscriber.Subscribe(ctx, l)
}

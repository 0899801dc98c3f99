package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

func (x *street) tombstones() int { return x.node.Tombstones() }

// Nothing of a waiter whose requests have all been answered can be executed later.
func TestWaiterThatLeavesWritesNoTombstone(t *testing.T) {
	onStreet(t, func(x *street) {
		lease := x.party().must()
		p, next := x.party(), x.party()
		p.warm()
		for range 200 {
			c := p.lock(locker.TTL(time.Hour))
			c.waits(10 * time.Millisecond)
			c.cancel()
			<-c.done
		}
		x.settle()
		if n := x.tombstones(); n > 0 {
			x.Errorf("%d tombstones of waiters that left", n)
		}
		c := next.lock() // nobody is before it
		x.unlock(lease)
		x.unlock(c.gets(10 * oneWay))
		x.nothing()
	})
}

// A waiter that leaves is not in the queue any more, whether it writes a tombstone or not: a lock that expires is not
// granted to it.
func TestWaiterThatLeftIsNotGrantedTheLock(t *testing.T) {
	onStreet(t, func(x *street) {
		x.party().must(locker.TTL(time.Second), locker.NoRenewal())
		p := x.party()
		c := p.lock()
		c.waits(100 * time.Millisecond)
		c.cancel()
		<-c.done
		time.Sleep(2 * time.Second) // the lock has expired
		x.unlock(x.party().must())
		x.nothing()
	})
}

// A request that is under way when its waiter leaves might be executed after that. One whose answer has come, although
// late, will not be.
func TestWaiterLeavesATombstoneForWhatIsUnderWay(t *testing.T) {
	for name, tt := range map[string]struct {
		heartbeat fate
		stay      time.Duration // of the waiter, after that was sent; less than its TTL and it waits for the answer
		want      int
	}{
		"the heartbeat is under way":                 {fate{back: 2 * time.Second}, 500 * time.Millisecond, 1},
		"another one was answered since":             {fate{back: 4 * time.Second}, 3500 * time.Millisecond, 1},
		"its answer has come late":                   {fate{back: 2 * time.Second}, 3500 * time.Millisecond, 0},
		"there was no answer":                        {fate{mute: true}, 20 * time.Second, 1},
		"the connection broke, and nobody knows":     {fate{mute: true, cut: true}, 20 * time.Second, 1},
		"it was not sent, because of no connection":  {fate{unsent: true}, 3500 * time.Millisecond, 0},
		"the heartbeat was answered as it should be": {fate{}, 500 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onStreet(t, func(x *street) {
				lease := x.party().must(locker.TTL(time.Minute))
				p := x.party()
				p.warm()
				c := p.lock(locker.TTL(time.Second))
				sent := make(chan struct{})
				done := false
				p.meddle(func(kind string) fate {
					if kind != "enqueue" || done {
						return fate{}
					}
					done = true
					close(sent)
					return tt.heartbeat
				})
				<-sent
				c.waits(tt.stay)
				if tt.want == 0 {
					p.rests() // another one would be under way now and then
				}
				c.cancel()
				<-c.done
				x.settle()
				if n := x.tombstones(); n != tt.want {
					x.Errorf("%d tombstones, want %d", n, tt.want)
				}
				p.meddle(nil)
				x.unlock(lease)
				x.nothing()
			})
		})
	}
}

// meddler is a proxy that answers the next requests for the lock in the server's place, and sends them on nevertheless,
// or not.
type meddler struct {
	drivers.Driver
	answer atomic.Pointer[drivers.ServerError]
}

func (m *meddler) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	replies, err := m.Driver.Do(ctx, cmds...)
	if e := m.answer.Load(); e != nil && err == nil && kindOf(cmds[0]) == "enqueue" {
		replies[0] = *e
	}
	return replies, err
}

// An answer that is not the server's leaves the request in doubt; a refusal of the server's does not.
func TestWaiterLeavesATombstoneForAnAnswerInDoubt(t *testing.T) {
	for answer, want := range map[drivers.ServerError]int{"ERR upstream failure": 1, "LOADING not yet": 0} {
		onStreet(t, func(x *street) {
			lease := x.party().must(locker.TTL(time.Minute))
			m := &meddler{}
			p := x.party(func(d drivers.Driver) drivers.Driver {
				m.Driver = d
				return m
			})
			c := p.lock()
			m.answer.Store(&answer)
			c.waits(time.Second) // it has no subscription, and looks often
			m.answer.Store(nil)
			c.waits(2 * time.Second)
			p.rests()
			c.cancel()
			<-c.done
			x.settle()
			if n := x.tombstones(); n != want {
				x.Errorf("%d tombstones after %q, want %d", n, answer, want)
			}
			x.unlock(lease)
			x.nothing()
		})
	}
}

// An operator takes the lock from the waiter that it has just been granted to: it waits on as a new attempt, in its
// place.
func TestForceReleaseAtTheHandOverSendsTheWaiterBack(t *testing.T) {
	for name, tt := range map[string]struct {
		claim fate // of the waiter's claim
		deaf  bool // the waiter is not told
	}{
		"the claim comes after it":  {claim: fate{out: 100 * time.Millisecond}},
		"the waiter was never told": {deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			onStreet(t, func(x *street) {
				operator := x.party()
				lease := x.party().must()
				b, c, d := x.party(), x.party(), x.party()
				b.warm()
				first, second, third := b.lock(), c.lock(), d.lock()
				b.once("claim", tt.claim)
				if tt.deaf {
					x.messages(func(channel, _ string) (time.Duration, bool) { return 0, channel == b.node.inbox.channel })
				}
				x.unlock(lease)
				x.messages(nil)
				time.Sleep(10 * oneWay)
				if _, err := operator.ForceRelease(x.Context(), "k", ""); err != nil {
					x.Fatal(err)
				}
				lease = second.gets(time.Second)
				first.waits(heartbeat + time.Second)
				x.unlock(lease)
				lease = first.gets(20 * time.Millisecond)
				if err := lease.Extend(x.Context()); err != nil {
					x.Error(err)
				}
				third.waits(time.Second)
				x.unlock(lease)
				x.unlock(third.gets(20 * time.Millisecond))
				b.forgotten()
				x.nothing()
			})
		})
	}
}

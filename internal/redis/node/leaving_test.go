package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/lockertrace"
)

func (x *testbed) tombstones() int { return x.node.Tombstones() }

// Nothing of a waiter whose requests have all been answered can be executed later.
func TestWaiterThatLeavesWritesNoTombstone(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must()
		p, next := x.client(), x.client()
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
	onTestbed(t, func(x *testbed) {
		x.client().must(locker.TTL(time.Second), locker.NoRenewal())
		p := x.client()
		c := p.lock()
		c.waits(100 * time.Millisecond)
		c.cancel()
		<-c.done
		time.Sleep(2 * time.Second) // the lock has expired
		x.unlock(x.client().must())
		x.nothing()
	})
}

// A request that is under way when its waiter leaves might be executed after that. One whose answer has come, although
// late, will not be.
func TestWaiterLeavesATombstoneForWhatIsUnderWay(t *testing.T) {
	for name, tt := range map[string]struct {
		heartbeat fault
		stay      time.Duration // of the waiter, after that was sent; less than its TTL and it waits for the answer
		want      int
	}{
		"the heartbeat is under way":                 {fault{back: 2 * time.Second}, 500 * time.Millisecond, 1},
		"another one was answered since":             {fault{back: 4 * time.Second}, 3500 * time.Millisecond, 1},
		"its answer has come late":                   {fault{back: 2 * time.Second}, 3500 * time.Millisecond, 0},
		"there was no answer":                        {fault{mute: true}, 20 * time.Second, 1},
		"the connection broke, and nobody knows":     {fault{mute: true, cut: true}, 20 * time.Second, 1},
		"it was not sent, because of no connection":  {fault{unsent: true}, 3500 * time.Millisecond, 0},
		"the heartbeat was answered as it should be": {fault{}, 500 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				lease := x.client().must(locker.TTL(time.Minute))
				p := x.client()
				p.warm()
				c := p.lock(locker.TTL(time.Second))
				sent := make(chan struct{})
				done := false
				p.inject(func(kind string) fault {
					if kind != "enqueue" || done {
						return fault{}
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
				p.inject(nil)
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
		onTestbed(t, func(x *testbed) {
			lease := x.client().must(locker.TTL(time.Minute))
			m := &meddler{}
			p := x.client(func(d drivers.Driver) drivers.Driver {
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
		claim fault // of the waiter's claim
		deaf  bool  // the waiter is not told
	}{
		"the claim comes after it":  {claim: fault{out: 100 * time.Millisecond}},
		"the waiter was never told": {deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				operator := x.client()
				lease := x.client().must()
				b, c, d := x.client(), x.client(), x.client()
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

// A waiter whose hook panics leaves the queue, and those behind it do not wait for it.
func TestWaiterWhoseHookPanicsLeaves(t *testing.T) {
	for name, trace := range map[string]*lockertrace.Trace{
		"when it begins to wait": {Waiting: func(lockertrace.Waiting) { panic("hook") }},
		"when it is woken":       {Woken: func(lockertrace.Wake) { panic("hook") }},
	} {
		onTestbed(t, func(x *testbed) {
			lease := x.client().must(locker.TTL(time.Minute))
			p := x.client()
			panicked := make(chan any)
			go func() {
				defer func() { panicked <- recover() }()
				_, _ = p.Lock(lockertrace.With(x.Context(), trace), "k", locker.TTL(time.Minute))
			}()
			time.Sleep(100 * time.Millisecond)
			next := x.client().lock()
			next.waits(100 * time.Millisecond)
			x.unlock(lease)
			if p := <-panicked; p != "hook" {
				x.Errorf("%s: got %v", name, p)
			}
			time.Sleep(100 * time.Millisecond)
			select {
			case <-next.done:
			default:
				x.Errorf("%s: the next one waits", name)
				<-next.done
			}
			x.unlock(next.lease)
			x.nothing()
		})
	}
}

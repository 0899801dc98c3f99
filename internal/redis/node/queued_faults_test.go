package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

func TestFlushedWhileTenWait(t *testing.T) {
	for _, what := range []string{"flushed", "flushed and cut", "flushed, and away for 3 s"} {
		t.Run(what, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				holder := x.client()
				lost := holder.must()
				var clients []*client
				var calls []*call
				for range 10 {
					p := x.client()
					clients = append(clients, p)
					calls = append(calls, p.lock())
				}
				calls[0].waits(time.Second)
				x.node.Flush()
				if what != "flushed" {
					x.node.Cut()
				}
				if what == "flushed, and away for 3 s" {
					for _, p := range clients {
						p.inject(func(string) fault { return fault{unsent: true} })
						time.AfterFunc(3*time.Second, func() { p.inject(nil) })
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
	for name, f := range outages {
		for _, ttl := range []time.Duration{500 * time.Millisecond, 10 * time.Second} {
			t.Run(fmt.Sprint(name, ", TTL ", ttl), func(t *testing.T) {
				for _, away := range []time.Duration{locker.DefaultPatience - 200*time.Millisecond, time.Hour} {
					onTestbed(t, func(x *testbed) {
						lease := x.client().must(locker.TTL(time.Hour))
						b := x.client()
						c := b.lock(locker.TTL(ttl))
						c.waits(time.Second)
						b.inject(func(string) fault { return f })
						if away < locker.DefaultPatience {
							c.waits(away)
							b.inject(nil)
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
						if took := c.at.Sub(start); took < locker.DefaultPatience || took > heartbeat+2*timeout+time.Second {
							x.Errorf("it was given up after %v", took)
						}
						b.inject(nil)
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
	onTestbed(t, func(x *testbed) {
		lease := x.client().must(locker.TTL(time.Hour))
		var refuse atomic.Bool
		b := x.client(func(d drivers.Driver) drivers.Driver { return &refusing{Driver: d, when: &refuse} })
		c := b.lock()
		refuse.Store(true)
		c.waits(locker.DefaultPatience / 2)
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
	setup := func(x *testbed) (b *client, l locker.Lease) {
		lease := x.client().must()
		b = x.client()
		c := b.lock(locker.TTL(ttl))
		b.once("enqueue", fault{out: late})
		for before := b.sent("enqueue"); b.sent("enqueue") == before; {
			c.waits(time.Millisecond)
		}
		c.waits(ttl + 100*time.Millisecond) // by now it has given up on this one, and sent another
		x.unlock(lease)
		return b, c.gets(heartbeat)
	}
	t.Run("while it is held", func(t *testing.T) {
		onTestbed(t, func(x *testbed) {
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
		onTestbed(t, func(x *testbed) {
			b, l := setup(x)
			x.unlock(l)
			other := x.client()
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
		onTestbed(t, func(x *testbed) {
			const ttl = time.Second
			lease := x.client().must()
			b := x.client()
			c := b.lock(locker.TTL(ttl))
			n := 0
			b.inject(func(string) fault {
				if n++; n%2 == 0 { // not all of them: it could be taken for a server that does not answer
					return fault{}
				}
				return fault{back: ttl - 2*oneWay}
			})
			c.waits(20 * time.Second)
			b.inject(nil)
			c.waits(5 * time.Second)
			x.unlock(lease)
			x.unlock(c.gets(heartbeat))
			x.nothing()
		})
	}
}

// An attempt that is granted the lock twice knows how long it has it only by claiming it; if that fails, it is given
// back.
func TestAttemptExecutedTwice(t *testing.T) {
	for _, wait := range []bool{false, true} {
		for name, claim := range map[string]fault{"claimed": {}, "claim not sent": {unsent: true},
			"claim lost": {lost: true, cut: true}} {
			t.Run(fmt.Sprint(name, ", waiting ", wait), func(t *testing.T) {
				onTestbed(t, func(x *testbed) {
					again := false
					b := x.client(func(d drivers.Driver) drivers.Driver { return &resending{d, x} })
					b.inject(func(kind string) fault {
						if kind == "claim" && !again {
							again = true
							return claim
						}
						return fault{}
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
	x *testbed
}

func (r *resending) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if wire.Acquires(cmds[0]) {
		for _, cmd := range cmds {
			r.x.node.Execute(cmd)
		}
	}
	return r.Driver.Do(ctx, cmds...)
}

package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
)

var outages = map[string]fault{
	"hangs": {lost: true}, "answers are lost": {mute: true}, "connections break": {lost: true, cut: true},
	"is down": {unsent: true},
}

// lockFor begins to lock k for as long as d.
func (p *client) lockFor(d time.Duration, opts ...locker.Option) *call {
	c := &call{x: p.x, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	go func() {
		defer close(c.done)
		defer cancel()
		c.lease, c.err = p.Lock(ctx, "k", opts...)
		c.at = time.Now()
	}()
	return c
}

func (c *call) failsWith(t testing.TB, want, never error) {
	t.Helper()
	<-c.done
	if !errors.Is(c.err, want) || !errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, never) {
		t.Errorf("%v, want an error that matches %q and the context's, and not %q", c.err, want, never)
	}
}

// A waiter for a lock on a server that dies is told of that, and not of a holder that is long gone. The last contact
// counts. It is that of the caller that asks the server for all callers of a Client.
func TestWhoWaitsIsToldOfTheLastContact(t *testing.T) {
	for name, f := range outages {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				lease := x.client().must(locker.TTL(time.Hour))
				b := x.client()
				first := b.lockFor(12*time.Second, locker.Patience(time.Minute))
				first.waits(50 * time.Millisecond)
				behind := b.lockFor(10*time.Second, locker.Patience(time.Minute)) // each caller has its own
				alone := x.client().lockFor(5 * time.Second)                      // of a Client that still reaches the server
				behind.waits(time.Second)
				b.inject(func(string) fault { return f })
				behind.failsWith(x, locker.ErrUnavailable, locker.ErrHeld)
				alone.failsWith(x, locker.ErrHeld, locker.ErrUnavailable)
				first.failsWith(x, locker.ErrUnavailable, locker.ErrHeld)

				b.inject(nil)
				time.Sleep(10 * time.Second)       // what hangs is given up
				late := b.lockFor(5 * time.Second) // its first request that fails may be under way in the end
				late.waits(time.Second)
				b.inject(func(string) fault { return f })
				late.failsWith(x, locker.ErrUnavailable, locker.ErrHeld)

				b.inject(nil)
				time.Sleep(10 * time.Second) // what hangs is given up
				again := b.lockFor(15 * time.Second)
				again.waits(time.Second)
				b.inject(func(string) fault { return f })
				again.waits(4 * time.Second)
				b.inject(nil)
				again.failsWith(x, locker.ErrHeld, locker.ErrUnavailable)
				time.Sleep(2 * time.Second) // until the server knows that the waiter has left
				x.unlock(lease)
				x.nothing()
			})
		})
	}
}

// A request that is under way for a moment when the context ends says nothing against the server.
func TestASlowAnswerIsNoOutage(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must(locker.TTL(time.Hour))
		b := x.client()
		b.inject(func(string) fault { return fault{back: 400 * time.Millisecond} })
		for d := 4 * time.Second; d < 7*time.Second; d += 100 * time.Millisecond {
			b.lockFor(d).failsWith(x, locker.ErrHeld, locker.ErrUnavailable)
		}
		b.inject(nil)
		time.Sleep(2 * time.Second)
		x.unlock(lease)
		x.nothing()
	})
}

// The caller says how long a waiter tolerates a server that does not answer.
func TestPatienceIsAnOption(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Second, locker.DefaultPatience, 30 * time.Second} {
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				lease := x.client().must(locker.TTL(time.Hour))
				b := x.client()
				var opts []locker.Option
				if patience != locker.DefaultPatience {
					opts = []locker.Option{locker.Patience(patience)}
				}
				c := b.lockFor(time.Hour, opts...)
				behind := b.lockFor(time.Hour, opts...) // does not begin to count when its turn has come
				c.waits(time.Second)
				b.inject(func(string) fault { return outages["is down"] })
				start := time.Now()
				for _, c := range []*call{c, behind} {
					<-c.done
					if !errors.Is(c.err, locker.ErrUnavailable) || errors.Is(c.err, locker.ErrHeld) {
						x.Errorf("%v, want ErrUnavailable", c.err)
					}
					// The first contact is due within a heartbeat, and then they are a second apart at most.
					if took := c.at.Sub(start); took < patience || took > patience+heartbeat+2*time.Second {
						x.Errorf("it was given up after %v, the patience is %v", took, patience)
					}
				}
				b.inject(nil)
				time.Sleep(2 * time.Second)
				x.unlock(lease)
				x.nothing()
			})
		})
	}
}

package node

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/redis/script"
)

// Bounds of the requests of a waiter for the lock, in virtual time.
const (
	mostPoll       = foreignPoll + 2*oneWay
	leastPoll      = foreignPoll/2 + 2*oneWay
	leastHeartbeat = script.ClaimWindow*3/4 + 2*oneWay
	// seen is how long it takes at most that a waiter that polls has a lock that was released. A request that was
	// executed just before that still has to be answered.
	seen = mostPoll + oneWay
)

// theirs makes another library acquire k.
func (x *testbed) theirs(ttl time.Duration) {
	x.Helper()
	if !x.node.Take("p:k", "theirs", ttl) {
		x.Fatal("the lock is not free")
	}
}

// asked returns how often the client asks for the lock in d, while c waits.
func (p *client) asked(c *call, d time.Duration) int {
	p.x.Helper()
	before := p.sent("enqueue")
	c.waits(d)
	return p.sent("enqueue") - before
}

// Behind another library, whose release notifies nobody, the first waiter polls. It then has the lock, and the others
// come in the order of their arrival. Until then they ask as often as behind any other holder.
func TestFirstWaiterPollsBehindAnotherLibrary(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		x.theirs(time.Hour)
		var clients []*client
		var calls []*call
		for range 10 {
			p := x.client()
			clients, calls = append(clients, p), append(calls, p.lock())
		}
		time.Sleep(heartbeat)
		before := make([]int, len(clients))
		for i, p := range clients {
			before[i] = p.sent("enqueue")
		}
		const d = time.Minute
		calls[0].waits(d)
		for i, p := range clients {
			least, most := d/(heartbeat+2*oneWay), d/leastHeartbeat
			if i == 0 {
				least, most = d/mostPoll, d/leastPoll
			}
			if n := time.Duration(p.sent("enqueue") - before[i]); n < least-1 || n > most+1 {
				x.Errorf("waiter %d has asked %d times in %v, want %d to %d", i, n, d, least, most)
			}
		}
		x.node.Delete("p:k")
		lease := calls[0].gets(seen)
		for _, c := range calls[1:] {
			x.unlock(lease)
			lease = c.gets(20 * time.Millisecond)
		}
		x.unlock(lease)
		x.nothing()
	})
}

// No poll comes later than the end of the TTL.
func TestWaiterTakesTheLockWhenAnotherLibraryHasDied(t *testing.T) {
	for ttl := 20 * time.Millisecond; ttl < 10*time.Second; ttl = ttl*5/4 + time.Millisecond {
		onTestbed(t, func(x *testbed) {
			end := time.Now().Add(ttl)
			x.theirs(ttl)
			c := x.client().lock()
			x.unlock(c.gets(time.Minute))
			if late := c.at.Sub(end); late > 10*time.Millisecond {
				x.Errorf("%v late, with a TTL of %v", late, ttl)
			}
			x.nothing()
		})
	}
}

// When the first waiter has left or died, the next one polls.
func TestNextWaiterPollsWhenTheFirstIsGone(t *testing.T) {
	for name, goes := range map[string]func(p *client, c *call){
		"left": func(_ *client, c *call) { c.cancel() },
		"died": func(p *client, _ *call) { p.inject(func(string) fault { return fault{unsent: true} }) },
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				x.theirs(time.Hour)
				p, q := x.client(), x.client()
				first, second := p.lock(), q.lock()
				time.Sleep(2 * heartbeat)
				goes(p, first)
				second.waits(script.MaxPositionTTL + 2*heartbeat)
				const d = 10 * time.Second
				if n := time.Duration(q.asked(second, d)); n < d/mostPoll-1 {
					x.Errorf("the next waiter has asked %d times in %v", n, d)
				}
				x.node.Delete("p:k")
				x.unlock(second.gets(seen))
				p.inject(nil)
				<-first.done
				time.Sleep(time.Minute) // it is given up
				x.nothing()
			})
		})
	}
}

// A lock that is kept after its release ends when its TTL does, and not before.
func TestNobodyPollsForALockThatIsKept(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		x.unlock(x.client().must(locker.MinHold(time.Minute)))
		p := x.client()
		c := p.lock()
		time.Sleep(heartbeat)
		const d = 30 * time.Second
		if n := time.Duration(p.asked(c, d)); n > d/leastHeartbeat+1 {
			x.Errorf("%d requests in %v", n, d)
		}
		x.unlock(c.gets(time.Minute))
		x.nothing()
	})
}

// A lock of this library that expires may go to another library. The first waiter learns of that, and polls.
func TestAnotherLibraryComesInBetween(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		x.client().must(locker.TTL(time.Second), locker.NoRenewal())
		p := x.client()
		c := p.lock()
		time.Sleep(500 * time.Millisecond)
		x.node.Delete("p:k")
		x.theirs(time.Hour)
		time.Sleep(heartbeat)
		const d = 10 * time.Second
		if n := time.Duration(p.asked(c, d)); n < d/mostPoll-1 {
			x.Errorf("%d requests in %v", n, d)
		}
		x.node.Delete("p:k")
		x.unlock(c.gets(seen))
		x.nothing()
	})
}

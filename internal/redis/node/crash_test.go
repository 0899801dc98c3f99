package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// A holder that dies right after a hand-over is waited for until its TTL is over, and not longer, however short the TTL
// is. The next waiter was not told that it has come to the front. Its looks cost next to nothing.
func TestWaiterTakesTheLockWhenTheNextHolderHasDied(t *testing.T) {
	for _, ttl := range []time.Duration{600 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second} {
		// The release comes at any moment between two looks of the waiters.
		for held := time.Duration(0); held < 2*heartbeat; held += 230 * time.Millisecond {
			t.Run(fmt.Sprintf("%v after %v", ttl, held), func(t *testing.T) {
				onTestbed(t, func(x *testbed) { x.nextHolderDies(ttl, held) })
			})
		}
	}
}

func (x *testbed) nextHolderDies(ttl, held time.Duration) {
	x.Helper()
	first, dies, last := x.client(), x.client(), x.client()
	lease := first.must(locker.TTL(ttl))
	next, waits := dies.lock(locker.TTL(ttl)), last.lock(locker.TTL(ttl))
	waits.waits(held)
	x.unlock(lease)
	next.gets(time.Second)
	end := next.at.Add(ttl) // after the end of the lock on the server
	dies.inject(func(string) fault { return fault{lost: true} })

	before := last.sent("")
	lease = waits.gets(time.Minute)
	if late := waits.at.Sub(end); late > 10*time.Millisecond {
		x.Errorf("%v late", late)
	}
	if n, most := last.sent("")-before, 4+int(ttl/time.Second); n > most {
		x.Errorf("%d commands in %v, more than %d", n, ttl, most)
	}
	dies.inject(nil)
	x.unlock(lease)
	x.nothing()
}

// Waiters behind the first one look no more often than twice a second, however short the TTL is.
func TestWaitersBehindOthersCostLittle(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		lease := x.client().must(locker.TTL(100 * time.Millisecond))
		first, second := x.client(), x.client()
		calls := []*call{first.lock(), second.lock()}
		before := second.sent("")
		calls[0].waits(time.Minute)
		if n := second.sent("") - before; n > 140 { // also to its subscription
			x.Errorf("%d commands in a minute", n)
		}
		for _, c := range calls {
			x.unlock(lease)
			lease = c.gets(20 * time.Millisecond)
		}
		x.unlock(lease)
		x.nothing()
	})
}

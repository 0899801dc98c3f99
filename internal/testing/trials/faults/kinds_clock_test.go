package faults

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// The shim moves the server's clock, and its TTLs with it.
func TestClockShift(t *testing.T) {
	t.Parallel()
	if why := testserver.NoClock(); why != "" {
		t.Log(why)
		return
	}
	b := newTestbed(t, 1, kind{clock: true}, 1, false)
	b.do(0, "SET", "k", "v", "PX", 60000)
	b.clockAhead([]int{0}, -time.Hour, 0)
	if left := b.do(0, "PTTL", "k").(int64); left < 3600_000 {
		t.Errorf("an hour earlier, %d ms are left of a minute", left)
	}
	b.clockAhead([]int{0}, time.Hour, 0)
	if v := b.do(0, "GET", "k"); v != nil {
		t.Error("an hour later, the key is still there")
	}
}

// skew is how far the clocks of nodes may differ, in every second episode of a Redlock. [away] depends on it.
const skew = 50 * time.Millisecond

// clockIs sets the clock of a node. The server gets the new time when it next reads its clock.
func (b *testbed) clockIs(n int, ahead time.Duration, fast int) {
	b.Helper()
	if err := b.clocks[n].Set(ahead, fast); err != nil {
		b.Error(err)
	}
}

// clockAhead sets how far the clocks of nodes are ahead, and how much faster they run, in ppm.
func (b *testbed) clockAhead(nodes []int, ahead time.Duration, fast int) {
	each(nodes, func(n int) {
		b.clockIs(n, ahead, fast)
		b.eventually("a clock that moves", func() bool { return testserver.ClockShows(b.servers[n].Do, ahead) })
		b.injected.Add(1)
	})
}

// stepBack is shorter than hangLimit, because all locks have to be free again within hangLimit.
const stepBack = 3 * time.Second

var steps = []time.Duration{500 * time.Millisecond, 2 * time.Second, 30 * time.Second, 1000 * time.Second}

var clockKinds = []kind{
	{
		name: "clock forward", clock: true, forgets: true,
		what: "the server's wall clock is stepped forward, by 0.5 s to 1000 s",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			ahead := steps[b.random.IntN(len(steps))]
			b.clockAhead(nodes, ahead, 0)
			time.Sleep(d)
		},
	},
	{
		name: "clock back", clock: true, behind: stepBack, what: "stepped back by 3 s: locks last longer",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			b.clockAhead(nodes, -stepBack, 0)
			time.Sleep(d)
		},
	},
	{
		// Keys that are set meanwhile expire much too early when the clock is right again.
		name: "clock back, and right again", clock: true, forgets: true, brief: true,
		what: "stepped back by 0.5 s to 1000 s, and forward again",
		inject: func(b *testbed, nodes []int, d time.Duration) {
			ahead := steps[b.random.IntN(len(steps))]
			b.clockAhead(nodes, -ahead, 0)
			time.Sleep(d)
			b.clockAhead(nodes, 0, 0)
		},
	},
	{
		name: "clock fast", clock: true, what: "it runs fast by 0.9 per cent", most: 3,
		inject: func(b *testbed, nodes []int, d time.Duration) {
			b.clockAhead(nodes, 0, 9000)
			time.Sleep(d)
		},
	},
	{
		name: "clock slow", clock: true, what: "it runs slow by 0.9 per cent", most: 3,
		inject: func(b *testbed, nodes []int, d time.Duration) {
			b.clockAhead(nodes, 0, -9000)
			time.Sleep(d)
		},
	},
}

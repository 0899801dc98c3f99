package locker

import (
	"container/heap"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// maxInFlight bounds the renewals that one Client has in flight, and with them the goroutines that a store that hangs
	// can cost. It fills the round trips of a busy node several times over, so 10,000 leases lose nothing by it.
	maxInFlight = 1024
	// slackPart is the part of its TTL by which a renewal may come early, to travel with others.
	slackPart = 30
	// The clocks are compared every tenth of the shortest TTL, within these bounds.
	minTick, maxTick = 100 * time.Millisecond, time.Second
	// minStep is what the wall clock must have gained on the monotonic one to be looked after: more than NTP's slewing
	// (0.05 %) does between two ticks, less than leases end early.
	minStep = 5 * time.Millisecond
)

// schedule knows what a Client holds and when it is to be renewed. One timer serves all leases, and only while there are
// any; there is no goroutine but for the renewals in flight. Guarded by the Client's mu.
type schedule struct {
	leases   byDue // all that are held
	inFlight int   // renewals
	timer    *time.Timer
	wake     time.Time     // when the timer fires; zero: it will not
	tick     time.Duration // the timer fires at least that often, to compare the clocks
	origin   time.Time
	ahead    time.Duration // what the wall clock had gained on the monotonic one since origin, when they were last compared
}

// never is when a lease is due that is not renewed, or is being renewed.
var never = time.Unix(1<<33, 0)

// add puts l into the schedule, to be renewed at due.
func (s *schedule) add(l *lease, due time.Time) {
	if len(s.leases) == 0 {
		s.tick = maxTick
	}
	s.tick = max(minTick, min(s.tick, l.req.TTL/10))
	l.due = due
	heap.Push(&s.leases, l)
	s.arm(earlier(due, l.start.Add(s.tick)))
}

// remove takes l out. The timer stays: stopping it would cost every short critical section more than one wake-up does.
func (s *schedule) remove(l *lease) {
	if l.pos >= 0 {
		heap.Remove(&s.leases, l.pos)
	}
}

// move changes when l is due, if it is still held.
func (s *schedule) move(l *lease, due time.Time) {
	if l.pos >= 0 {
		l.due = due
		heap.Fix(&s.leases, l.pos)
	}
}

// take returns what is to be renewed now, first what is due first: if anything is due, also what is due soon. So leases
// that were acquired at about the same time are renewed in one round trip, and stay together from then on.
func (s *schedule) take(now time.Time) []*lease {
	if len(s.leases) == 0 || s.leases[0].due.After(now) {
		return nil
	}
	var batch []*lease
	for s.inFlight < maxInFlight {
		l := s.leases[0]
		if l.due.Add(-l.req.TTL / slackPart).After(now) {
			break
		}
		s.move(l, never) // one at a time per lease
		s.inFlight++
		batch = append(batch, l)
	}
	return batch
}

// rearm sets the timer to what comes next.
func (s *schedule) rearm(now time.Time) {
	if len(s.leases) == 0 {
		return
	}
	at := now.Add(s.tick)
	if s.inFlight < maxInFlight { // otherwise the renewal that ends next looks for what is due
		at = earlier(at, s.leases[0].due)
	}
	s.arm(at)
}

// arm makes the timer fire at the given time, or before.
func (s *schedule) arm(at time.Time) {
	if s.wake.IsZero() || at.Before(s.wake) {
		s.wake = at
		s.timer.Reset(max(0, time.Until(at)))
	}
}

// slept compares the clocks. If the wall clock went on without the monotonic one, as it does while a machine is suspended,
// timers are late: renewals are brought forward by as much, and the leases returned whose ends have to be, too.
func (s *schedule) slept(now time.Time) []*lease {
	ahead := wall(now).Sub(s.origin.Round(0)) - now.Sub(s.origin)
	step := ahead - s.ahead
	if 0 <= step && step < minStep {
		return nil
	}
	s.ahead = ahead
	if step < 0 { // stepped back: the monotonic clock holds
		return nil
	}
	for _, l := range s.leases { // all by the same, so their order stays
		if l.due != never {
			l.due = l.due.Add(-step)
		}
	}
	return slices.Clone(s.leases)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// wall is what the wall clock shows at now.
func wall(now time.Time) time.Time { return now.Round(0).Add(time.Duration(slept.Load())) }

// slept is for how long a test has let the machine sleep.
var slept atomic.Int64

// left returns how long it is until end, by the clock that comes to it first: the monotonic one, which stands still while
// the machine is suspended (CLOCK_MONOTONIC on Linux, mach_absolute_time on macOS), or the wall clock. So a wall clock
// that is stepped forward costs a lock, one that is stepped back is outvoted.
func left(end time.Time) time.Duration {
	now := time.Now()
	return min(end.Sub(now), end.Round(0).Sub(wall(now)))
}

// byDue is a heap of leases, each of which knows its place.
type byDue []*lease

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

// Push implements heap.Interface.
func (h *byDue) Push(x any) {
	l := x.(*lease)
	l.pos = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *byDue) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.pos = -1
	return l
}

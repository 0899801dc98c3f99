package locker

import (
	"container/heap"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// maxInFlight is how many renewals a Client has in flight at most. It limits the number of goroutines while a store
	// hangs. It is large enough to keep a busy node occupied.
	maxInFlight = 1024

	// slackPart is the part of the TTL by which a renewal may be sent early, together with others.
	slackPart = 30

	// The clocks are compared every tenth of the shortest TTL, within these bounds.
	minTick, maxTick = 100 * time.Millisecond, time.Second

	// minStep is the smallest gain of the wall clock on the monotonic clock that counts as a suspension of the machine.
	// It is more than NTP's slewing (0.05 %) adds between two ticks, and less than the margin by which leases end
	// early.
	minStep = 5 * time.Millisecond
)

// schedule has the leases that a Client holds, and knows when to renew them. One timer serves all leases, and runs only
// while there are any. Only renewals in flight have goroutines. The schedule is guarded by the mu of the Client.
type schedule struct {
	leases   byDue // all that are held
	inFlight int   // number of renewals in flight
	timer    *time.Timer
	wake     time.Time     // when the timer fires; zero if it is not set
	tick     time.Duration // the timer fires at least this often, to compare the clocks
	origin   time.Time
	ahead    time.Duration // gain of the wall clock on the monotonic clock since origin, at the last comparison
}

// never is the due time of a lease that is not to be renewed, or is being renewed.
var never = time.Unix(1<<33, 0)

// add adds l to the schedule, to be renewed at due.
func (s *schedule) add(l *lease, due time.Time) {
	if len(s.leases) == 0 {
		s.tick = maxTick
	}
	s.uses(l, l.req.TTL)
	l.due = due
	heap.Push(&s.leases, l)
	s.arm(earlier(due, l.start.Add(s.tick)))
}

// uses makes the schedule fit the TTL of l.
func (s *schedule) uses(l *lease, ttl time.Duration) {
	l.slack = ttl / slackPart
	s.tick = max(minTick, min(s.tick, ttl/10))
}

// remove removes l from the schedule. It does not stop the timer. Stopping and starting it for each short critical
// section would cost more than one unnecessary wake-up.
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

// take returns the leases to renew now, in the order in which they are due. If a lease is due, take also returns those
// that are due soon. Leases that were acquired at about the same time are thus renewed in one round trip, and stay
// together from then on.
func (s *schedule) take(now time.Time) []*lease {
	if len(s.leases) == 0 || s.leases[0].due.After(now) {
		return nil
	}
	var batch []*lease
	for s.inFlight < maxInFlight {
		l := s.leases[0]
		if l.due.Add(-l.slack).After(now) {
			break
		}
		s.move(l, never) // one renewal of a lease at a time
		s.inFlight++
		batch = append(batch, l)
	}
	return batch
}

// rearm sets the timer to the next renewal or tick.
func (s *schedule) rearm(now time.Time) {
	if len(s.leases) == 0 {
		return
	}
	at := now.Add(s.tick)
	if s.inFlight < maxInFlight { // otherwise the next renewal to end calls due
		at = earlier(at, s.leases[0].due)
	}
	s.arm(at)
}

// arm makes the timer fire no later than at.
func (s *schedule) arm(at time.Time) {
	if s.wake.IsZero() || at.Before(s.wake) {
		s.wake = at
		s.timer.Reset(max(0, time.Until(at)))
	}
}

// slept compares the wall clock with the monotonic clock. While a machine is suspended, only the wall clock goes on,
// and timers fire late by the length of the suspension. slept then brings all renewals forward by that length. It
// returns the leases whose timers must be set again.
func (s *schedule) slept(now time.Time) []*lease {
	ahead := wall(now).Sub(s.origin.Round(0)) - now.Sub(s.origin)
	step := ahead - s.ahead
	if 0 <= step && step < minStep {
		return nil
	}
	s.ahead = ahead
	if step < 0 { // the wall clock was set back; the monotonic clock is right
		return nil
	}
	for _, l := range s.leases { // all are moved by the same time, so the heap stays in order
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

// wall returns the wall clock time at now.
func wall(now time.Time) time.Time { return now.Round(0).Add(time.Duration(slept.Load())) }

// slept is how long the machine was suspended, as simulated by a test.
var slept atomic.Int64

// left returns how long it is until end, by the monotonic clock or by the wall clock, whichever is shorter. The
// monotonic clock (CLOCK_MONOTONIC on Linux, mach_absolute_time on macOS) stops while the machine is suspended. If the
// wall clock is set forward, leases may end too early. If it is set back, the monotonic clock decides.
func left(end time.Time) time.Duration {
	now := time.Now()
	return min(end.Sub(now), end.Round(0).Sub(wall(now)))
}

// byDue is a heap of leases, ordered by due. Each lease has its index in pos.
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

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

// schedule has the grants that a Client holds, and knows when to renew them. One timer serves all grants, and runs only
// while there are any. Only renewals in flight have goroutines. The schedule is guarded by the mu of the Client.
type schedule struct {
	grants   byDue             // all that are held
	byKey    map[string]*grant // the last one of each key
	inFlight int               // number of renewals in flight
	timer    *time.Timer
	wake     time.Time     // when the timer fires; zero if it is not set
	tick     time.Duration // the timer fires at least this often, to compare the clocks
	origin   time.Time
	ahead    time.Duration // gain of the wall clock on the monotonic clock since origin, at the last comparison
}

// never is the due time of a grant that is not to be renewed, or is being renewed.
var never = time.Unix(1<<33, 0)

// add adds g to the schedule, to be renewed at due.
func (s *schedule) add(g *grant, due time.Time) {
	if len(s.grants) == 0 {
		s.tick = maxTick
	}
	s.uses(g, g.req.TTL)
	g.due = due
	heap.Push(&s.grants, g)
	if s.byKey == nil {
		s.byKey = make(map[string]*grant)
	}
	s.byKey[g.req.Key] = g
	s.arm(earlier(due, g.start.Add(s.tick)))
}

// uses makes the schedule fit the TTL of g.
func (s *schedule) uses(g *grant, ttl time.Duration) {
	g.slack = ttl / slackPart
	s.tick = max(minTick, min(s.tick, ttl/10))
}

// remove removes g from the schedule. It does not stop the timer. Stopping and starting it for each short critical
// section would cost more than one unnecessary wake-up.
func (s *schedule) remove(g *grant) {
	if g.pos >= 0 {
		heap.Remove(&s.grants, g.pos)
	}
	if s.byKey[g.req.Key] == g {
		delete(s.byKey, g.req.Key)
	}
}

// move changes when g is due, if it is still held.
func (s *schedule) move(g *grant, due time.Time) {
	if g.pos >= 0 {
		g.due = due
		heap.Fix(&s.grants, g.pos)
	}
}

// take returns the grants to renew now, in the order in which they are due. If a grant is due, take also returns those
// that are due soon. Grants that were acquired at about the same time are thus renewed in one round trip, and stay
// together from then on.
func (s *schedule) take(now time.Time) []*grant {
	if len(s.grants) == 0 || s.grants[0].due.After(now) {
		return nil
	}
	var batch []*grant
	for s.inFlight < maxInFlight {
		g := s.grants[0]
		if g.due.Add(-g.slack).After(now) {
			break
		}
		s.move(g, never) // one renewal of a grant at a time
		s.inFlight++
		batch = append(batch, g)
	}
	return batch
}

// rearm sets the timer to the next renewal or tick.
func (s *schedule) rearm(now time.Time) {
	if len(s.grants) == 0 {
		return
	}
	at := now.Add(s.tick)
	if s.inFlight < maxInFlight { // otherwise the next renewal to end calls due
		at = earlier(at, s.grants[0].due)
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
// returns the grants whose timers must be set again.
func (s *schedule) slept(now time.Time) []*grant {
	ahead := wall(now).Sub(s.origin.Round(0)) - now.Sub(s.origin)
	step := ahead - s.ahead
	if 0 <= step && step < minStep {
		return nil
	}
	s.ahead = ahead
	if step < 0 { // the wall clock was set back; the monotonic clock is right
		return nil
	}
	for _, g := range s.grants { // all are moved by the same time, so the heap stays in order
		if g.due != never {
			g.due = g.due.Add(-step)
		}
	}
	return slices.Clone(s.grants)
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

// byDue is a heap of grants, ordered by due. Each grant has its index in pos.
type byDue []*grant

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

// Push implements heap.Interface.
func (h *byDue) Push(x any) {
	g := x.(*grant)
	g.pos = len(*h)
	*h = append(*h, g)
}

// Pop implements heap.Interface.
func (h *byDue) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	g.pos = -1
	return g
}

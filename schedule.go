package locker

import (
	"container/heap"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// maxSlow is how many of the maxInFlight renewals may be slow, which is in flight for longer than patience, while
	// others are due. These have the rest for themselves, however many leases are on a server that hangs.
	maxSlow = maxInFlight / 2

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
	more     map[*grant]bool   // the others: a caller may have several permits of one key, for instance
	inFlight int               // number of renewals in flight
	places   places            // of renewals, except those that were given up
	stopping int               // how many were given up since the timer fired, and have not ended yet
	slowest  time.Duration     // how long it took at most, of late, until a renewal was answered
	timer    *time.Timer
	wake     time.Time     // when the timer fires; zero if it is not set
	shortest time.Duration // the shortest TTL
	origin   time.Time
	ahead    time.Duration // gain of the wall clock on the monotonic clock since origin, at the last comparison
}

// never is the due time of a grant that is not to be renewed, or is being renewed.
var never = time.Unix(1<<33, 0)

// add adds g to the schedule, to be renewed at due.
func (s *schedule) add(g *grant, due time.Time) {
	if len(s.grants) == 0 {
		s.shortest = MaxTTL
	}
	s.uses(g, g.req.TTL)
	g.due = due
	heap.Push(&s.grants, g)
	if s.byKey == nil {
		s.byKey = make(map[string]*grant)
	}
	if other := s.byKey[g.req.Key]; other != nil {
		if s.more == nil {
			s.more = make(map[*grant]bool)
		}
		s.more[other] = true
	}
	s.byKey[g.req.Key] = g
	s.arm(earlier(due, g.start.Add(s.tick())))
}

// uses makes the schedule fit the TTL of g.
func (s *schedule) uses(g *grant, ttl time.Duration) {
	g.slack = ttl / slackPart
	s.shortest = min(s.shortest, ttl)
}

// tick returns how often the timer fires at least, to compare the clocks.
func (s *schedule) tick() time.Duration { return max(minTick, min(s.shortest/10, maxTick)) }

// remove removes g from the schedule. It does not stop the timer. Stopping and starting it for each short critical
// section would cost more than one unnecessary wake-up.
func (s *schedule) remove(g *grant) {
	if g.pos >= 0 {
		heap.Remove(&s.grants, g.pos)
	}
	if s.byKey[g.req.Key] == g {
		delete(s.byKey, g.req.Key)
	}
	delete(s.more, g)
}

// move changes when g is due, if it is still held.
func (s *schedule) move(g *grant, due time.Time) {
	if g.pos >= 0 {
		g.due = due
		heap.Fix(&s.grants, g.pos)
	}
}

// take returns the renewals to begin now, in the order in which they are due. If one is due, take also returns those
// that are due soon. Grants that were acquired at about the same time are thus renewed in one round trip, and stay
// together from then on. The second result is the renewals to give up.
func (s *schedule) take(now time.Time) (begin, stop []*place) {
	if len(s.grants) == 0 || s.grants[0].due.After(now) {
		return nil, nil
	}
	for s.inFlight < maxInFlight {
		g := s.grants[0]
		if g.due.Add(-g.slack).After(now) {
			return begin, nil
		}
		s.move(g, never) // one renewal of a grant at a time
		s.inFlight++
		c := &place{grant: g}
		s.places.enter(c, now)
		begin = append(begin, c)
	}
	return begin, s.makeRoom(now)
}

// makeRoom returns the renewals to give up for those that are due and find no place: the ones that have been in flight
// for longer than patience, as far as they are more than maxSlow.
func (s *schedule) makeRoom(now time.Time) (stop []*place) {
	hangs := func() *place {
		if c := s.places.first(); c != nil && now.Sub(c.began) >= s.patience() {
			return c
		}
		return nil
	}
	if hangs() == nil { // mostly; counting takes longer, and each renewal that ends comes here
		return nil
	}
	waiting := s.grants.countDue(now, maxInFlight) - s.stopping
	for c := hangs(); len(stop) < waiting && c != nil; c = hangs() {
		if s.places.slow < maxSlow {
			s.places.tire(c)
			continue
		}
		s.places.leave(c)
		stop = append(stop, c)
	}
	s.stopping += len(stop)
	return stop
}

// patience returns how long a renewal may be in flight while others wait for its place. If all leases are due, and none
// of the renewals is answered, each lease still has its turn within the time from one renewal to the next. But if all
// answers take longer than that, or this process takes longer to hear them, as while it collects garbage, none of them
// would ever be awaited. So patience is at least twice what an answer took of late.
func (s *schedule) patience() time.Duration {
	return max(2*s.slowest, (maxInFlight-maxSlow)*s.shortest/renewPart/time.Duration(max(1, len(s.grants))))
}

// ended records that the renewal at c has ended, and when the next one of its grant is due.
func (s *schedule) ended(c *place, now, next time.Time, err error) {
	s.inFlight--
	if c.at == nil && !c.slow {
		s.stopping = max(0, s.stopping-1)
	}
	s.places.leave(c)
	if err == nil && next != never {
		s.slowest = max(now.Sub(c.began), s.slowest-s.slowest/maxInFlight)
	}
	if !c.grant.renews { // it was the last one: see cease
		next = never
	}
	s.move(c.grant, next)
}

// rearm sets the timer to the next renewal or tick. If there is no place for a renewal, the next one to end calls due.
func (s *schedule) rearm(now time.Time) {
	if len(s.grants) == 0 {
		return
	}
	next := s.grants[0].due
	if s.inFlight >= maxInFlight {
		next = never
		if c := s.places.first(); c != nil {
			next = later(s.grants[0].due, c.began.Add(s.patience()))
		}
		if !next.After(now) { // enough renewals are being given up
			next = never
		}
	}
	s.arm(earlier(next, now.Add(s.tick())))
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

func later(a, b time.Time) time.Time {
	if b.After(a) {
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

// countDue returns how many grants are due, but at most about most.
func (h byDue) countDue(now time.Time, most int) (n int) {
	for next := []int{0}; len(next) > 0 && n < most; {
		i := next[len(next)-1]
		next = next[:len(next)-1]
		if i < len(h) && !h[i].due.After(now) {
			n++
			next = append(next, 2*i+1, 2*i+2)
		}
	}
	return n
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
